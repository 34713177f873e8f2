"""The command `play`: a person against a player, in the terminal or on a page."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rich.console import Console

from podzero.config import EnvConfig, GymnasiumConfig
from podzero.envs import make_env
from podzero.errors import ConfigError
from podzero.evaluation.kept_games import KeptGame, kept_games
from podzero.evaluation.players import MovesPlayer, Player
from podzero.evaluation.who import resolve
from podzero.play.searching import PositionSearch
from podzero.play.session import Session
from podzero.play.terminal import TerminalGame
from podzero.player_names import BuiltinPlayer, EnginePlayer, TrainedPlayer, game_to_play, parse_player
from podzero.protocols import Env


def play(
    who: str,
    others: list[str],
    game: str | None,
    simulations: int,
    second: bool,
    web: bool,
    port: int | None,
    games: Path | None,
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
      games: the working directory of a run, or the folder of a tournament, whose games the page shows; None takes those
        of the players that are runs.

    Raises:
      ConfigError, WorkdirError, SnapshotError: a player does not exist, or cannot play this game.
      ConfigError: the environment has no players who take turns, NiceGUI is not installed, the port is taken, `games`
        holds no games, or something is given that only the page has.
    """
    where = game_to_play(game, who, *others)
    if isinstance(where, GymnasiumConfig):
        raise ConfigError(f"{where.title} is not played in turns; `podzero evaluate {who}` lets the agent act in it")
    env = make_env(where)
    players = {name: PositionSearch(_maker(name, env, where)) for name in (who, *others)}
    for search in players.values():
        search.name(simulations)  # refuses wrong names before anything is shown
    if not web:
        if others or games is not None or port is not None:
            raise ConfigError("other players to compare with, --games and --port are for the page: add --web")
        TerminalGame(Session(env), players[who], simulations, int(second), Console()).run()
        return
    try:
        from podzero.play.web import serve
    except ModuleNotFoundError as missing:
        raise ConfigError(f"the page needs {missing.name}: install the extra `web` (uv sync --extra web)") from None
    serve(env, players, simulations, port, _kept(games, (who, *others)))


def _kept(folder: Path | None, players: Iterable[str]) -> list[KeptGame]:
    if folder is not None:
        return kept_games(folder)
    kept = []
    for workdir in {one.workdir.root for one in map(parse_player, players) if isinstance(one, TrainedPlayer)}:
        with suppress(ConfigError):  # nothing was kept
            kept += kept_games(workdir)
    return kept


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
