"""The commands `evaluate` and `analyze`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import date
from itertools import chain
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podzero.config import EnvConfig, GymnasiumConfig
from podzero.envs import make_env, make_vector_env, simulator_errors
from podzero.errors import ConfigError
from podzero.evaluation.arena import Arena
from podzero.evaluation.episodes import (
    BASELINES,
    SIDE_BY_SIDE,
    EpisodesResult,
    baseline,
    play_alone,
    play_episodes,
    reward_scale,
    summary,
)
from podzero.evaluation.games import match_result
from podzero.evaluation.players import Contestant, MovesPlayer, Player, SearchPlayer
from podzero.evaluation.positions import BandResult, Judge, JudgeResult, all_positions, judged_positions
from podzero.evaluation.records import record_suffix, write_records
from podzero.evaluation.resolve import acting, resolve
from podzero.evaluation.solvers import SOLVED
from podzero.player_names import PREFIX, TrainedPlayer, game_to_play, parse_player
from podzero.protocols import Env
from podzero.reading import read_ahead
from podzero.types import Array, EnvState

POSITIONS = 1000
"""Positions that a solver judges by default."""
DEFAULT_OPPONENTS = ("mcts:200", "random")
"""Default opponents in two-player games without a solver."""
ENUMERATED = {"tic_tac_toe": 8}
"""Games in which a solver judges all positions by default, with the last ply at which a player has a choice."""


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
) -> dict[str, Any]:
    """Measures a player: by a match, by a solver's judgement of its moves, or by the returns of episodes.

    Without an opponent, the game's solver judges the player's moves in seeded positions; in games without a solver the
    player meets each of `DEFAULT_OPPONENTS`. In single-agent environments it plays episodes.

    Args:
      who: the player, see `podzero.player_names`.
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

    Returns:
      Always `game, player`, and in addition
      - of a match: `opponent, games, wins, draws, losses, score, interval, records` (the file or None), or these by
        opponent in `matches`;
      - of a judgement: `positions, keeps_value, exact, interval, by_ply, bands`, and in `network` the same for the most
        probable moves of the player's network without search;
      - of episodes: `episodes, mean_return, std_return, interval` (of the mean).

    Raises:
      ConfigError, WorkdirError, SnapshotError: see `resolve`.
      ConfigError: no game or two different games were given, or options that do not apply to the game.
      EnvironmentFailed, SimulatorError: the environments, or a game on the host, failed.
    """
    where = game_to_play(game, who, opponent)
    if records is not None and opponent is None:
        raise ConfigError(f"--records {records}: only matches are recorded; choose an --opponent")
    if positions is not None and opponent is not None:
        raise ConfigError(f"--positions {positions} is for judgement by a solver: remove it, or --opponent {opponent}")
    if isinstance(where, GymnasiumConfig):
        _refuse_opponent(where.title, opponent)
        _refuse_positions(where.title, positions)
        return _episodes(where, who, games, simulations, seed)
    env = make_env(where)
    discount = discount_of(where)
    if env.spec.players == 1:
        _refuse_opponent(env.spec.name, opponent)
        _refuse_positions(env.spec.name, positions)
        scale = 1.0 if isinstance(where, str) else reward_scale(where)
        return _alone(env, _by_states(resolve(who, env, simulations, discount)), games, seed, scale)
    judged = opponent is None and env.spec.name in SOLVED
    if not judged:
        _refuse_positions(env.spec.name, positions)
    player = resolve(who, env, simulations, discount)
    about = {"game": env.spec.name, "player": player.name}
    if judged:
        return about | _judgement(env, _by_states(player), positions, seed)
    results = {}
    for name in DEFAULT_OPPONENTS if opponent is None else (opponent,):
        other = resolve(name, env, simulations, discount)
        file = records or records_file(who, player.name, other.name, env.spec.name)
        results[other.name] = _match(env, player, other, games, seed, file)
    if opponent is None:
        return about | {"matches": results}
    return about | {"opponent": other.name} | results[other.name]


def analyze(
    who: str, lines: Iterable[str], simulations: int | None = None, game: str | None = None
) -> Iterator[dict[str, Any]]:
    """Searches positions given as JSON lines, by the moves that lead to them.

    `{"id": 1, "moves": [3, 3, 4]}` gives `{"id": 1, "move": 2, "policy": [...], "value": 0.31, "visits": [...]}`, with
    the value for the player to move. An invalid line gives `{"id": ..., "error": "..."}`. Answers keep the order of the
    lines; waiting lines are answered in one batch.

    Raises:
      ConfigError, WorkdirError, SnapshotError: see `resolve`; raised before the first line is read.
    """
    where = game_to_play(game, who)
    env = make_env(where)
    player = resolve(who, env, simulations, discount_of(where))
    if not isinstance(player, SearchPlayer):
        raise ConfigError(f"player '{who}' does not search; analyze needs a working directory or mcts:N")
    return Analyst(env, player).answers(lines)


def discount_of(game: str | EnvConfig) -> float:
    """The discount per move of an environment returned by `game_to_play`."""
    return 1.0 if isinstance(game, str) else game.discount


def _refuse_opponent(name: str, opponent: str | None) -> None:
    if opponent is not None:
        raise ConfigError(f"{name} has a single agent: remove --opponent {opponent}")


def _refuse_positions(name: str, positions: int | None) -> None:
    if positions is not None:
        raise ConfigError(
            f"--positions {positions}: {name} has no solver (only {', '.join(SOLVED)} have one); leave --positions out"
        )


def records_file(who: str, name: str, opponent: str, game: str) -> Path | None:
    """The default file for match records of `who`, whose full name is `name`; None unless it is a working directory."""
    player = parse_player(who)
    if not isinstance(player, TrainedPlayer) or who.startswith(PREFIX):
        return None
    step, other = name.rpartition("@")[2], re.sub(r"[^\w@.-]", "-", opponent.rpartition("/")[2])
    return player.workdir.root / "matches" / f"{step}_against_{other}{record_suffix(game)}"


def _by_states(player: Contestant) -> Player:
    """The player, unless it is a `MovesPlayer`, which only plays matches."""
    if isinstance(player, MovesPlayer):
        raise ConfigError(
            f"player '{player.name}' only plays matches; choose an opponent, for example --opponent mcts:100"
        )
    return player


def _episodes(env: GymnasiumConfig, who: str, episodes: int, simulations: int | None, seed: int) -> dict[str, Any]:
    """Episodes in a gymnasium environment."""
    if who == "greedy":
        # Only environments in this process can be copied.
        env = env.model_copy(update={"vectorization": "sync"})
    name, decide = (who, None) if who in BASELINES else acting(who, env, simulations)
    with closing(make_vector_env(env, min(episodes, SIDE_BY_SIDE), seed)) as environments:
        choose = (lambda key, step: decide(key, step)[0]) if decide else baseline(who, environments)
        result = play_episodes(environments, choose, episodes, jax.random.key(seed))
    return {"game": env.title, "player": name} | summary(result)


def _alone(env: Env, player: Player, games: int, seed: int, scale: float) -> dict[str, Any]:
    """Episodes in a single-agent simulator; returns are in unscaled rewards."""
    returns = play_alone(env, player, games, jax.random.key(seed)) / scale
    result = EpisodesResult(returns, np.zeros(games, np.int64), 0)
    counted = {key: value for key, value in summary(result).items() if key not in ("mean_length", "failures")}
    return {"game": env.spec.name, "player": player.name} | counted


def _match(env: Env, player: Contestant, other: Contestant, games: int, seed: int, file: Path | None) -> dict[str, Any]:
    """A match of at least `games` games, written to `file` unless None."""
    played = Arena(env).pairs(player, other, -(-games // 2), jax.random.key(seed))
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


def _judgement(env: Env, player: Player, positions: int | None, seed: int) -> dict[str, Any]:
    """The solver's judgement of a player's moves, and of its network's."""
    if positions is None and env.spec.name in ENUMERATED:
        judged = all_positions(env, ENUMERATED[env.spec.name])
    else:
        judged = judged_positions(env, positions or POSITIONS, seed)
    judge = Judge(env, judged)
    result = _judged(judge(player, jax.random.key(seed)))
    if isinstance(player, SearchPlayer) and player.has_network:
        result["network"] = _judged(judge.network(player))
    return result


