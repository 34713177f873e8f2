"""The command `engine`: a player as an engine of another program."""

from __future__ import annotations

import sys

from podzero.config import GymnasiumConfig
from podzero.errors import ConfigError
from podzero.player_names import EnginePlayer, game_to_play, parse_player
from podzero.reading import standard_input
from podzero.tools.play.engine_parts import in_background, make_parts
from podzero.tools.play.gtp import GtpServer
from podzero.tools.play.uci import VARIANTS, UciServer


def serve(who: str, protocol: str, simulations: int | None = None, game: str | None = None) -> None:
    """Answers a controller on standard input and output until it quits.

    Args:
      who: the player, see `podzero.player_names`.
      protocol: `gtp` or `uci`.
      simulations: per move at most; by default four times as many as in training, which are searched without a limit of
        time.
      game: see `podzero.player_names.game_to_play`.

    Raises:
      ConfigError, WorkdirError, SnapshotError: see `podzero.evaluation.who.resolve`.
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
    """The title of the game, refused before anything is compiled if no engine can play it."""
    where = game_to_play(game, who)
    title = where if isinstance(where, str) else where.title
    if isinstance(where, GymnasiumConfig):
        raise ConfigError(f"{title} is no game for two: engines play board games")
    if isinstance(parse_player(who), EnginePlayer):
        raise ConfigError(f"player '{who}' is an engine itself: other programs can use it without podzero")
    if protocol == "uci" and title not in VARIANTS:
        raise ConfigError(f"UCI is for {' and '.join(VARIANTS)}, not for {title}; use --protocol gtp")
    return title
