"""Whether a command line can be run as it is shown: its program, verb, options and arguments, and the names in them."""

import argparse
import itertools
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
import typer.main
from cloud_tools import OPTIONS
from command_lines import ROOT, CommandLine
from typer import _click as click

from podzero.config import Experiment, builtin_configs, load
from podzero.core.errors import PodzeroError
from podzero.files.players import game_to_play, parse_player
from podzero.files.workdir import Workdir, step_folder
from podzero.launch import cli

HERE = "tests/docs/command_checks.py"
PLACEHOLDERS = {
    "A": "runs/tic_tac_toe", "B": "runs/connect_four",
    "CONFIG": "tic_tac_toe", "DIR": "runs/tic_tac_toe", "ELO": "50", "FILE": "agent.onnx", "GAME": "tic_tac_toe",
    "HEAD:6379": "127.0.0.1:6379", "HOST:PORT": "127.0.0.1:6379", "N": "2", "NAME": "tic_tac_toe", "S": "7",
    "SECTION": "learner", "SEED": "7", "SLICE": "v5e-16", "STAGE": "learner", "VALUE": "-0.9",
    "WHO": "runs/tic_tac_toe",
    "section.field=value": "seed=7",
    "/shared/NAME": "runs/shared",
}  # fmt: skip
"""What stands for the words in capitals."""
AFTER = {"--topology": {"NAME": "v5e-16"}}
"""Where a word in capitals stands for something else: after this option."""
EXAMPLES = {"podzero evaluate DIR --game go_19x19 --opponent mcts:100": {"DIR": "runs/pooled"}}
"""Command lines whose placeholders stand for something else."""
VARIABLES = {"SITE": " ".join(OPTIONS)}
"""Variables that an earlier line of the page sets."""
MISSING = {
    "a": ["hex"], "b": ["chess"],
    "config": ["tic_tac_toe"], "directory": ["runs/tic_tac_toe"], "directories": ["runs/tic_tac_toe"],
    "files": ["games.pgn"], "game": ["--game", "tic_tac_toe"], "protocol": ["--protocol", "gtp"],
    "runs": ["runs/tic_tac_toe", "zoo:tic_tac_toe"], "settings": ["seed=0..1"], "stage": ["learner"],
    "target": ["queued"], "to": ["--to", "agent.onnx"], "who": ["runs/tic_tac_toe"],
}  # fmt: skip
"""What is added where a sentence speaks of a command without its arguments."""
RUNS = {
    "go-9x9-v5e-16": "slices/go_9x9_v5e_16", "go_9x9_v5e_8": "slices/go_9x9_v5e_8",
    "a": "connect_four", "b": "connect_four", "ceiling": "connect_four", "guess": "guess.yaml",
    "my_net": "my_net.yaml",
    "pooled": "go_9x9 network.global_pooling=true",
}  # fmt: skip
"""The experiments, with settings, of working directories whose names do not begin with those of theirs."""
REFUSED = {"podzero train connect_four learner.batchsize=3": "learner.batchsize: no such field"}
"""Command lines that are shown because of their error."""
NOT_CHECKED = {
    "bash": "runs a file that a launch writes",
    "curl": "needs the internet",
    "echo": "prints its arguments",
    "export": "sets a variable",
    "gcloud": "needs an account at Google Cloud; docs/tpu.md runs with a stand-in",
    "git": "needs the address of the repository",
    "jupyter": "tests/docs/test_python.py runs the notebook",
    "kubectl": "needs a cluster; docs/tpu.md runs with a stand-in",
    "pipx": "needs a package index",
    "ssh": "needs another machine",
    "uvx": "needs the address of the repository",
    "tensorboard": "tests/docs/test_command_runs.py runs it",
    "xprof": "is a package that podzero does not need",
}
"""Programs whose arguments are not checked, and why."""
PIP_OPTIONS = {"--break-system-packages", "--no-deps", "--user"}


def check(line: CommandLine) -> None:
    """Fails if a command line could not be run; of one in a message, only the command is looked at.

    Working directories that it names are made in the present folder, without an agent in them.
    """
    if line.shown == "message":
        verb = re.search(r"podzero ([a-z]\S*)", line.text)
        assert verb is None or verb[1] in cli.COMMANDS, f"podzero has no command '{verb[1]}'"
        return
    for usage in usages(line.text):
        for words in simple_commands(usage):
            check_words(words, line.shown != "block")


def usages(shown: str) -> Iterator[str]:
    """The command lines of a usage: each alternative of `a|b`, with everything that is optional."""
    text = shown
    for placeholder, value in EXAMPLES.get(shown, {}).items():
        text = text.replace(placeholder, value)
    groups = re.findall(r"(?<= )\w+(?:\|\w+)+", text)
    for chosen in itertools.product(*(group.split("|") for group in groups)):
        usage = text
        for group, choice in zip(groups, chosen, strict=True):
            usage = usage.replace(group, choice, 1)
        yield re.sub(r"(?<= )\.\.\.(?=[ \]]|$)", "", re.sub(r"(?<= )\[([^\]]*)\]", r"\1", usage))


