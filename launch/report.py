"""`podzero report`: the report of a run as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from podzero.errors import PodzeroError
from podzero.launch.options import Json
from podzero.launch.output import print_json
from podzero.workdir import Workdir, write_atomically


class ReportNotWritten(PodzeroError, RuntimeError):
    """The file of the report cannot be written; the message says why and what to do."""


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The working directory of a run.")],
    output: Annotated[Path | None, typer.Option(help="The file to write.", show_default="report.html in DIR")] = None,
    as_json: Json = False,
) -> None:
    """Write the report of a run as one HTML file: ratings, losses, throughput, settings, faults, cost.

    The file needs nothing else and can be sent to others.
    """
    from podzero.report import RunReader, make_report

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
