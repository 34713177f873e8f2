"""The commands of the packages in `tools`: `compile`, `bench`, `report`, `export` and `import`."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from podzero.config import KOMI, GymnasiumConfig, builtin_configs, load
from podzero.core.errors import ConfigError, PodzeroError
from podzero.core.machine import keep_compiled_programs
from podzero.files.players import game_to_play, parse_player
from podzero.files.workdir import Workdir, sweep_runs, write_atomically
from podzero.launch.options import (
    Config,
    Json,
    ListenHost,
    ListenPort,
    Overrides,
    Trained,
    print_json,
    print_result,
    print_rows,
    progress,
)
from podzero.launch.trust import approve_code
from podzero.tools.bench import STAGES
from podzero.tools.commands.listen_address import ListenAddress, free_address

_SLICE = "v5e-16"
"""The slice of experiments that set none."""

ProgramName = Literal["learner", "evaluation", "selfplay", "device", "server"]


def _refuse_table(given: bool) -> None:
    if given:
        raise ConfigError("--table is removed: in a checkout, benchmarks/compile_table.py compiles all experiments")


def compile_experiment(
    config: Config,
    overrides: Overrides = None,
    topology: Annotated[
        str | None,
        typer.Option(help="A TPU slice, for example v5e-16 or v5e:4x4.", show_default=f"cluster.slice, or {_SLICE}"),
    ] = None,
    program: Annotated[
        ProgramName | None, typer.Option(help="Compile only this program.", show_default="all programs")
    ] = None,
    depth: Annotated[
        float | None,
        typer.Option(
            min=1, help="For program device: mean depth of the search trees.", show_default="8 for Gumbel, 30 for PUCT"
        ),
    ] = None,
    scaling: Annotated[
        str | None,
        typer.Option(help="Compare the learner on several slices, for example v5e-4,v5e-256.", show_default=False),
    ] = None,
    per_chip: Annotated[
        int | None,
        typer.Option(min=1, help="With --scaling: samples per step and chip.", show_default="as on the first slice"),
    ] = None,
    table: Annotated[bool, typer.Option("--table", hidden=True, is_eager=True, callback=_refuse_table)] = False,
    as_json: Json = False,
) -> None:
    """Compile an experiment for a TPU slice: does it fit, and what does it cost? Needs no TPU."""
    slices = None if scaling is None else scaling.split(",")
    if slices is not None and len(slices) < 2:
        raise ConfigError(f"--scaling {scaling}: expected at least two slices to compare, for example v5e-4,v5e-256")
    experiment = load(config, overrides or ())
    approve_code(experiment)
    from podzero.tools.compile.command import compile_for_slice, compile_for_slices

    found = (
        compile_for_slice(experiment, topology or experiment.cluster.slice or _SLICE, program, depth)
        if slices is None
        else compile_for_slices(experiment, slices, per_chip)
    )
    if as_json:
        print_json(found.to_dict())
    else:
        from rich.console import Console

        found.show(Console())
    raise typer.Exit(0 if found.fits else 1)


Stage = Literal[
    "selfplay", "int8", "tree", "server", "simulators", "acting", "learner", "replay", "publish", "actors", "broadcast",
    "mesh", "analyze",
]  # fmt: skip


def bench(
    stage: Annotated[Stage, typer.Argument(help="The stage to measure.")],
    overrides: Overrides = None,
    config: Annotated[str, typer.Option(help="The experiment, which sets all sizes.")] = "connect_four",
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="How long to measure, without start-up and compilation; at least one round, and whole rounds only.",
        ),
    ] = 20.0,
    as_json: Json = False,
) -> None:
    """Measure the throughput of a stage, and in the same run the limit that it could reach.

    Progress goes to standard error, unless --json is given.
    """
    print_result(run_stage(stage, config, overrides or [], seconds, verbose=not as_json), as_json)


def run_stage(stage: str, config: str, overrides: list[str], seconds: float, verbose: bool) -> dict[str, Any]:
    """Measures a stage and returns its figures; the arguments are those of `bench`.

    Raises:
      ConfigError: the experiment or a setting does not exist, or the stage does not apply to the experiment.
      BenchError: a process of the bench ended or did not answer in time.
    """
    for override in overrides:
        _check_setting(override, stage)
    experiment = load(config, overrides)
    approve_code(experiment)
    keep_compiled_programs()
    with _shown_log() if verbose else nullcontext():
        measure = getattr(import_module(f"podzero.tools.bench.{STAGES[stage]}"), f"bench_{stage}")
        found: dict[str, Any] = measure(experiment, seconds)
    return found


@contextmanager
def _shown_log() -> Iterator[None]:
    """Prints the benches' log, with the seconds since the command started."""
    log = logging.getLogger("podzero.tools.bench")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_SinceStart("[%(since)6.1f s] %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _SinceStart(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.since = record.relativeCreated / 1000
        return super().format(record)


def _check_setting(override: str, stage: str) -> None:
    """Refuses an experiment where a setting is expected; in other commands it stands there."""
    if "=" in override:
        return
    if override in builtin_configs() or override.endswith((".yaml", ".yml")):
        raise ConfigError(
            f"'{override}' is an experiment; the option --config takes it: `podzero bench {stage} --config {override}`"
        )


class ReportNotWritten(PodzeroError, RuntimeError):
    """The report's file cannot be written."""


def report(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR",
            help="The run's working directory; of several, or of the folder of a sweep, the curves are compared.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            help="The file to write.", show_default="report.html in DIR; comparison.html in the first of several"
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve it as a page that stays up to date until Ctrl-C.")
    ] = False,
    host: ListenHost = None,
    port: ListenPort = None,
    as_json: Json = False,
) -> None:
    """Write the report of a run as an HTML file: ratings, losses, throughput, settings, faults, cost.

    The file is self-contained.
    Of several runs, it has their curves over one another, and what `podzero compare` prints.
    With --serve it is a live dashboard of the run, for browsers that know its address.
    """
    first, several = directories[0], len(directories) > 1 or bool(sweep_runs(directories[0]))
    if serve:
        if output is not None or several:
            refused = "several runs" if several else "--output"
            raise ConfigError(f"{refused} and --serve cannot be combined: a page of one run is served, not a file")
        from podzero.tools.report.server import serve as serve_report

        where = free_address(host, port)
        serve_report(Workdir(first), where, partial(_announce, where, as_json=as_json))
        return
    if host is not None or port is not None:
        raise ConfigError("--host and --port need --serve: a report in a file has no address")
    from podzero.tools.report.page import make_comparison, make_report
    from podzero.tools.report.record import RunReader, read_runs

    if several:
        page, name = make_comparison(read_runs(list(map(str, directories)))), "comparison.html"
    else:
        page, name = make_report(RunReader(Workdir(first)).read()), "report.html"
    file = Workdir(first).root / name if output is None else output.expanduser().absolute()
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


