"""The names of players on the command line.

random            uniformly random legal moves
solver            perfect play, where a solver of the game exists
mcts:400          tree search with 400 random rollouts per move, without a network
gnugo:10          GNU Go, an external program, at its level 10 (1 to 10)
gnubg:0           GNU Backgammon, looking so many plies ahead (0 to 3)
gtp-rhino:2       GRhino, for Othello, at its level 2 (1 to 5)
stockfish:3       Stockfish at its skill level 3 (0 to 20); from 1350 on the number is a rating, its option UCI_Elo
fairy-stockfish:3 Fairy-Stockfish, for Gardner's chess and shogi as well
gtp:COMMAND; LINE any program that speaks GTP, to which the lines are sent before it plays
uci:COMMAND; LINE a chess program, with lines such as `setoption name Hash value 16` and `go movetime 100`
usi:COMMAND; LINE the same for shogi
runs/mine         the newest snapshot of a working directory
runs/mine@1200    its snapshot of learner step 1200
runs/mine@best    its snapshot with the best score of an evaluation
zoo:go_9x9        a trained agent that comes with podzero (`podzero zoo` lists them)
hf:user/name      an agent on the Hugging Face hub, which `podzero push` uploaded; hf:user/name@REVISION

This module imports neither JAX nor environments, so that wrong names are refused at once.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from podzero.config import (
    BUILTIN_GAMES,
    EnvConfig,
    Experiment,
    import_paths,
    in_matches,
    load,
    observes_komi,
    read_yaml,
)
from podzero.core.errors import ConfigError, nearest
from podzero.core.importing import approve, import_extra
from podzero.files.store import store_of
from podzero.files.workdir import Workdir, WorkdirError, split_step, step_folder, step_folders

log = logging.getLogger(__name__)

_WITHOUT_NUMBER = ("random", "solver")


class EngineKind(NamedTuple):
    """An external program that plays."""

    package: str
    """Its Debian package."""
    levels: tuple[range, ...]
    games: tuple[str, ...]


RATINGS = range(1350, 2851)
"""The values of UCI_Elo, the rating at which they play, that all versions of Stockfish and Fairy-Stockfish offer."""
ENGINES = {
    "gnugo": EngineKind("gnugo", (range(1, 11),), ("go_7x7", "go_9x9", "go_19x19")),
    "gnubg": EngineKind("gnubg", (range(4),), ("backgammon",)),
    "gtp-rhino": EngineKind("grhino", (range(1, 6),), ("othello",)),
    "stockfish": EngineKind("stockfish", (range(21), RATINGS), ("chess",)),
    "fairy-stockfish": EngineKind("fairy-stockfish", (range(21), RATINGS), ("chess", "gardner_chess", "shogi")),
}
"""The engines that need no more than a level, by the name of their program."""
PROTOCOLS: dict[str, tuple[str, ...] | None] = {"gtp": None, "uci": ("chess", "gardner_chess"), "usi": ("shogi",)}
"""The protocols of other engines, with their games; None: all."""
GAMES_FOLDERS = ("/usr/games", "/usr/local/games")
"""Where Debian installs games; PATH may lack these folders."""
_KNOWN = (
    *_WITHOUT_NUMBER,
    "mcts:N",
    "zoo:NAME",
    "hf:USER/NAME",
    *(f"{kind}:LEVEL" for kind in ENGINES),
    *(f"{protocol}:COMMAND" for protocol in PROTOCOLS),
)


class BuiltinPlayer(NamedTuple):
    """A player that needs no training."""

    kind: str
    """`random`, `solver` or `mcts`."""
    simulations: int = 0
    """Simulations per move of `mcts`."""


class EnginePlayer(NamedTuple):
    """An external program."""

    kind: str
    """One of `ENGINES` or `PROTOCOLS`."""
    level: int = 0
    """Of `ENGINES`."""
    command: tuple[str, ...] = ()
    """Of `PROTOCOLS`: the program and its arguments."""
    lines: tuple[str, ...] = ()
    """Of `PROTOCOLS`: what is sent to it before it plays."""


class TrainedPlayer(NamedTuple):
    """A snapshot of a working directory."""

    workdir: Workdir
    step: int | None
    """The learner step of the snapshot; None for the newest."""

    def at_newest(self) -> TrainedPlayer:
        """With the step of the newest snapshot in place of None."""
        if self.step is not None:
            return self
        steps = step_folders(self.workdir.snapshots)
        if not steps:
            raise ConfigError(f"{self.workdir.snapshots} holds no snapshot; has the run trained long enough for one?")
        return self._replace(step=steps[-1])


def parse_player(name: str) -> BuiltinPlayer | EnginePlayer | TrainedPlayer:
    """The player with this name, or a `ConfigError` that says what names there are."""
    if (packed := packed_workdir(name)) is not None:
        return TrainedPlayer(packed, None)
    kind, colon, text = name.partition(":")
    # `isdigit` alone is true of ² and other characters that `int` refuses.
    number = int(text) if text.isascii() and text.isdigit() else -1
    if kind == "mcts":
        if number < 1:
            raise ConfigError(f"player '{name}': expected a positive number of simulations, for example mcts:400")
        return BuiltinPlayer(kind, number)
    if kind in ENGINES:
        levels = ENGINES[kind].levels
        if not any(number in some for some in levels):
            expected = ", or ".join(f"{some[0]} to {some[-1]}" for some in levels)
            raise ConfigError(f"player '{name}': expected a level from {expected}, for example {kind}:{levels[0][-1]}")
        return EnginePlayer(kind, number)
    if kind in PROTOCOLS:
        return _program_player(name, kind, text)
    if kind in _WITHOUT_NUMBER:
        if colon:
            raise ConfigError(f"player '{name}': '{kind}' takes no number")
        return BuiltinPlayer(kind)
    return _trained_player(name)


def trained_player(setting: str, who: str) -> TrainedPlayer:
    """The agent that a setting such as `init_from` names; one without parameters is refused."""
    try:
        player = parse_player(who)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None
    if not isinstance(player, TrainedPlayer):
        raise ConfigError(f"{setting} = '{who}' has no parameters; expected a run (DIR or DIR@STEP) or zoo:NAME")
    return player


def _program_player(name: str, protocol: str, text: str) -> EnginePlayer:
    """The player of a command, and of the lines that are sent to it, which semicolons separate."""
    example = f"for example {protocol}:{_EXAMPLES[protocol]}"
    if not text.isprintable():
        raise ConfigError(f"player {name!r}: expected printable characters, {example}")
    command, *lines = (part.strip() for part in text.split(";"))
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise ConfigError(f"player '{name}': '{command}' is not a command: {error}; {example}") from None
    if not words or not words[0]:
        raise ConfigError(f"player '{name}': expected the command of a program, {example}")
    return EnginePlayer(protocol, command=words, lines=tuple(filter(None, lines)))


_EXAMPLES = {
    "gtp": "gnugo --mode gtp; level 5",
    "uci": "stockfish; setoption name Hash value 16; go movetime 100",
    "usi": "fairy-stockfish; go nodes 1000",
}


def starts_program(who: str) -> bool:
    """Whether a player's name holds a command of the user's."""
    return who.partition(":")[0] in PROTOCOLS


def check_engine_plays(name: str, player: EnginePlayer, game: str) -> None:
    """Raises `ConfigError` if the engine does not play the game; `name` is the player's name."""
    games = PROTOCOLS[player.kind] if player.command else ENGINES[player.kind].games
    if games is not None and game not in games:
        *others, last = games
        listed = f"{', '.join(others)} and {last}" if others else last
        raise ConfigError(f"player '{name}': {player.kind} plays {listed}, not {game}")


