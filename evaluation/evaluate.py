"""The command `evaluate`: matches, judgements by a solver, and episodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from datetime import date
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import jax

from podzero.config import GymnasiumConfig
from podzero.core.errors import ConfigError
from podzero.core.protocols import Env
from podzero.core.types import EnvSpec
from podzero.envs import VectorEnv, make_env, simulator_errors
from podzero.evaluation.arena import Arena, MatchReport
from podzero.evaluation.episodes import SIDE_BY_SIDE, play_episodes, random_policy, reward_scale, summary
from podzero.evaluation.games import match_result
from podzero.evaluation.players import Contestant, MovesPlayer, Player, SearchPlayer
from podzero.evaluation.records import record_suffix, write_records
from podzero.evaluation.resolve import acting, resolve
from podzero.evaluation.solvers import (
    OPENINGS_GAME,
    SOLVED,
    Judge,
    JudgedPositions,
    JudgeResult,
    judge_openings,
    judged_positions,
    read_labels,
)
from podzero.files.players import TrainedPlayer, game_to_play, is_packed, parse_player

POSITIONS = 1000
"""Positions that a solver judges by default."""
DEFAULT_OPPONENTS = ("mcts:200", "random")
"""Default opponents in two-player games without a solver."""
ENUMERATED = ("tic_tac_toe",)
"""Games in which a solver judges all positions by default."""


@simulator_errors()
def evaluate(
    who: str,
    opponent: str | None = None,
    games: int = 100,
    simulations: int | None = None,
    positions: int | None = None,
    seed: int = 0,
    game: str | None = None,
    records: Path | None = None,
    report: Callable[[str, int, int, int], None] = lambda opponent, over, games, plies: None,
) -> dict[str, Any]:
    """Measures a player: by a match, by a solver's judgement of its moves, or by the returns of episodes.

    Without an opponent, the game's solver judges the player's moves in seeded positions; in games without a solver the
    player meets each of `DEFAULT_OPPONENTS`. In single-agent environments it plays episodes.

    Args:
      who: the player, see `podzero.files.players`.
      opponent: the other player, or None.
      games: games of each match, half from each side (rounded up to an even number), or number of episodes.
      simulations: simulations per move of players with a network; None for the number used in training.
      positions: positions to judge; None for `POSITIONS`, or for all in the games of `ENUMERATED`.
      seed: seed of openings, positions and all random choices.
      game: a game, or an experiment whose environment is used. Required if neither player is a working directory.
        Otherwise it must be the game they were trained on; its arguments may differ, and so may the size of the board
        if the network has global pooling.
      records: file for the games of the match; None for one below `matches/` in the player's working directory, and
        for other players no file.
      report: is told of the progress of matches: the opponent's name, and see `MatchReport`.

    Returns:
      Always `game, player`, and in addition
      - of a match: `opponent, games, wins, draws, losses, score, interval, records` (the file or None), or these by
        opponent in `matches`, and on the 7 x 7 board of Hex the judgement of `openings`, see `judge_openings`;
      - of a judgement: `positions, keeps_value, exact, interval, by_ply, bands`; in `network` the same for the most
        probable moves of the player's network without search, with its `value_error`; and in `games` all of this for
        positions of games between strong players and perfect play, where podzero has such positions;
      - of episodes: `episodes, mean_return, std_return, interval` (of the mean).

    Raises:
      ConfigError, WorkdirError, SnapshotError: see `resolve`.
      ConfigError: no game or two different games were given, or options that do not apply to the game.
      EnvironmentFailed, SimulatorError: the environments, or a game on the host, failed.
    """
    where = game_to_play(game, who, opponent)
    if isinstance(where, GymnasiumConfig):
        _check_options(where.title, 1, opponent, positions, records)
        return _episodes(where, who, games, simulations, seed)
    env = make_env(where)
    name, players = env.spec.name, env.spec.players
    _check_options(name, players, opponent, positions, records)
    player = resolve(who, env, simulations, where.discount)
    about = {"game": name, "player": player.name}
    if players == 1:
        returns = Arena(env).alone(_by_states(player), games, jax.random.key(seed))
        return about | summary(returns / reward_scale(where))
    if opponent is None and name in SOLVED:
        return about | _judgement(env, _by_states(player), positions, seed)
    results = {}
    for opposing in DEFAULT_OPPONENTS if opponent is None else (opponent,):
        other = resolve(opposing, env, simulations, where.discount)
        file = records or records_file(who, player.name, other.name, env.spec)
        results[other.name] = _match(env, player, other, games, seed, file, partial(report, other.name))
    if opponent is None:
        return about | {"matches": results} | _openings(env, player, seed)
    return about | {"opponent": other.name} | results[other.name]


def _check_options(name: str, players: int, opponent: str | None, positions: int | None, records: Path | None) -> None:
    """Refuses options that do not apply to a game with this name and number of players."""
    if records is not None and opponent is None:
        raise ConfigError(f"--records {records}: only matches are recorded; choose an --opponent")
    if records is not None and players > 2:
        raise ConfigError(f"--records {records}: SGF and PGN record two players, not {players}; remove it")
    if positions is not None and opponent is not None:
        raise ConfigError(f"--positions {positions} is for judgement by a solver: remove it, or --opponent {opponent}")
    check_solver(name, positions)
    if opponent is not None and players == 1:
        raise ConfigError(f"{name} has a single agent: remove --opponent {opponent}")


def check_solver(name: str, positions: int | None) -> None:
    """Refuses `--positions` in a game, or an environment, that has no solver."""
    if positions is not None and name not in SOLVED:
        solved = ", ".join(SOLVED)
        raise ConfigError(f"--positions {positions}: {name} has no solver (only {solved} have); leave --positions out")


def records_file(who: str, name: str, opponent: str, spec: EnvSpec) -> Path | None:
    """The default file for records of `who` (in full `name`); None unless it is a run, in a game for two players."""
    player = parse_player(who)
    if not isinstance(player, TrainedPlayer) or is_packed(who) or spec.players > 2:
        return None
    step, other = name.rpartition("@")[2], re.sub(r"[^\w@.-]", "-", opponent.rpartition("/")[2])
    return player.workdir.root / "matches" / f"{step}_against_{other}{record_suffix(spec.name)}"


def _by_states(player: Contestant) -> Player:
    """The player, unless it is a `MovesPlayer`, which only plays matches."""
    if isinstance(player, MovesPlayer):
        raise ConfigError(f"player '{player.name}' only plays matches; choose an opponent, such as --opponent mcts:100")
    return player


def _episodes(env: GymnasiumConfig, who: str, episodes: int, simulations: int | None, seed: int) -> dict[str, Any]:
    """Episodes in a gymnasium environment."""
    name, policy = (who, None) if who == "random" else acting(who, env, simulations)
    with closing(VectorEnv(env, min(episodes, SIDE_BY_SIDE), seed)) as environments:
        result = play_episodes(environments, policy or random_policy(environments.spec), episodes, jax.random.key(seed))
    counts = {"mean_length": float(result.lengths.mean()), "failures": result.failures}
    return {"game": env.title, "player": name} | summary(result.returns) | counts


def _match(
    env: Env, player: Contestant, other: Contestant, games: int, seed: int, file: Path | None, report: MatchReport
) -> dict[str, Any]:
    """A match of at least `games` games, written to `file` unless None."""
    played = Arena(env).pairs(player, other, -(-games // 2), jax.random.key(seed), report=report)
    if file is not None:
        write_records(file, env, chain.from_iterable(played), date.today().isoformat())
    result = match_result(played)
    return {
        "games": result.games,
        **result._asdict(),
        "score": result.score,
        "interval": list(result.interval),
        "records": None if file is None else str(file),
    }


def _openings(env: Env, player: Contestant, seed: int) -> dict[str, Any]:
    """The judgement of a player's answers to openings, in the game whose openings are solved."""
    if env.spec.name != OPENINGS_GAME or isinstance(player, MovesPlayer):
        return {}
    return {"openings": judge_openings(env, player, jax.random.key(seed))}