def export(
    who: Trained,
    to: Annotated[
        Path, typer.Option(metavar="FILE", help="The file to write: NAME.onnx (extra `export`) or NAME.stablehlo.")
    ],
    as_json: Json = False,
) -> None:
    """Write the network of a trained agent to a file for ONNX Runtime or jax.export.

    The exported network takes batches of any size.
    Its results are compared with JAX's on positions of the game; if they differ, the file is deleted.
    """
    # Before the import of JAX, which takes seconds.
    parse_player(who)
    keep_compiled_programs()
    from podzero.launch.tables import export_rows
    from podzero.tools.export import export_agent

    result = export_agent(who, to.expanduser().absolute())
    if as_json:
        print_json(result)
    else:
        print_rows(export_rows(result))


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE ...", help="Games as .sgf, .pgn or .jsonl; episodes as .npz or .jsonl."),
    ],
    game: Annotated[str, typer.Option(help="The game, or an experiment whose environment is played.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
    search: Annotated[
        str | None,
        typer.Option(
            metavar="WHO",
            help="A trained agent, or mcts:N, that searches each position: its policy is the target.",
            show_default="the moves played",
        ),
    ] = None,
    simulations: Annotated[
        int | None,
        typer.Option(min=1, help="Simulations per position of a trained agent.", show_default="as in training"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Import recorded games or episodes that `data.records` trains on.

    SGF is read for Go, Othello and Hex, PGN for chess and for what podzero writes itself.
    A line of .jsonl is a game with the numbers or names of its moves, such as
    {"moves": [3, 3, "e"], "result": "1-0"}
    An episode of gymnasium is a line or an .npz file with the arrays observations [T + 1, ...], actions [T],
    rewards [T] and terminated.

    Games that are illegal, unfinished or of another game are counted and left out.
    """
    if search is None and simulations is not None:
        raise ConfigError(f"--simulations {simulations} is for a search; name the player that searches with --search")
    section = game_to_play(game, search)
    keep_compiled_programs()
    from podzero.tools.records import import_games

    to, kind = to.expanduser().absolute(), "episodes" if isinstance(section, GymnasiumConfig) else "games"
    report = progress(lambda games, positions: f"{positions:,} positions of {games:,} {kind}")
    found = import_games([file.expanduser() for file in files], section, to, search, simulations, report)
    if as_json:
        print_json({"records": str(to), **found._asdict()})
        return
    print(f"{found.positions:,} positions of {found.games:,} {kind} are in {to}")
    if found.other_komi:
        print(f"{found.other_komi:,} of them had another komi than {KOMI}, which a network sees only with env.komi")
    if found.left_out:
        print("Left out: " + ", ".join(f"{count:,} {kind}" for kind, count in found.left_out.items()))
        print("\n".join(f"  {one}" for one in found.named))
    print(f"Train on them with the setting data.records={shlex.quote(str(to))}")