def engine_program(name: str, player: EnginePlayer) -> str:
    """The path of the program of `player` on this machine; `name` is the player's name, for messages."""
    wanted, *_ = player.command or (player.kind,)
    program = shutil.which(wanted, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *GAMES_FOLDERS]))
    if program is None:
        where = "" if player.command else f"; on Debian and Ubuntu: apt-get install {ENGINES[player.kind].package}"
        raise ConfigError(f"player '{name}': the program {wanted} is not installed{where}")
    return program


def full_name(name: str, player: TrainedPlayer, step: int) -> str:
    """The name of a snapshot in results: DIR@STEP; that of a packed agent stays the same."""
    return name if is_packed(name) else f"{player.workdir.root}@{step}"


def keep_teacher(experiment: Experiment, workdir: Workdir) -> None:
    """Copies the teacher into the working directory of a run that starts; a resumed run has its copy."""
    if experiment.teacher is None or workdir.is_run:
        return
    teacher = trained_player("teacher", experiment.teacher).at_newest()
    assert teacher.step is not None
    copy = Workdir(workdir.teacher)
    try:
        # One that a failed start has left may be of another agent.
        shutil.rmtree(copy.root, ignore_errors=True)
        snapshot = step_folder(teacher.workdir.snapshots, teacher.step)
        store_of(snapshot).get(snapshot)
        shutil.copytree(snapshot, step_folder(copy.snapshots, teacher.step))
        if teacher.workdir.code.is_dir():
            shutil.copytree(teacher.workdir.code, copy.code)
        shutil.copyfile(teacher.workdir.experiment_file, copy.experiment_file)
        store_of(copy.root).put(copy.root)
    except OSError as error:
        raise WorkdirError(f"cannot copy the teacher {teacher.workdir.root} to {copy.root}: {error}") from None
    log.info("the teacher is %s; the run keeps a copy", full_name(experiment.teacher, teacher, teacher.step))


