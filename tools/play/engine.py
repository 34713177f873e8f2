"""The command `engine`: serves a player to another program, by GTP or UCI on standard input and output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from podzero.config import GymnasiumConfig
from podzero.envs import make_env
from podzero.errors import ConfigError
from podzero.evaluation.engines import UCI_VARIANTS
from podzero.evaluation.evaluate import discount_of
from podzero.evaluation.players import MovesPlayer, Player
from podzero.evaluation.resolve import resolve
from podzero.player_names import BuiltinPlayer, EnginePlayer, TrainedPlayer, game_to_play, parse_player
from podzero.reading import standard_input
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.gtp import GtpServer
from podzero.tools.play.searching import usual_simulations, with_simulations
from podzero.tools.play.timed_search import STEP, EngineParts, TimedSearch
from podzero.tools.play.uci import UciServer


def serve(who: str, protocol: str, simulations: int | None = None, game: str | None = None) -> None:
    """Answers a controller on standard input and output until it quits.

    Args:
      who: the player, see `podzero.player_names`.
      protocol: `gtp` or `uci`.
      simulations: the most per move; by default `STEP` times those of training, which are used without a time limit.
      game: see `podzero.player_names.game_to_play`.

    Raises:
      ConfigError, WorkdirError, SnapshotError: see `podzero.evaluation.resolve.resolve`.
      ConfigError: the protocol does not suit the game.
    """
    output = sys.stdout

    def write(line: str) -> None:
        output.write(f"{line}\n")
        output.flush()

    title = _served_game(who, protocol, game)
    parts = in_background(lambda: make_parts(who, simulations, game))
    server = UciServer(who, title, parts, write) if protocol == "uci" else GtpServer(who, parts, write)
    server.run(standard_input())


def _served_game(who: str, protocol: str, game: str | None) -> str:
    """The title of the game. Checks, before anything is compiled, that it can be played by the protocol."""
    where = game_to_play(game, who)
    title = where if isinstance(where, str) else where.title
    if isinstance(where, GymnasiumConfig):
        raise ConfigError(f"{title} is a single-agent environment: engines play board games")
    if isinstance(parse_player(who), EnginePlayer):
        raise ConfigError(f"player '{who}' is an engine itself: other programs can use it without podzero")
    if protocol == "uci" and title not in UCI_VARIANTS:
        raise ConfigError(f"UCI is for {' and '.join(UCI_VARIANTS)}, not for {title}; use --protocol gtp")
    return title


def make_parts(who: str, simulations: int | None, game: str | None) -> EngineParts:
    """Makes the game and the player, and compiles its searches; see `serve`."""
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
    parts = EngineParts(PlayableGame(env), TimedSearch(player, usual, most))
    parts.search.prepare(parts.game.beginning)
    parts.game.copy().play(parts.game.legal[0])  # compiles a step as well
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