def _judged(result: JudgeResult) -> dict[str, Any]:
    bands = {f"plies {band.first} to {band.last}": _shares(band) for band in result.bands}
    return {**_shares(result), "by_ply": result.by_ply, "bands": bands}


def _shares(result: JudgeResult | BandResult) -> dict[str, Any]:
    return {
        "positions": result.positions,
        "keeps_value": result.keeps_value,
        "exact": result.exact,
        "interval": list(result.interval),
    }


BATCH = 64
"""Batch size of the search: batches of several positions are padded to it, so that only two programs are compiled."""


class _Request(NamedTuple):
    """A parsed line: moves, or an error."""

    id: Any
    moves: list[int]
    error: str | None


class Analyst:
    """Answers requests with the search of one player."""

    def __init__(self, env: Env, player: SearchPlayer) -> None:
        self._env = env
        self._player = player
        self._key = jax.random.key(0)
        self._start = env.init(jax.random.key(0))
        self._view = jax.jit(jax.vmap(env.view))
        self._advance = jax.jit(self._play_where_legal)

    def answers(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """One answer per non-empty line; see `analyze`."""
        for batch in _as_they_come(lines):
            yield from self._answer([_parse(line, self._env.spec.num_actions) for line in batch])

    def _answer(self, requests: list[_Request]) -> Iterator[dict[str, Any]]:
        size = 1 if len(requests) == 1 else BATCH
        padding = [_Request(None, [], None)] * (size - len(requests))
        self._key, key = jax.random.split(self._key)
        with simulator_errors():
            roots, errors = self._replay([*requests, *padding])
            result = jax.device_get(self._player.search(key, roots))
        for i, request in enumerate(requests):
            error = request.error or errors[i]
            if error:
                yield {"id": request.id, "error": error}
            else:
                yield {
                    "id": request.id,
                    "move": int(result.action[i]),
                    "policy": [round(float(p), 6) for p in result.policy[i]],
                    "value": round(float(result.value[i]), 6),
                    "visits": result.visits[i].tolist(),
                }

    def _replay(self, requests: list[_Request]) -> tuple[EnvState, list[str | None]]:
        """Roots of the search, and errors in the moves; the root is the initial state where there is an error."""
        fresh = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(requests), *leaf.shape)), self._start)
        states = fresh
        errors: list[str | None] = [None] * len(requests)
        for ply in range(max(len(request.moves) for request in requests)):
            actions = [r.moves[ply] if ply < len(r.moves) else -1 for r in requests]
            states, refused = self._advance(states, np.array(actions, np.int32))
            for i in np.flatnonzero(refused):
                errors[i] = errors[i] or f"move {ply + 1} ({actions[i]}) is illegal in that position"
        over = np.asarray(self._view(states).done)
        for i in np.flatnonzero(over):
            errors[i] = errors[i] or f"the game is over after these {len(requests[i].moves)} moves"
        return jax.vmap(optax.tree.where)(over, fresh, states), errors

    def _play_where_legal(self, states: EnvState, actions: Array) -> tuple[EnvState, Array]:
        """Plays the legal actions; -1 is none. Returns the states and a mask of illegal actions."""
        view = jax.vmap(self._env.view)(states)
        legal = jnp.take_along_axis(view.legal, jnp.maximum(actions, 0)[:, None], axis=1)[:, 0] & ~view.done
        goes_on = (actions >= 0) & legal
        played = jax.vmap(self._env.step)(states, jnp.where(goes_on, actions, jnp.argmax(view.legal, axis=1)))
        return jax.vmap(optax.tree.where)(goes_on, played, states), (actions >= 0) & ~legal


