"""The commands `engine` and `analyze --protocol katago`: a player for other programs, on standard input and output."""

from __future__ import annotations

import sys
from functools import partial

from podzero.config import ChanceGameConfig, EnvConfig, GymnasiumConfig
from podzero.core.errors import ConfigError
from podzero.core.reading import standard_input
from podzero.core.waiting import in_thread
from podzero.envs import GameOfChance, make_env
from podzero.envs.boards.go import GO_GAMES, Go
from podzero.evaluation.engines import UCI_VARIANTS
from podzero.evaluation.resolve import outlook_of, usual_simulations, with_simulations
from podzero.files.players import BuiltinPlayer, EnginePlayer, TrainedPlayer, game_to_play, knows_komi, parse_player
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.gtp import GtpServer
from podzero.tools.play.katago import KataGoServer
from podzero.tools.play.searching import STEP, EngineParts, Root, TimedSearch, make_player
from podzero.tools.play.uci import UciServer

ROOM = 1024
"""Most simulations of a position by default in KataGo's protocol, where the other program chooses their number."""
_NO_DICE = "is a game of chance, and no protocol here has dice"


def serve(
    who: str, protocol: str, simulations: int | None = None, game: str | None = None, resign_at: float | None = None
) -> None:
    """Answers the commands on standard input, in `gtp`, `uci` or `katago`, until the controller quits.

    At most `simulations` are made per move, by default `STEP` times those of training, in `katago` `ROOM`; `resign_at`:
    see `GtpServer`.
    """
    write = partial(print, file=sys.stdout, flush=True)
    where, player = _served_game(who, protocol, game), parse_player(who)
    most = simulations or (ROOM if protocol == "katago" and isinstance(player, TrainedPlayer) else None)
    parts = in_thread("engine-load", lambda: make_parts(who, most, where))
    match protocol:
        case "uci":
            UciServer(who, where.title, parts, write).run(standard_input())
        case "gtp":
            GtpServer(who, parts, write, resign_at).run(standard_input())
        case _:
            look = in_thread("network-load", lambda: outlook_of(who, make_env(where)))
            KataGoServer(who, parts, write, look).run(standard_input())


def _served_game(who: str, protocol: str, game: str | None) -> EnvConfig:
    """The game, after checking that the protocol can play it."""
    where = game_to_play(game, who)
    title = where.title
    if isinstance(where, GymnasiumConfig):
        raise ConfigError(f"{title} is a single-agent environment: engines play board games")
    if isinstance(where, ChanceGameConfig):
        raise ConfigError(f"{title} {_NO_DICE}")
    if isinstance(parse_player(who), EnginePlayer):
        raise ConfigError(f"player '{who}' is an engine itself: other programs can use it without podzero")
    if protocol == "katago" and title not in GO_GAMES:
        raise ConfigError(f"KataGo's protocol is for Go, not for {title}; leave out --protocol")
    if protocol == "uci" and title not in UCI_VARIANTS:
        raise ConfigError(f"UCI is for {' and '.join(UCI_VARIANTS)}, not for {title}; use --protocol gtp")
    return where


def make_parts(who: str, simulations: int | None, where: EnvConfig) -> EngineParts:
    """Makes the game and the player of `serve`, and compiles the player's searches."""
    env = make_env(where)
    if isinstance(env, GameOfChance):
        raise ConfigError(f"{env.spec.name} {_NO_DICE}")
    parsed, discount = parse_player(who), where.discount
    usual = most = usual_simulations(parsed)
    if isinstance(parsed, TrainedPlayer):
        most = simulations or STEP * usual
    elif isinstance(parsed, BuiltinPlayer) and parsed.kind == "mcts":
        usual = most = simulations or usual
    search = TimedSearch(
        lambda size: make_player(with_simulations(who, size), env, size, discount, keep_nodes=True), usual, most
    )
    parts = EngineParts(PlayableGame(env), search, isinstance(env, Go) and knows_komi(parsed))
    parts.search.prepare(Root.of(parts.game.beginning))
    # Compiles the game's step too.
    parts.game.copy().play(parts.game.legal[0])
    return parts