def simple_commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a line, without the variables that it sets and without redirections."""
    for name, value in VARIABLES.items():
        text = text.replace(f"${name}", value)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    for operator, group in itertools.groupby(lexer, lambda word: bool(re.fullmatch(r"[;&|]+", word))):
        if operator:
            continue
        words = list(itertools.takewhile(lambda word: not re.fullmatch(r"[<>]+", word), group))
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words:
            yield words


def check_words(words: list[str], mention: bool) -> None:
    """Fails if one command could not be run; a `mention` may lack its arguments."""
    program, arguments = words[0], words[1:]
    if program in NOT_CHECKED:
        return
    if program not in CHECKS:
        pytest.fail(
            f"nothing knows how to check `{' '.join(words)}`: add `{program}` to CHECKS or NOT_CHECKED in {HERE}"
        )
    CHECKS[program](arguments, mention)


def concrete(words: list[str]) -> list[str]:
    """The words with values for the placeholders among them; the second WHO is another player."""
    found: list[str] = []
    for left, word in itertools.pairwise(["", *words]):
        key, equals, value = word.rpartition("=") if word not in PLACEHOLDERS else ("", "", word)
        value = "random" if value == "WHO" and PLACEHOLDERS["WHO"] in found else value
        found.append(key + equals + AFTER.get(left, {}).get(value, PLACEHOLDERS.get(value, value)))
    return found


def check_podzero(arguments: list[str], mention: bool) -> None:
    """Parses as the command line of podzero does, then looks up what the arguments name."""
    if not arguments:
        return
    verb, rest = arguments[0], concrete(arguments[1:])
    make_runs(rest)
    given = parse(verb, rest, mention)
    # Without one, a stage of `bench` chooses its own.
    config = given.get("config") or ("connect_four" if given.get("stage") else None)
    if config is not None:
        load(file_of(config), given.get("overrides") or [])
    who = [given[name] for name in ("who", "opponent") if isinstance(given.get(name), str)]
    who += [name for name in ("who", "others") if isinstance(given.get(name), list | tuple) for name in given[name]]
    if verb == "export":
        parse_player(given["who"])
    elif who:
        game_to_play(given.get("game"), *who)
    directories = [given.get("directory"), *(given.get("directories") or ())]
    for directory in directories if verb != "runs" else ():
        if isinstance(directory, Path):
            Workdir(directory).experiment()


def parse(verb: str, arguments: list[str], mention: bool) -> dict[str, object]:
    """The parameters of a command of podzero; the arguments that a mention lacks are added."""
    if verb not in cli.COMMANDS:
        pytest.fail(f"podzero has no command '{verb}'")
    command, arguments = command_of(verb), list(arguments)
    with program().make_context("podzero", [verb]) as context:
        while True:
            try:
                return dict(command.make_context(verb, list(arguments), parent=context).params)
            except click.exceptions.MissingParameter as error:
                if not mention or error.param is None:
                    raise
                arguments += MISSING[str(error.param.name)]
                make_runs(arguments)
            except click.exceptions.BadOptionUsage as error:  # the option is there, but not its value
                if not mention or not arguments or arguments[-1] != error.option_name:
                    raise
                arguments.pop()


program = cache(lambda: typer.main.get_command(cli.app))
command_of = cache(cli.load_command)
"""Made once: hundreds of command lines are parsed before the first test."""


def file_of(config: str) -> str:
    """The experiment that a command names: by its name or file, or by its working directory, `DIR` or `DIR@STEP`."""
    folder = Path(config.partition("@")[0])
    return str(folder / "experiment.yaml") if folder.is_dir() else config


def experiment_of(run: str) -> list[str]:
    """The experiment of a working directory, then its settings; none if it has none."""
    named = [name for name in builtin_configs() if run.replace("-", "_").startswith(name)]
    return RUNS[run].split() if run in RUNS else sorted(named, key=len)[-1:]


@cache
def built_in(name: str, *settings: str) -> Experiment:
    """A built-in experiment; hundreds of command lines name the same ones."""
    return load(name, settings)


def make_runs(words: list[str]) -> None:
    """Makes the working directories that the words name, each with its experiment."""
    for word in words:
        found = re.fullmatch(r"((?:runs/|\.\./)([\w-]+))(?:@(\d+)|/experiment.yaml)?", word)
        experiment = experiment_of(found[2]) if found else []
        if found and experiment:
            workdir = Workdir(Path(found[1]))
            name, *settings = experiment
            workdir.open(built_in(name, *settings) if name in builtin_configs() else load(name, settings))
            if found[3]:
                step_folder(workdir.snapshots, int(found[3])).mkdir(parents=True, exist_ok=True)


@cache
def parser_of(script: Path) -> argparse.ArgumentParser | None:
    """The parser of a script's arguments; None if it has no options."""
    if "argparse" not in script.read_text():
        return None
    found: list[argparse.ArgumentParser] = []

    def keep(parser: argparse.ArgumentParser, *_: object) -> None:
        found.append(parser)
        raise SystemExit(0)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", keep), mock.patch.object(sys, "argv", [str(script)]):
        with suppress(SystemExit):
            runpy.run_path(str(script), run_name="__main__")
    return found[0]


