"""`podzero review`: searches all positions of a recorded game, finds its costliest moves, and writes it with notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import isnan
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from podzero.config import KOMI, GymnasiumConfig
from podzero.core.errors import ConfigError, os_errors
from podzero.core.protocols import Env
from podzero.envs import GameOfChance, make_env, simulator_errors
from podzero.envs.boards.go import Go, check_komi, unended, with_komi
from podzero.envs.notation import notation_errors
from podzero.evaluation.games import PlayedGame
from podzero.evaluation.players import SearchPlayer
from podzero.evaluation.records import Note, record_suffix, record_text
from podzero.evaluation.resolve import search_player, usual_simulations, with_simulations
from podzero.files.players import TrainedPlayer, game_to_play, knows_komi, parse_player
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import STEP, Searched, most_visited
from podzero.tools.records.files import SUFFIXES, check_files, nth_game
from podzero.tools.records.games import RecordedGame
from podzero.tools.records.pgn import recorded_action

BATCH = 64
"""Most positions that are searched at once."""
NOTED = 0.02
"""The cost from which a move's better line is written."""


class ReviewedMove(NamedTuple):
    """A move of a game, and what the search says about it."""

    side: str
    """Whose move it is, such as `Black`."""
    move: str
    value: float
    """The value after it for the first player, in [-1, 1]."""
    cost: float
    """By how much less the player wins after it than after the search's choice, in [0, 1]; 0 for that choice."""
    better: tuple[int, ...]
    """The actions of the search's line; empty if the move is its choice."""
    line: tuple[str, ...]
    """Their names."""


class Review(NamedTuple):
    """A reviewed game."""

    where: str
    game: PlayedGame
    text: str
    """The record with notes."""
    suffix: str
    """That of a file for `text`: `.sgf` or `.pgn`."""
    player: str
    """The full name of the player that searched, such as RUN@STEP."""
    simulations: int
    komi_note: str
    """What is to be said of the komi; empty if the search knows it."""
    start: float
    """The value of the initial position for the first player."""
    moves: Sequence[ReviewedMove]

    def costliest(self, most: int) -> dict[int, ReviewedMove]:
        """See the function `costliest`."""
        return costliest(self.moves, most)

    def write(self, to: Path) -> Path:
        """Writes `text` to a file, and returns its name."""
        with os_errors(ConfigError, f"the review cannot be written to {to}", "choose another file with --to"):
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(self.text, encoding="utf-8")
        return to


def notes_on(moves: Sequence[ReviewedMove]) -> dict[int, Note]:
    """What a record says about its moves, by their number."""
    return dict(enumerate(map(_note, moves)))


def _note(one: ReviewedMove) -> Note:
    if one.cost < NOTED:
        return Note(one.value)
    return Note(one.value, f"costs {one.cost:.0%} of a win; better {one.line[0]}", one.better)


def costliest(moves: Sequence[ReviewedMove], most: int) -> dict[int, ReviewedMove]:
    """At most so many moves by their number from 0 on, the costliest first; those that cost nothing are left out."""
    found = [(number, one) for number, one in enumerate(moves) if one.cost > 0]
    return dict(sorted(found, key=lambda numbered: -numbered[1].cost)[:most])


def review(
    file: Path,
    who: str,
    number: int = 1,
    simulations: int | None = None,
    game: str | None = None,
    report: Callable[[int, int], None] = lambda searched, positions: None,
) -> Review:
    """Reviews the game of this `number` in a file that ends in one of `SUFFIXES`.

    A move costs the difference between the value of its position and that of the next one, both searched with
    `simulations`, by default `STEP` times those of training. `report` is told how many positions have been searched.

    Raises:
      ConfigError: the file or the game cannot be read, a move is illegal, or the player does not search this game.
      WorkdirError, SnapshotError: see `resolve`.
    """
    where, parsed = game_to_play(game, who), parse_player(who)
    if isinstance(where, GymnasiumConfig):
        raise ConfigError(f"{where.title} is a single-agent environment: games for two are reviewed")
    check_files([file], SUFFIXES)
    env = make_env(where)
    if isinstance(env, GameOfChance) or env.spec.players != 2 or env.spec.values > 1:
        raise ConfigError(f"{env.spec.name}: only zero-sum games for two without chance are reviewed")
    recorded = nth_game(file, env.spec, number)
    simulations = simulations or usual_simulations(parsed) * (STEP if isinstance(parsed, TrainedPlayer) else 1)
    player = search_player(with_simulations(who, simulations), env, simulations, where.discount, keep_nodes=True)
    played = game_of(env, recorded, told := knows_komi(parsed))
    with simulator_errors():
        found = _searched(player, played, report)
    points = _points(played, recorded)
    start, moves = reviewed_moves(played, points, found)
    first, second = (name or side for name, side in zip(recorded.players, played.sides, strict=True))
    whole = PlayedGame(first, second, tuple(played.moves), points)
    komi = KOMI if recorded.komi is None else recorded.komi
    note = "" if told or komi == KOMI else f"{komi:g}; {player.name} knows only {KOMI}, for which its win rates are"
    text, suffix = record_text(env, whole, notes=notes_on(moves), komi=komi), record_suffix(env.spec.name)
    return Review(recorded.where, whole, text, suffix, player.name, simulations, note, start, moves)


