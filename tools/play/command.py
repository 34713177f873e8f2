"""The command `play`: a person against a player, in the terminal or on a page, or an agent that is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rich.console import Console

from podzero.config import EnvConfig, GymnasiumConfig, SimulatorConfig
from podzero.envs import make_env, renders
from podzero.errors import ConfigError
from podzero.evaluation.kept_games import KeptGame, kept_games
from podzero.evaluation.players import MovesPlayer, Player
from podzero.evaluation.who import resolve
from podzero.importing import how_to_install, import_extra
from podzero.listen_address import free_address
from podzero.player_names import BuiltinPlayer, EnginePlayer, TrainedPlayer, game_to_play, parse_player
from podzero.protocols import Env
from podzero.tools.play.game import Game
from podzero.tools.play.searching import PositionSearch
from podzero.tools.play.terminal import TerminalGame
from podzero.tools.play.watch_command import Video, is_watched, record

USUAL_SIMULATIONS = 128
"""Of a search in a game, unless the person asks for another number."""


class PageOptions(NamedTuple):
    """What was asked for of the page."""

    others: Sequence[str] = ()
    """Players that are asked about each position of a game as well."""
    kept: Path | None = None
    """The working directory of a run, or the folder of a tournament, whose games can be stepped through; None takes
    those of the players that are runs."""
    host: str | None = None
    """The address to listen on; None takes one that only this machine reaches."""
    port: int | None = None
    """None takes a free one."""

    @property
    def options(self) -> list[str]:
        """The options that were given."""
        kept = [] if self.kept is None else ["--kept"]
        return [*self.others, *kept, *self.listening]

    @property
    def listening(self) -> list[str]:
        """Those that say where the page is served."""
        given = {"--host": self.host, "--port": self.port}
        return [name for name, value in given.items() if value is not None]


def play(
    who: str, game: str | None, simulations: int | None, second: bool, web: bool, page: PageOptions, video: Video
) -> dict[str, Any] | None:
    """Plays games until the person ends it; in an environment for one, shows how the agent acts.

    Args:
      who: the person's opponent, or the agent to watch; see `podzero.player_names`.
      game: as for `evaluate`.
      simulations: of each search; None takes `USUAL_SIMULATIONS` in games, and as many as in training elsewhere.
      second: whether the opponent begins.
      web: on a page instead of in the terminal.
      page: what the page shows.
      video: of an environment for one.

    Returns:
      what `record` says of a video that was written, else None.

    Raises:
      ConfigError, WorkdirError, SnapshotError: a player does not exist, or cannot play this game.
      ConfigError: an option does not fit the game, or a package is not installed.
      AddressNotUsable: the page cannot be served where it was asked for.
      EnvironmentFailed, SimulatorError: the environment failed.
    """
    where = game_to_play(game, who, *page.others)
    if is_watched(where, video):
        assert isinstance(where, GymnasiumConfig | SimulatorConfig)
        of_games = [option for option in page.options if option not in page.listening]
        _refuse(where.title, "shows a single agent", ["--second"] * second + of_games)
        if not web:
            _refuse("a video", "is written to a file, not served", page.listening)
            return record(who, where, simulations, video)
        _refuse(where.title, "writes no video with --web", [o for o in video.options if o != "--seed"])
        _page().watch(who, where, simulations, video.seed or 0, free_address(page.host, page.port))
        return None
    if not web:
        _refuse("the terminal", "has no page", page.options, "or add --web")
    env = make_env(where)
    _refuse(env.spec.name, "is played against a person, not recorded", video.options)
    players = {name: PositionSearch(_maker(name, env, where)) for name in (who, *page.others)}
    simulations = simulations or USUAL_SIMULATIONS
    for search in players.values():
        search.name(simulations)  # refuses wrong names before anything is shown
    if web:
        address = free_address(page.host, page.port)
        _page().serve_game(env, players, simulations, address, _kept(page.kept, players), _own_picture(where))
    else:
        TerminalGame(Game(env), players[who], simulations, int(second), Console()).run()
    return None


def _refuse(title: str, why: str, options: list[str], or_else: str = "") -> None:
    if options:
        raise ConfigError(f"{title} {why}: remove {' '.join([*options, or_else]).strip()}")


def _own_picture(where: str | EnvConfig) -> Callable[[Game], str] | None:
    if not isinstance(where, SimulatorConfig) or not renders(where):
        return None
    import_extra("PIL", "the picture of a game of your own")
    from podzero.tools.play.own_picture import OwnPicture

    return OwnPicture(where)


def _kept(folder: Path | None, players: Iterable[str]) -> list[KeptGame]:
    if folder is not None:
        return kept_games(folder)
    kept = []
    parsed = map(parse_player, players)
    for workdir in dict.fromkeys(one.workdir.root for one in parsed if isinstance(one, TrainedPlayer)):
        with suppress(ConfigError):  # nothing was kept
            kept += kept_games(workdir)
    return kept


def _page() -> ModuleType:
    """The module of the page, whose packages are optional."""
    try:
        from podzero.tools.play import web
    except ModuleNotFoundError as missing:
        raise ConfigError(f"the page needs {missing.name}: {how_to_install('web')}") from None
    return web


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
