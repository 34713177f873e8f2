"""How each command line of podzero is run by the tests: what is shortened, and what is not run, and why."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from command_checks import PLACEHOLDERS, REFUSED, built_in, concrete, experiment_of, parse, simple_commands, usages
from command_lines import CommandLine
from typer import _click as click

from podzero.config import Experiment, ModelNetworkConfig, builtin_configs, load
from podzero.files.workdir import Workdir
from podzero.runtime.monitoring.status import RunStatus, write_status

HERE = "tests/docs/command_runs.py"
SMALL = {
    "network.channels": 8, "network.blocks": 1, "network.latent": 16, "network.width": 16, "network.value_hidden": 4,
    "search.simulations": 2,
}  # fmt: skip
"""Settings of the working directories that stand in for trained ones, where their networks have them."""
SHORT = [
    "stop.steps=8", "stop.minutes=15", "actors.games=16", "actors.count=1", "actors.cpus=1", "replay.min_size=64",
    "replay.capacity=2000", "replay.samples_per_insert=8", "replay.tolerance=256", "learner.batch_size=16",
    "learner.steps_per_dispatch=4", "learner.publish_every=8", "evaluation.every_minutes=600",
    "evaluation.final_minutes=0",
]  # fmt: skip
"""Settings of a run of a few steps."""
LIMITS = {"--games": "2", "--positions": "4", "--simulations": "2"}
"""Values of the options that make a command long."""
SOLVED = ("connect_four", "tic_tac_toe")
"""What the titles of games with a solver end with."""
QUICK = ("runs/tic_tac_toe", "tic_tac_toe")
"""A command that names nothing else takes seconds."""


class Command(NamedTuple):
    """A command of podzero as it is run."""

    arguments: tuple[str, ...]
    stdin: str = ""
    quick: bool = False
    """Whether it takes seconds; others are slow tests."""
    not_run: str = ""
    """Why it is not run at all."""
    serves: bool = False
    """Whether it serves a page until Ctrl-C."""

    @property
    def title(self) -> str:
        """For the name of a test."""
        return " ".join(self.arguments)[:90]


def commands(lines: Iterable[CommandLine]) -> list[Command]:
    """The commands of podzero in `lines` as they are run, each once."""
    found = {}
    for line in lines:
        if line.text in REFUSED or line.shown == "message":
            continue
        for words in (words for usage in usages(line.text) for words in simple_commands(usage)):
            for verb, *rest in podzero_words(words):
                command = planned(verb, concrete(rest), line.shown != "block")
                if command is not None:
                    found[command.arguments] = command
    return list(found.values())


def podzero_words(words: list[str]) -> Iterator[list[str]]:
    """The arguments of podzero in a command, if it is one."""
    if words[0] == "uv" and words[1:2] == ["run"]:
        words = words[2:]
    if words[:1] == ["podzero"] and len(words) > 1:
        yield words[1:]


def planned(verb: str, arguments: list[str], mention: bool) -> Command | None:
    """How a command is run; None of a sentence that only names it."""
    if mention:
        try:
            parse(verb, arguments, mention=False)
        except click.exceptions.UsageError:
            return None
    if verb not in RUNNERS:
        pytest.fail(f"nothing knows how to run `podzero {verb}`: add it to RUNNERS in {HERE}")
    return RUNNERS[verb](verb, arguments)


def limited(arguments: list[str], **added: str) -> list[str]:
    """The arguments with small numbers of games, positions and simulations."""
    found = [re.sub(r"^mcts:\d+$", "mcts:2", argument) for argument in arguments]
    for option, value in LIMITS.items():
        if option in found:
            found[found.index(option) + 1] = value
        elif option[2:] in added:
            found += [option, value]
    return found


def is_quick(arguments: list[str]) -> bool:
    """Whether all players and games that are named are those of tic-tac-toe."""
    named = [word for word in arguments if re.match(r"runs/|\.\./|zoo:", word) or word in builtin_configs()]
    return all(word.partition("@")[0] in QUICK for word in named) and bool(named)


def plain(verb: str, arguments: list[str]) -> Command:
    """A command that reads files."""
    return Command((verb, *arguments), quick=True)


def evaluation(verb: str, arguments: list[str]) -> Command:
    """Few games, positions and simulations."""
    added = {"games": "", "positions": ""} if is_judged(arguments) else {"games": ""}
    arguments = limited(arguments, **added)
    return Command((verb, *arguments), quick=is_quick(arguments))


def is_judged(arguments: list[str]) -> bool:
    """Whether a solver judges positions in an evaluation: there is one of the game, and no opponent."""
    game = arguments[arguments.index("--game") + 1] if "--game" in arguments else re.split("[/:@]", arguments[0])[1]
    experiment = [name for name in experiment_of(game) if name in builtin_configs()]
    title = built_in(experiment[0]).env.title if experiment else game
    return "--opponent" not in arguments and title.endswith(SOLVED)


def tournament(verb: str, arguments: list[str]) -> Command:
    """A few games."""
    return Command((verb, *limited(arguments), "--games", "4"))


def train(verb: str, arguments: list[str]) -> Command:
    """A few steps on this machine; what is for a cluster, or has no end, is only checked."""
    given = parse(verb, arguments, mention=False)
    config, overrides = str(given["config"]), list(given["overrides"] or [])  # type: ignore[call-overload]
    if config.startswith("runs/"):
        return Command((verb, *arguments), not_run="resumes a run; tests/runtime and tests/launch do so")
    endless = config in builtin_configs() and built_in(config, *overrides).stop.minutes is None
    if endless or "--check" in arguments or "--address" in arguments:
        without = [word for word in arguments if word != "--check"]
        return Command((verb, *without, "--check"), quick=True)
    options = [word for word in arguments if word != config and word not in overrides]
    short = {setting.partition("=")[0] for setting in SHORT}
    kept = [override for override in overrides if override.partition("=")[0] not in short]
    return Command((verb, config, *kept, *SHORT, *options))


def analysis(verb: str, arguments: list[str]) -> Command:
    """One position."""
    arguments = limited(arguments)
    return Command((verb, *arguments), stdin='{"id": 1, "moves": []}\n', quick=is_quick(arguments))


def engine(verb: str, arguments: list[str]) -> Command:
    """A controller that asks for a move and quits."""
    if arguments[arguments.index("--protocol") + 1] == "gtp":
        return Command((verb, *limited(arguments)), stdin="name\ngenmove b\nquit\n")
    if PLACEHOLDERS["WHO"] in arguments:  # UCI is for chess
        arguments = ["mcts:2", "--game", "gardner_chess", "--protocol", "uci"]
    return Command((verb, *limited(arguments)), stdin="uci\nisready\nposition startpos\ngo nodes 1\nquit\n")


def play(verb: str, arguments: list[str]) -> Command:
    """A person who leaves at once; or a page; or a short video."""
    arguments = limited(arguments)
    serves = "--web" in arguments
    if serves and "--to" in arguments:  # a usage lists what excludes each other
        arguments = arguments[: arguments.index("--to")]
    return Command((verb, *arguments), stdin="quit\n", quick=is_quick(arguments) and not serves, serves=serves)


def report(verb: str, arguments: list[str]) -> Command:
    """A file, or a page."""
    return Command((verb, *arguments), quick="--serve" not in arguments, serves="--serve" in arguments)


def launch(verb: str, arguments: list[str]) -> Command:
    """Its dry run; docs/tpu.md is run as a whole with stand-ins."""
    if "--project" not in arguments:
        return Command((verb, *arguments), not_run="needs a project of Google Cloud and a slice")
    return Command((verb, *(word for word in arguments if word != "--dry-run"), "--dry-run"), quick=True)


def simulation(verb: str, arguments: list[str]) -> Command:
    """What needs no files."""
    why = "tests/tools/plan gives it reports and runs" if "--rates" in arguments else ""
    return Command((verb, *arguments), quick=True, not_run=why)


def elsewhere(why: str) -> Callable[[str, list[str]], Command]:
    """Commands that other tests run."""
    return lambda verb, arguments: Command((verb, *arguments), not_run=why)


RUNNERS: dict[str, Callable[[str, list[str]], Command]] = {
    "analyze": analysis,
    "bench": elsewhere("tests/tools/bench/test_stages.py runs every stage, small"),
    "check-env": elsewhere("tests/launch/test_cli.py runs it"),
    "compare": plain,
    "compile": elsewhere("takes minutes of compilation; tests/tools/compile runs it"),
    "configs": plain,
    "demo": lambda verb, arguments: Command((verb, *arguments), serves=True),
    "diff": plain,
    "doctor": lambda verb, arguments: Command((verb, *arguments)),
    "engine": engine,
    "evaluate": evaluation,
    "export": lambda verb, arguments: Command((verb, *arguments)),
    "import": elsewhere("tests/tools/records/test_cli.py imports games of all formats"),
    "info": plain,
    "launch": launch,
    "logs": elsewhere("tests/launch/test_runs.py writes and follows logs"),
    "new": plain,
    "plan": simulation,
    "play": play,
    "push": elsewhere("tests/tools/report/test_hub.py pushes to a stand-in for the hub"),
    "report": report,
    "review": lambda verb, arguments: Command((verb, *limited(arguments, simulations=""))),
    "runs": plain,
    "settings": plain,
    "status": plain,
    "stop": elsewhere("tests/runtime/test_stopping.py stops runs"),
    "sweep": elsewhere("tests/tools/sweep/test_cli.py runs sweeps"),
    "tournament": tournament,
    "trace": elsewhere("tests/launch/test_runs.py traces a run"),
    "train": train,
    "zoo": plain,
}
"""How each command is run."""


def small_experiment(name: str) -> Experiment:
    """The experiment of a working directory, with a small network."""
    config, *settings = experiment_of(name)
    experiment = load(config, settings)
    sections = {"network": type(experiment.network).model_fields, "search": type(experiment.search).model_fields}
    small = [
        f"{key}={value}" for key, value in SMALL.items() if key.partition(".")[2] in sections[key.partition(".")[0]]
    ]
    return load(config, [*settings, *small])


def write_runs(arguments: tuple[str, ...]) -> None:
    """Makes the working directories that the arguments name, with agents that are small and not trained."""
    from random_parameters import random_parameters  # here, because tests are collected before JAX is needed

    from podzero.envs import spec_of
    from podzero.networks import make_model_network, make_network
    from podzero.networks.snapshots import save_snapshot

    if arguments[0] == "train":
        return  # which makes its own
    if arguments[0] == "review":
        Path("game.sgf").write_text("(;GM[1]SZ[9];B[ee];W[gc])")
    for word in (*arguments, PLACEHOLDERS["DIR"]) if arguments[0] == "runs" else arguments:
        found = re.fullmatch(r"((?:runs/|\.\./)([\w-]+))(?:@(\d+))?", word)
        if found is None:
            continue
        if not experiment_of(found[2]):
            continue
        experiment, workdir = small_experiment(found[2]), Workdir(Path(found[1]))
        workdir.open(experiment)
        write_status(workdir, RunStatus(experiment.name, "ended", 60.0, step=9999))
        if arguments[0] in {"diff", "runs", "status", "report"}:
            continue
        spec = spec_of(experiment.env)
        network = (
            make_model_network(experiment.network, spec)
            if isinstance(experiment.network, ModelNetworkConfig)
            else make_network(experiment.network, spec)
        )
        params = random_parameters(network)
        for step in {int(found[3] or 9), 9999}:
            save_snapshot(workdir.snapshots, step, params, experiment)