def _points(game: PlayableGame, recorded: RecordedGame) -> float:
    """The first player's, NaN if they are not known: by the rules, but in Go, whose rules count dead stones as alive,
    by the record.
    """
    if recorded.points is not None and (isinstance(game.env, Go) or not game.over):
        return recorded.points
    return game.final_score


def game_of(env: Env, recorded: RecordedGame, knows_komi: bool) -> PlayableGame:
    """The recorded game with all its moves, at its end; a game of Go goes on after two passes if its record does.

    It has the record's komi if the search `knows_komi`.
    """
    game = PlayableGame(env)
    if isinstance(env, Go) and knows_komi and recorded.komi is not None:
        try:
            check_komi(recorded.komi)
        except ValueError as error:
            raise ConfigError(f"{recorded.where}: {error}") from None
        game.restart(state=with_komi(game.beginning.state, np.asarray(recorded.komi)))
    for number, move in enumerate(recorded.moves, 1):
        if game.over and isinstance(env, Go):
            game.resume(unended(game.state))
        elif game.over:
            raise ConfigError(f"{recorded.where}: before move {number} the game is over by the rules: {game.result}")
        with notation_errors(ConfigError, f"{recorded.where}, move {number}"):
            game.play(recorded_action(game.notation, game.legal_mask, lambda: game.state, move))
    return game


def _searched(player: SearchPlayer, game: PlayableGame, report: Callable[[int, int], None]) -> list[Searched]:
    """A search of each position of a game, but of the last one if the game is over there."""
    states = []
    for ply in range(len(game.moves) + 1):
        game.show(ply)
        states.append(game.state)
    if game.over:
        states.pop()
    size, found = min(BATCH, len(states)), list[Searched]()
    for begin in range(0, len(states), size):
        batch = states[begin : begin + size]
        padded = [*batch, *[batch[0]] * (size - len(batch))]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *padded)
        result = jax.device_get(player.search(jax.random.key(begin), stacked))
        found += [Searched.of(result, row) for row in range(len(batch))]
        report(len(found), len(states))
    return found


def reviewed_moves(game: PlayableGame, points: float, found: Sequence[Searched]) -> tuple[float, list[ReviewedMove]]:
    """The value of a game's beginning for the first player, and its moves, from searches of its positions.

    `points` are the first player's, NaN if they are not known. The last position needs no search if the game is over.
    """
    game.show(len(game.moves))
    names, reviewed = game.names, list[ReviewedMove]()
    values = list(_judged(game, points, found))
    for ply, (before, after) in enumerate(pairwise(values)):
        first, best = game.turn_at(ply) == 0, found[ply]
        chosen = best.action == game.moves[ply]
        cost = 0.0 if chosen else max((before - after) / 2 if first else (after - before) / 2, 0.0)
        game.show(ply)
        actions = () if chosen else (best.action,) if best.nodes is None else most_visited(best.nodes, best.action)
        line = tuple(game.names_of(actions))
        reviewed.append(ReviewedMove(game.sides[not first], names[ply], after, cost, actions[: len(line)], line))
    return values[0], reviewed


def _judged(game: PlayableGame, points: float, found: Sequence[Searched]) -> Iterator[float]:
    """The value of each position for the first player; at its end a game has its result."""
    for ply, one in enumerate(found):
        assert one.value is not None
        value = float(np.clip(one.value, -1, 1))
        yield value if game.turn_at(ply) == 0 else -value
    if game.over:
        yield 0.0 if isnan(points) else 2 * points - 1