def _parse(line: str, num_actions: int) -> _Request:
    try:
        tree = json.loads(line)
        # The answer repeats the id; NaN is not JSON.
        json.dumps(tree, allow_nan=False)
    except (ValueError, RecursionError) as error:
        return _Request(None, [], f"invalid JSON: {error}")
    if not isinstance(tree, dict):
        return _Request(None, [], 'expected an object, for example {"id": 1, "moves": [3, 3, 4]}')
    moves = tree.get("moves")
    # Not `isinstance`, for which `true` is an integer.
    if not isinstance(moves, list) or not all(type(move) is int and 0 <= move < num_actions for move in moves):
        return _Request(tree.get("id"), [], f'expected "moves" to be a list of actions from 0 to {num_actions - 1}')
    return _Request(tree.get("id"), moves, None)


def _as_they_come(lines: Iterable[str]) -> Iterator[list[str]]:
    """Batches of the lines that have arrived, at most `BATCH`; never waits to fill a batch."""
    waiting = read_ahead(lines, 4 * BATCH)
    batch: list[str] = []
    while True:
        try:
            item = waiting.get(block=not batch)
        except Empty:
            yield batch
            batch = []
            continue
        if isinstance(item, str):
            batch.append(item)
        if batch and (len(batch) == BATCH or not isinstance(item, str)):
            yield batch
            batch = []
        if isinstance(item, Exception):
            raise item
        if item is None:
            return
