"""The commands `report`, `info`, `push` and `compare`: what runs and agents are, and what they reached."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from podzero.core.errors import ConfigError, os_errors
from podzero.files.workdir import Workdir, sweep_runs, write_atomically
from podzero.tools.commands.listen_address import free_address
from podzero.tools.commands.options import Json, ListenHost, ListenPort, Trained
from podzero.tools.commands.printing import print_json, print_result, print_tables
from podzero.tools.report.comparison import compare as side_by_side
from podzero.tools.report.comparison import overlaid
from podzero.tools.report.curves import SUFFIXES, make_curves
from podzero.tools.report.hub import push as push_agent
from podzero.tools.report.info import agent_info, agent_rows
from podzero.tools.report.page import make_comparison, make_report
from podzero.tools.report.record import RunReader, read_runs
from podzero.tools.report.sections import measured

_Directories = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR", help="The run's working directory; of several, or a sweep's folder, the curves are compared."
    ),
]
_Output = Annotated[
    Path | None,
    typer.Option(
        help="The file to write: a page, or the curves as .csv or .pdf.",
        show_default="report.html in DIR; comparison.html in the first",
    ),
]
_Over = Annotated[
    Literal["hours", "steps", "games"] | None,
    typer.Option(help="The horizontal axis of a PDF.", show_default="hours"),
]


def report(
    directories: _Directories,
    output: _Output = None,
    over: _Over = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve it as a page, kept up to date until Ctrl-C.")] = False,
    host: ListenHost = None,
    port: ListenPort = None,
    as_json: Json = False,
) -> None:
    """Write the report of a run as an HTML file: ratings, losses, throughput, settings, faults, cost.

    The file is self-contained.
    Of several runs, it has their curves over one another, and what `podzero compare` prints.
    Runs that differ only in their seed share a curve: their mean, with a band from the least to the greatest.
    With --serve it is a live dashboard of the run, for browsers that know its address.
    """
    first, several = directories[0], len(directories) > 1 or bool(sweep_runs(directories[0]))
    if serve:
        if output is not None or several:
            refused = "several runs" if several else "--output"
            raise ConfigError(f"{refused} and --serve cannot be combined: a page of one run is served, not a file")
        from podzero.tools.report.server import serve as serve_report

        where = free_address(host, port)

        def announce(address: str) -> None:
            if as_json:
                print_json({"address": address})
            else:
                print(f"Report at {address}\nFor {where.readers} that know this address. Ctrl-C ends it.", flush=True)

        serve_report(Workdir(first), where, announce)
        return
    if host is not None or port is not None:
        raise ConfigError("--host and --port need --serve: a report in a file has no address")

    suffix = output.suffix.lower() if output is not None else ""
    if over is not None and suffix != ".pdf":
        raise ConfigError("--over needs --output FILE.pdf: CSV has all three axes, and a page lets its reader choose")
    records = read_runs(list(map(str, directories))) if several else {}
    record = None if several else RunReader(Workdir(first)).read()
    if suffix in SUFFIXES:
        content = make_curves(measured(record) if record else overlaid(records), suffix, over or "hours")
    else:
        content = (make_report(record) if record else make_comparison(records)).encode()
    name = "report.html" if record else "comparison.html"
    file = Workdir(first).root / name if output is None else output.expanduser().absolute()
    with os_errors(ConfigError, f"cannot write {file}", "name another file by --output"):
        write_atomically(file, content)
    if as_json:
        print_json({"report": str(file), "bytes": len(content)})
    else:
        print(f"Report written: {file}")


def info(who: Trained, as_json: Json = False) -> None:
    """Show what a trained agent is: network, steps, hours, hardware, strength, and what it was started from."""
    print_result(agent_info(who), as_json, agent_rows)


def push(
    who: Trained,
    to: Annotated[str, typer.Argument(metavar="hf:USER/NAME", help="The repository, which is made if it is missing.")],
    private: Annotated[bool, typer.Option("--private", help="Make it readable by you alone.")] = False,
    as_json: Json = False,
) -> None:
    """Upload an agent to the Hugging Face hub, with its experiment, own code, metrics, and a model card.

    Needs the extra `hub`, and a token that may write (HF_TOKEN, or `hf auth login`).
    Then hf:USER/NAME stands wherever a trained agent may stand.
    """
    print_result(push_agent(who, to, private), as_json)


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="A working directory, zoo:NAME, or the folder of a sweep for all its runs."),
    ],
    as_json: Json = False,
) -> None:
    """Compare runs after equal time of training: settings that differ, steps, speed, losses, strength."""
    found = side_by_side(read_runs(runs))
    if as_json:
        print_json(found.to_tree())
    else:
        print_tables(found.tables())