def with_own_teacher(experiment: Experiment, workdir: Workdir) -> Experiment:
    """The experiment of a run with its own copy as teacher, if it has one; a missing copy is a `WorkdirError`."""
    if experiment.teacher is None:
        return experiment
    if not Workdir(workdir.teacher).is_run:
        raise WorkdirError(
            f"{workdir.teacher} is missing: it held the run's copy of its teacher, {experiment.teacher}. Restore it "
            "from a copy of the run, or start a new run"
        )
    return experiment.model_copy(update={"teacher": str(workdir.teacher)})


def as_resumed(experiment: Experiment, workdir: Workdir) -> Experiment:
    """The experiment with the working directory's copies of code and teacher; as it is if the run is new."""
    experiment = workdir.with_copied_code(experiment)
    if not workdir.is_run:
        return experiment
    # The parameters are those of its checkpoint.
    return with_own_teacher(experiment, workdir).model_copy(update={"init_from": None})


def game_to_play(game: str | None, *players: str | None) -> EnvConfig:
    """The game that all players play, as in matches (`in_matches`).

    `game` is the name of a game, or of an experiment whose environment is played; None for the game of the first
    trained player. All trained players must be able to play it (`Experiment.plays`). Players that are None are skipped.
    """
    games: dict[str, EnvConfig] = {}
    # First, because its arguments take precedence over those of the players' experiments.
    if game is not None:
        games["--game"] = BUILTIN_GAMES[game] if game in BUILTIN_GAMES else load(game).env
    names = [name for name in players if name is not None]
    parsed = ((name, parse_player(name)) for name in names)
    experiments = {name: player.workdir.experiment() for name, player in parsed if isinstance(player, TrainedPlayer)}
    games |= {name: experiment.env for name, experiment in experiments.items()}
    if not games:
        raise ConfigError(f"no game given: {', '.join(names)} can play any; choose one with --game")
    chosen = next(iter(games.values()))
    if not all(experiment.plays(chosen.title) for experiment in experiments.values()):
        listed = ", ".join(f"{name} plays {found.title}" for name, found in games.items())
        raise ConfigError(f"these play different games: {listed}")
    approve(*import_paths(chosen))  # at once: importing JAX takes seconds
    return in_matches(chosen)


def knows_komi(player: BuiltinPlayer | EnginePlayer | TrainedPlayer) -> bool:
    """Whether a player can be told the komi of a game of Go: it has no network, or one that observes the komi."""
    return not isinstance(player, TrainedPlayer) or observes_komi(player.workdir.experiment().env)


