"""`podzero report`: the report of a run as one file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from podzero.errors import ConfigError, PodzeroError
from podzero.launch.options import Json, ListenHost, ListenPort
from podzero.launch.output import print_json
from podzero.listen_address import ListenAddress, free_address
from podzero.workdir import Workdir, write_atomically


class ReportNotWritten(PodzeroError, RuntimeError):
    """The file of the report cannot be written; the message says why and what to do."""


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The working directory of a run.")],
    output: Annotated[Path | None, typer.Option(help="The file to write.", show_default="report.html in DIR")] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve it as a page instead, always up to date, until Ctrl-C.")
    ] = False,
    host: ListenHost = None,
    port: ListenPort = None,
    as_json: Json = False,
) -> None:
    """Write the report of a run as one HTML file: ratings, losses, throughput, settings, faults, cost.

    The file needs nothing else and can be sent to others.
    With --serve it is the dashboard of a run that goes on, for browsers that know its address.
    """
    if serve:
        if output is not None:
            raise ConfigError("--output and --serve exclude each other: a served report is not written to a file")
        from podzero.tools.report.server import serve as serve_report

        where = free_address(host, port)
        serve_report(Workdir(directory), where, partial(_announce, where, as_json=as_json))
        return
    if host is not None or port is not None:
        raise ConfigError("--host and --port are for --serve: a report in a file needs neither")
    from podzero.tools.report.page import make_report
    from podzero.tools.report.record import RunReader

    workdir = Workdir(directory)
    page = make_report(RunReader(workdir).read())
    file = workdir.root / "report.html" if output is None else output.expanduser().absolute()
    try:
        write_atomically(file, page)
    except OSError as error:
        raise ReportNotWritten(f"cannot write {file}: {error.strerror}; name another file by --output") from None
    if as_json:
        print_json({"report": str(file), "bytes": len(page.encode())})
    else:
        print(f"Report written: {file}")


def _announce(where: ListenAddress, address: str, as_json: bool) -> None:
    if as_json:
        print_json({"address": address})
    else:
        print(
            f"Report at {address}\nFor {where.readers} that know this address. Ctrl-C ends it.",
            flush=True,
        )
