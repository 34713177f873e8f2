"""The names of players on the command line.

random            uniformly random legal moves
solver            perfect play, where a solver of the game exists
greedy            the action with the highest immediate reward, in gymnasium environments that can be copied
mcts:400          tree search with 400 random rollouts per move, without a network
gnugo:10          GNU Go, an external program, at its level 10 (1 to 10)
stockfish:3       Stockfish at its skill level 3 (0 to 20)
fairy-stockfish:3 Fairy-Stockfish, for Gardner's chess as well
runs/mine         the newest snapshot of a working directory
runs/mine@1200    its snapshot of learner step 1200
zoo:go_9x9        a trained agent that comes with podzero (`podzero zoo` lists them)

This module imports neither JAX nor environments, so that wrong names are refused at once.
"""

from __future__ import annotations

import logging
import os
import shutil
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
from podzero.core.importing import approve
from podzero.files.store import store_of
from podzero.files.workdir import Workdir, WorkdirError, split_step, step_folder, step_folders

log = logging.getLogger(__name__)

_WITHOUT_NUMBER = ("random", "solver", "greedy")


class EngineKind(NamedTuple):
    """An external program that plays; it has the name of its Debian package."""

    levels: range
    games: tuple[str, ...]


ENGINES = {
    "gnugo": EngineKind(range(1, 11), ("go_7x7", "go_9x9", "go_19x19")),
    "stockfish": EngineKind(range(21), ("chess",)),
    "fairy-stockfish": EngineKind(range(21), ("chess", "gardner_chess")),
}
"""The supported engines by the name of their program."""
GAMES_FOLDERS = ("/usr/games", "/usr/local/games")
"""Where Debian installs games; PATH may lack these folders."""
_KNOWN = (*_WITHOUT_NUMBER, "mcts:N", "zoo:NAME", *(f"{kind}:LEVEL" for kind in ENGINES))


class BuiltinPlayer(NamedTuple):
    """A player that needs no training."""

    kind: str
    """`random`, `solver`, `greedy` or `mcts`."""
    simulations: int = 0
    """Simulations per move of `mcts`."""


class EnginePlayer(NamedTuple):
    """An external program at one of its levels."""

    kind: str
    """One of `ENGINES`."""
    level: int


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
    if name.startswith(PREFIX):
        return TrainedPlayer(zoo_workdir(name.removeprefix(PREFIX)), None)
    kind, colon, text = name.partition(":")
    # `isdigit` alone is true of ² and other characters that `int` refuses.
    number = int(text) if text.isascii() and text.isdigit() else -1
    if kind == "mcts":
        if number < 1:
            raise ConfigError(f"player '{name}': expected a positive number of simulations, for example mcts:400")
        return BuiltinPlayer(kind, number)
    if kind in ENGINES:
        levels = ENGINES[kind].levels
        if number not in levels:
            expected = f"{levels[0]} to {levels[-1]}, for example {kind}:{levels[-1]}"
            raise ConfigError(f"player '{name}': expected a level from {expected}")
        return EnginePlayer(kind, number)
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


def engine_program(name: str, player: EnginePlayer, game: str) -> str:
    """The path of the program of `player` on this machine; `name` is the player's name, for messages."""
    games = ENGINES[player.kind].games
    if game not in games:
        *others, last = games
        listed = f"{', '.join(others)} and {last}" if others else last
        raise ConfigError(f"player '{name}': {player.kind} plays {listed}, not {game}")
    program = shutil.which(player.kind, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *GAMES_FOLDERS]))
    if program is None:
        raise ConfigError(
            f"player '{name}': the program {player.kind} is not installed; on Debian and Ubuntu: "
            f"apt-get install {player.kind}"
        )
    return program


def full_name(name: str, player: TrainedPlayer, step: int) -> str:
    """The name of a snapshot in results: DIR@STEP, or zoo:NAME."""
    # An agent of the zoo has only one snapshot.
    return name if name.startswith(PREFIX) else f"{player.workdir.root}@{step}"


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


def run_workdir(name: str) -> Workdir:
    """The working directory of a run given as `DIR`, or of an agent given as `zoo:NAME`."""
    workdir = zoo_workdir(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else Workdir(name)
    workdir.experiment()  # raises an error if the folder is not a run
    return workdir


def zoo_card(name: str) -> dict[str, Any]:
    """How an agent was trained: `game`, `network`, `command`, `commit`, `date`, `hours`, `hardware`, `games`, and
    `judged`, sentences on its training and strength.
    """
    card: dict[str, Any] = read_yaml((zoo_workdir(name).root / "card.yaml").read_text(encoding="utf-8"))
    return card | {"date": str(card["date"])}