def _trained_player(name: str) -> TrainedPlayer:
    found = split_step(name)
    if found is None:
        raise ConfigError(
            f"unknown player '{name}'{nearest(name, _KNOWN)}; known: {', '.join(_KNOWN)}, or an existing working "
            "directory as DIR or DIR@STEP"
        )
    folder, step = found
    workdir = Workdir(folder)
    present = step_folders(workdir.snapshots)
    if step is not None and step not in present:
        known = ", ".join(map(str, present)) or "none"
        other = f"; for example: {workdir.root}@{present[-1]}" if present else ""
        raise ConfigError(f"player '{name}': {workdir.root} holds no snapshot of step {step}; there are {known}{other}")
    return TrainedPlayer(workdir, step)


PREFIX = "zoo:"
"""Prefix of the names of the agents that come with podzero."""
_FOLDER = Path(__file__).parents[1] / "zoo"


def zoo_names() -> list[str]:
    """The names of all agents, sorted."""
    return sorted(card.parent.name for card in _FOLDER.glob("*/card.yaml"))


def zoo_workdir(name: str) -> Workdir:
    """The working directory of an agent of the zoo."""
    names = zoo_names()
    if name not in names:
        raise ConfigError(f"no agent '{name}' comes with podzero{nearest(name, names)}; there are: {', '.join(names)}")
    return Workdir(_FOLDER / name)


HUB = "hf:"
"""Prefix of the names of agents on the Hugging Face hub: `hf:USER/NAME` is a model repository with the files of a
working directory."""
_HUB_FILES = ("experiment.yaml", "metrics.jsonl", "hardware.json", "code/*", "snapshots/*")
_HUB_NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def hub_repository(name: str) -> tuple[str, str | None]:
    """The repository and the revision (a branch, tag or commit) of `hf:USER/NAME` or `hf:USER/NAME@REVISION`."""
    if (found := _HUB_NAME.fullmatch(name)) is None:
        raise ConfigError(f"'{name}': expected hf:USER/NAME, or hf:USER/NAME@REVISION for a branch, tag or commit")
    return found[1], found[2]


@cache
def hub_workdir(name: str) -> Workdir:
    """The working directory of an agent on the hub, in the hub's cache; without a network, what the cache has.

    As with every agent, snapshots are checked by their digests, and its own code is imported only with the user's
    consent.
    """
    repo, revision = hub_repository(name)
    hub = import_extra("huggingface_hub", f"'{name}'", "hub")
    try:
        folder = hub.snapshot_download(repo, revision=revision, allow_patterns=list(_HUB_FILES))
    # Its errors, those of the network among them, have no common base class.
    except Exception as error:
        raise ConfigError(f"'{name}' cannot be downloaded: {error}; check name, network and HF_TOKEN") from None
    workdir = Workdir(folder)
    if not workdir.is_run:
        raise ConfigError(f"'{name}' is no agent of podzero: the repository holds no experiment.yaml")
    return workdir


def is_packed(name: str) -> bool:
    """Whether an agent is `zoo:NAME` or `hf:USER/NAME`: it has one snapshot, and nothing is written into its folder."""
    return name.startswith((PREFIX, HUB))


def packed_workdir(name: str) -> Workdir | None:
    """The working directory of an agent given as `zoo:NAME` or `hf:USER/NAME`; None for other names."""
    if name.startswith(PREFIX):
        return zoo_workdir(name.removeprefix(PREFIX))
    return hub_workdir(name) if name.startswith(HUB) else None


def run_workdir(name: str) -> Workdir:
    """The working directory of a run given as `DIR`, or of an agent given as `zoo:NAME` or `hf:USER/NAME`."""
    workdir = packed_workdir(name) or Workdir(name)
    workdir.experiment()  # raises an error if the folder is not a run
    return workdir


def zoo_card(name: str) -> dict[str, Any]:
    """How an agent was trained: `game`, `network`, `command`, `commit`, `date`, `hours`, `hardware`, `games`, and
    `judged`, sentences on its training and strength.
    """
    card: dict[str, Any] = read_yaml((zoo_workdir(name).root / "card.yaml").read_text(encoding="utf-8"))
    return card | {"date": str(card["date"])}