def check_python(arguments: list[str], mention: bool) -> None:
    """The script exists, and takes the arguments."""
    if arguments[:2] == ["-m", "venv"]:
        return
    name, *rest = arguments
    places = [ROOT / name, ROOT / "benchmarks" / name, Path(name)]
    script = next((place for place in places if place.is_file()), None)
    assert script is not None, f"no script {name}"
    parser = None if script == Path(name) else parser_of(script)
    make_runs(rest)
    if parser is not None and (rest or not mention):
        parser.parse_args(concrete(rest))


def check_pytest(arguments: list[str], mention: bool) -> None:
    """The files exist, and `-k` selects a test in them."""
    del mention
    parser = argparse.ArgumentParser(exit_on_error=False)
    for option in ("-m", "-n", "-k"):
        parser.add_argument(option)
    parser.add_argument("files", nargs="*")
    given = parser.parse_args(arguments)
    for file in given.files:
        selected = re.search(rf"^def test_\w*{given.k or ''}", (ROOT / file).read_text(), re.M)
        assert selected, f"no test {given.k} in {file}"


def check_uv(arguments: list[str], mention: bool) -> None:
    """`uv run` runs something that can be run; the extras and groups of other commands exist."""
    if not arguments:
        assert mention
        return
    if arguments[0] == "pip":
        check_pip(arguments[1:], mention)
        return
    if arguments[0] != "run":
        assert arguments[0] in {"sync", "lock"} or arguments[:2] == ["python", "install"], arguments
        return  # tests/docs/test_command_runs.py runs them
    rest = arguments[1:]
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] in {"--with", "--extra", "--group"} else rest[1:]
    if rest:
        check_words(rest, mention)


def check_pip(arguments: list[str], mention: bool) -> None:
    """Its options are known, and the files that it reads exist."""
    if mention and not arguments:
        return
    verb, *rest = arguments
    assert verb == "install", arguments
    for left, word in itertools.pairwise([verb, *rest]):
        if word.startswith("-"):
            assert word in PIP_OPTIONS, f"pip install {word}: not known in {HERE}"
        elif left in {"-r", "--requirement"}:
            assert (ROOT / word).is_file(), f"no file {word}"


def check_docker(arguments: list[str], mention: bool) -> None:
    """The files and arguments of a build exist; what a container runs can be run."""
    if mention and not arguments:
        return
    verb, *rest = arguments
    if verb == "build" and "--file" in rest:
        file = ROOT / rest[rest.index("--file") + 1]
        declared = re.findall(r"^ARG (\w+)", file.read_text(), re.M)
        given = [word.partition("=")[0] for left, word in itertools.pairwise(rest) if left == "--build-arg"]
        assert set(given) <= set(declared), f"{file} declares {declared}, not {given}"
    elif verb == "run" and "podzero" in rest:
        inside = rest[rest.index("podzero") + 1 :]
        if inside:
            check_words(inside, mention)


def check_ray(arguments: list[str], mention: bool) -> None:
    """Parses as the command line of Ray does."""
    if mention and not arguments:
        return
    import click as ray_click
    from ray.scripts.scripts import cli as ray  # it takes seconds

    with ray.make_context("ray", [arguments[0]]) as context:
        command = ray.get_command(context, arguments[0])
        assert command is not None, f"ray has no command {arguments[0]}"
        for argument in arguments:
            if argument.endswith(".yaml"):
                Path(argument).touch()
        try:
            command.make_context(arguments[0], concrete(arguments[1:]), parent=context)
        except ray_click.MissingParameter:
            if not mention:
                raise


def check_sphinx(arguments: list[str], mention: bool) -> None:
    """The options, and that the folder of pages has a configuration; tests/docs/test_site.py builds the site."""
    from sphinx.cmd.build import get_parser  # it takes a second

    given = get_parser().parse_args(arguments)
    assert (ROOT / given.sourcedir / "conf.py").is_file(), given.sourcedir


CHECKS: dict[str, Callable[[list[str], bool], None]] = {
    ".": lambda arguments, mention: None,
    ".ci/run": lambda arguments, mention: None,
    "cd": lambda arguments, mention: None,
    "docker": check_docker,
    "grep": lambda arguments, mention: None,
    "pip": check_pip,
    "podzero": check_podzero,
    "pytest": check_pytest,
    "python": check_python,
    "python3": check_python,
    "python3.13": check_python,
    "ray": check_ray,
    "sphinx-build": check_sphinx,
    "taskset": lambda arguments, mention: check_words(arguments[2:], mention),
    "tee": lambda arguments, mention: None,
    "uv": check_uv,
}
"""How the arguments of each program are checked."""
EXPECTED = (PodzeroError, click.exceptions.UsageError)