def _judgement(env: Env, player: Player, positions: int | None, seed: int) -> dict[str, Any]:
    """The solver's judgement of a player's moves, and of its network's."""
    labels = read_labels(env.spec.name, "test") if positions is None and env.spec.name in ENUMERATED else None
    judged = judged_positions(env, positions or POSITIONS, seed) if labels is None else labels
    result = _judged(env, player, judged, seed)
    if (strong := read_labels(env.spec.name, "games")) is not None:
        result["games"] = _judged(env, player, strong, seed)
    return result


def _judged(env: Env, player: Player, positions: JudgedPositions, seed: int) -> dict[str, Any]:
    """The solver's judgement of a player's moves in these positions, and of its network's."""
    judge = Judge(env, positions)
    result = _shares_by_ply(judge(player, jax.random.key(seed)))
    if isinstance(player, SearchPlayer) and player.network:
        result["network"] = _shares_by_ply(judge.network(player))
    return result


def _shares_by_ply(result: JudgeResult) -> dict[str, Any]:
    bands = {f"plies {first} to {last}": _shares(band) for (first, last), band in result.bands.items()}
    return _shares(result) | {"by_ply": result.by_ply, "bands": bands}


def _shares(result: JudgeResult) -> dict[str, Any]:
    shares = {name: getattr(result, name) for name in ("positions", "keeps_value", "exact")}
    error = {} if result.value_error is None else {"value_error": result.value_error}
    return shares | {"interval": list(result.interval)} | error
