"""The player behind an engine, made while the engine already answers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import NamedTuple

from podzero.config import GymnasiumConfig
from podzero.envs import make_env
from podzero.evaluation.evaluate import discount_of
from podzero.evaluation.players import MovesPlayer, Player
from podzero.evaluation.who import resolve
from podzero.player_names import BuiltinPlayer, TrainedPlayer, game_to_play, parse_player
from podzero.tools.play.game import Game
from podzero.tools.play.searching import usual_simulations, with_simulations
from podzero.tools.play.timed_search import STEP, TimedSearch


class EngineParts(NamedTuple):
    """What an engine needs to play: a game, and a player of it."""

    game: Game
    search: TimedSearch


def make_parts(who: str, simulations: int | None, game: str | None) -> EngineParts:
    """Makes the game and the player, and compiles its searches; see `podzero.tools.play.engine.serve`."""
    where = game_to_play(game, who)
    assert not isinstance(where, GymnasiumConfig)
    env = make_env(where)
    parsed, discount = parse_player(who), discount_of(where)

    def player(size: int) -> Player:
        made = resolve(with_simulations(who, size), env, size, discount, keep_nodes=True)
        assert not isinstance(made, MovesPlayer)
        return made

    usual = usual_simulations(parsed)
    if isinstance(parsed, TrainedPlayer):
        most = simulations or STEP * usual
    elif isinstance(parsed, BuiltinPlayer) and parsed.kind == "mcts":
        usual = most = simulations or usual
    else:
        most = usual
    parts = EngineParts(Game(env), TimedSearch(player, usual, most))
    parts.search.prepare(parts.game.beginning)
    parts.game.copy().play(parts.game.legal[0])  # compiles a step, too
    return parts


def in_background(make: Callable[[], EngineParts]) -> Future[EngineParts]:
    """Starts `make` in a daemon thread."""
    future: Future[EngineParts] = Future()

    def run() -> None:
        try:
            future.set_result(make())
        except BaseException as error:  # raised again where the result is awaited
            future.set_exception(error)

    Thread(target=run, name="engine-load", daemon=True).start()
    return future
