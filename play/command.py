"""The command `play`: a person against a player, in the terminal or on a page."""

from __future__ import annotations

from functools import partial

from rich.console import Console

from podzero.config import EnvConfig, GymnasiumConfig
from podzero.envs import make_env
from podzero.errors import ConfigError
from podzero.evaluation.players import MovesPlayer, Player
from podzero.evaluation.who import resolve
from podzero.play.game import Game
from podzero.play.searching import PositionSearch
from podzero.play.terminal import TerminalGame
from podzero.player_names import BuiltinPlayer, EnginePlayer, game_to_play, parse_player
from podzero.protocols import Env


def play(
    who: str, others: list[str], game: str | None, simulations: int, second: bool, web: bool, port: int | None
) -> None:
    """Plays games until the person ends it.

    Args:
      who: the person's opponent, see `podzero.player_names`.
      others: players that are asked about each position as well, on the page.
      game: as for `evaluate`.
      simulations: of each search.
      second: whether the opponent begins.
      web: on a page instead of in the terminal.
      port: of the page; None takes a free one.

    Raises:
      ConfigError, WorkdirError, SnapshotError: a player does not exist, or cannot play this game.
      ConfigError: the environment has no players who take turns, NiceGUI is not installed, or the port is taken.
    """
    where = game_to_play(game, who, *others)
    if isinstance(where, GymnasiumConfig):
        raise ConfigError(f"{where.title} is not played in turns; `podzero evaluate {who}` lets the agent act in it")
    env = make_env(where)
    players = {name: PositionSearch(_maker(name, env, where)) for name in (who, *others)}
    for search in players.values():
        search.name(simulations)  # refuses wrong names before anything is shown
    if not web:
        TerminalGame(Game(env), players[who], simulations, int(second), Console()).run()
        return
    try:
        from podzero.play.web import serve
    except ModuleNotFoundError as missing:
        raise ConfigError(f"the page needs {missing.name}: install the extra `web` (uv sync --extra web)") from None
    serve(env, players, simulations, port)


def _maker(name: str, env: Env, where: str | EnvConfig) -> partial[Player]:
    """Makes a player with a number of simulations; built-in players have their own."""
    discount = 1.0 if isinstance(where, str) else where.discount
    parsed = parse_player(name)
    if isinstance(parsed, EnginePlayer):
        raise ConfigError(
            f"'{name}' is a program of its own, with front ends of its own; `podzero evaluate WHO --opponent {name}` "
            "lets an agent play against it"
        )
    return partial(_made, name, env, discount, isinstance(parsed, BuiltinPlayer))


def _made(name: str, env: Env, discount: float, built_in: bool, simulations: int) -> Player:
    player = resolve(name, env, None if built_in else simulations, discount, keep_nodes=True)
    assert not isinstance(player, MovesPlayer)
    return player
