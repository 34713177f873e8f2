"""What the verbs `evaluate` and `analyze` do: from names and lines to plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax

from podzero.envs import make_env
from podzero.errors import ConfigError
from podzero.evaluation.analysis import Analyst
from podzero.evaluation.arena import play_match
from podzero.evaluation.judge import Judge, judged_positions
from podzero.evaluation.players import Player, SearchPlayer
from podzero.evaluation.solvers import SOLVED
from podzero.evaluation.who import game_of, resolve
from podzero.protocols import Env


def evaluate(
    who: str,
    opponent: str | None = None,
    games: int = 100,
    simulations: int | None = None,
    positions: int = 1000,
    seed: int = 0,
    game: str | None = None,
) -> dict[str, Any]:
    """Plays a match, or without an opponent lets the game's solver judge moves in seeded positions.

    Args:
      who: the player, in the grammar of `podzero.evaluation.who`.
      opponent: whom to play; None for the judgement.
      games: games of the match, half from each side; an odd number is rounded up.
      simulations: per move of players with a network; None takes as many as in training.
      positions: positions to judge.
      seed: of openings, positions, and of every random choice.
      game: needed only when neither player is a working directory.

    Returns:
      `games, wins, draws, losses, score, interval` of a match; `positions, keeps_value, exact, interval, by_ply` of a
      judgement; both with `game, player` (and `opponent`).

    Raises:
      ConfigError, WorkdirError, SnapshotError: see `resolve`.
      ConfigError: no game, two games, or no solver to judge.
    """
    env = make_env(_the_game(game, who, opponent))
    if opponent is None and env.spec.name not in SOLVED:
        raise ConfigError(
            f"no solver judges {env.spec.name} (only {', '.join(SOLVED)}); choose an opponent, as --opponent mcts:100"
        )
    player = resolve(who, env, simulations)
    key = jax.random.key(seed)
    about = {"game": env.spec.name, "player": player.name}
    if opponent is None:
        return about | _judgement(env, player, positions, seed)
    other = resolve(opponent, env, simulations)
    result = play_match(env, player, other, games + games % 2, key)
    return about | {
        "opponent": other.name,
        "games": result.games,
        **result._asdict(),
        "score": result.score,
        "interval": list(result.interval),
    }


def analyze(
    who: str, lines: Iterable[str], simulations: int | None = None, game: str | None = None
) -> Iterator[dict[str, Any]]:
    """Answers JSON lines, each a position given by the moves that lead there.

    `{"id": 1, "moves": [3, 3, 4]}` gives `{"id": 1, "move": 2, "policy": [...], "value": 0.31, "visits": [...]}`, the
    value for the player to move. A line that cannot be answered gives `{"id": ..., "error": "..."}`, and the next is
    answered. Answers come in the order of the lines, as soon as no more lines are waiting.

    Raises:
      ConfigError, WorkdirError, SnapshotError: see `resolve`; before the first line is read.
    """
    env = make_env(_the_game(game, who, None))
    player = resolve(who, env, simulations)
    if not isinstance(player, SearchPlayer):
        raise ConfigError(f"'{who}' does not search; analyze needs a working directory, or mcts:N")
    return Analyst(env, player).answers(lines)


def _judgement(env: Env, player: Player, positions: int, seed: int) -> dict[str, Any]:
    result = Judge(env, judged_positions(env, positions, seed))(player, jax.random.key(seed))
    return {**result._asdict(), "interval": list(result.interval)}


def _the_game(game: str | None, *players: str | None) -> str:
    """The one game that all working directories, and `game` if given, are about."""
    games = {who: found for who in players if who is not None and (found := game_of(who)) is not None}
    if game is not None:
        games["--game"] = game
    if not games:
        raise ConfigError(f"which game? Neither of {', '.join(filter(None, players))} says it: give a game")
    if len(set(games.values())) > 1:
        raise ConfigError("these play different games: " + ", ".join(f"{who} plays {g}" for who, g in games.items()))
    return next(iter(games.values()))
