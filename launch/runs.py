"""The commands about runs that are there: `info`, `compare`, `logs`, `trace` and `stop`."""

from __future__ import annotations

import logging
import shlex
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from podzero.core.errors import ConfigError, nearest
from podzero.files.workdir import Workdir, WorkdirError
from podzero.launch.options import Json, Trained, print_json, print_rows, print_tables

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The run's working directory.")]


def info(who: Trained, as_json: Json = False) -> None:
    """Show what a trained agent is: network, steps, hours, hardware, strength, and what it was started from."""
    from podzero.launch.tables import agent_rows
    from podzero.tools.report.info import agent_info

    found = agent_info(who)
    if as_json:
        print_json(found._asdict())
    else:
        print_rows(agent_rows(found))


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="A working directory, zoo:NAME, or the folder of a sweep for all its runs."),
    ],
    as_json: Json = False,
) -> None:
    """Compare runs after equal time of training: settings that differ, steps, speed, losses, strength."""
    from podzero.tools.report.comparison import compare as side_by_side
    from podzero.tools.report.record import read_runs

    found = side_by_side(read_runs(runs))
    if as_json:
        print_json(found.to_tree())
        return
    print_tables(found.tables())


def logs(
    directory: Directory,
    process: Annotated[
        str | None,
        typer.Argument(
            metavar="PROCESS",
            help="Only what is of this process or kind, such as actor-0, learner or driver.",
            show_default="all processes",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is logged until the run ends or Ctrl-C.")
    ] = False,
    level: Annotated[Literal["info", "warning", "error"], typer.Option(help="The least level.")] = "info",
) -> None:
    """Print what the processes of a run have logged, with tracebacks. The driver writes it into DIR/train.log."""
    from podzero.runtime.monitoring.log_file import of_process, read_log

    workdir = Workdir(directory)
    _check_process(workdir, process)
    lines = read_log(workdir.log_file, lambda: follow and workdir.holder() is not None)
    try:
        for line in of_process(lines, process, logging.getLevelNamesMapping()[level.upper()]):
            print(line, flush=follow)
    except FileNotFoundError:
        raise WorkdirError(
            f"{workdir.log_file} does not exist: no run has started there; `podzero runs` lists those that have"
        ) from None
    except OSError as error:
        raise WorkdirError(f"cannot read {error.filename or workdir.log_file}: {error.strerror}") from None


def _check_process(workdir: Workdir, process: str | None) -> None:
    """Refuses a process that the run does not have; without an experiment, any may have logged."""
    if process is None or not workdir.is_run:
        return
    from podzero.runtime.monitoring.log_file import DRIVER
    from podzero.runtime.program import program

    kinds = [kind for kind in program(workdir.experiment()) if kind.count]
    known = list(dict.fromkeys([DRIVER, *(name for kind in kinds for name in (kind.name, *kind.names))]))
    if process not in known:
        raise ConfigError(
            f"the run in {workdir.root} has no process '{process}'{nearest(process, known)}; it has: "
            f"{', '.join([DRIVER, *(kind.name for kind in kinds)])}, numbered from 0 as in {kinds[0].name}-0"
        )


def trace(
    directory: Directory,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="The length of the traces.")] = 5.0,
    as_json: Json = False,
) -> None:
    """Write profiler traces of the learner, actors, inference servers and reanalysers of a running run."""
    from podzero.runtime.tracing import request_trace

    found = request_trace(Workdir(directory), seconds)
    if as_json:
        print_json({"folder": str(found.folder), "processes": found.processes})
        return
    for process, reason in found.processes.items():
        print(f"{process}: {'traced' if reason is None else f'not traced: {reason}'}")
    print(f"The traces are in {found.folder}. View them with: uv run --with xprof xprof --logdir {found.folder}")


def stop(
    directory: Directory,
    seconds: Annotated[
        float, typer.Option(min=1, help="Longest wait for the end; the run then still goes on ending.")
    ] = 900.0,
    as_json: Json = False,
) -> None:
    """End a run on this machine as Ctrl-C does: with a last checkpoint. Waits until it has ended."""
    from podzero.runtime.checkpoints import checkpoints
    from podzero.runtime.monitoring.status import read_status
    from podzero.runtime.stopping import stop_run

    workdir, began = Workdir(directory), time.monotonic()
    stopped = stop_run(workdir, seconds, lambda text: None if as_json else print(f"{text} ...", flush=True))
    if not stopped:
        # Raises an error if the folder is not a run.
        workdir.experiment()
    newest = next((found.step for found in checkpoints(workdir) if found.fault is None), None)
    if as_json:
        waited_s = round(time.monotonic() - began, 1)
        print_json({"directory": str(directory), "stopped": stopped, "checkpoint_step": newest, "waited_s": waited_s})
    elif not stopped:
        print(f"{directory}: {read_status(workdir).summary}")
    elif newest is None:
        print(f"The run in {directory} has ended without a checkpoint: it had not begun to train.")
    else:
        print(f"The run in {directory} has ended; its newest checkpoint is that of step {newest:,}.")
        print(f"Continue it with: podzero train {shlex.quote(str(directory))}")
