"""The command `play`: a person plays against a player, in the terminal or on a page, or watches an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from podzero.config import EnvConfig, GymnasiumConfig, SimulatorConfig
from podzero.core.errors import ConfigError
from podzero.core.importing import how_to_install, import_extra
from podzero.core.protocols import Env
from podzero.envs import make_env, renders, spec_of
from podzero.evaluation.games import KeptGame, kept_games
from podzero.files.players import EnginePlayer, TrainedPlayer, game_to_play, parse_player
from podzero.tools.commands.listen_address import free_address
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import PositionSearch, make_player
from podzero.tools.play.terminal import TerminalGame

USUAL_SIMULATIONS = 128
"""Default number of simulations per search in games."""


class PageOptions(NamedTuple):
    """The options of the web page."""

    others: Sequence[str] = ()
    """Players to compare with in each position."""
    kept: Path | None = None
    """A run's working directory or a tournament's folder, whose games can be stepped through; None for the games of
    the players' own runs."""
    host: str | None = None
    """The address to listen on; None for one that only this machine reaches."""
    port: int | None = None
    """The port to listen on; None for a free one."""

    @property
    def options(self) -> list[str]:
        """The arguments and options that were given."""
        return [*self.others, *_given({"--kept": self.kept, "--host": self.host, "--port": self.port})]


class Video(NamedTuple):
    """The options of a video; None where an option was not given."""

    file: Path | None = None
    """The file to write."""
    games: int | None = None
    """Number of episodes."""
    seed: int | None = None
    """The first episode's seed; later episodes have the next numbers."""

    @property
    def options(self) -> list[str]:
        """The options that were given."""
        return _given({"--to": self.file, "--games": self.games, "--seed": self.seed})


def _given(options: Mapping[str, object]) -> list[str]:
    return [name for name, value in options.items() if value is not None]


def play(
    who: str, game: str | None, simulations: int | None, second: bool, web: bool, page: PageOptions, video: Video
) -> dict[str, Any] | None:
    """Plays games until the person quits; in single-player environments, writes a video of the agent's episodes.

    Args:
      who: the person's opponent or the agent to watch, see `podzero.files.players`.
      game: see `podzero.files.players.game_to_play`.
      simulations: simulations per search; None for `USUAL_SIMULATIONS` in games and the number used in training
        elsewhere.
      second: whether the opponent plays first.
      web: whether to serve a page instead of using the terminal.
      page: options of the page.
      video: options of a video of a single-player environment.

    Returns:
      the result of `podzero.tools.play.video.record` if a video was written, else None.

    Raises:
      ConfigError, WorkdirError, SnapshotError: a player does not exist or cannot play this game.
      ConfigError: an option does not fit the game, or a package is not installed.
      AddressNotUsable: the page cannot be served at the requested address.
      EnvironmentFailed, SimulatorError: the environment failed.
    """
    where = game_to_play(game, who, *page.others)
    if is_watched(where, video):
        assert isinstance(where, GymnasiumConfig | SimulatorConfig)
        of_games = ["--second"] * second + ["--web"] * web + page.options
        _refuse(where.title, "shows a single agent, in a video", of_games)
        import_extra("PIL", "a video of an environment")
        from podzero.tools.play.video import record

        return record(who, where, simulations, video.file, video.games or 1, video.seed or 0)
    if not web:
        _refuse("the terminal", "has no page", page.options, "or add --web")
    env = make_env(where)
    if env.spec.players > 2:
        raise ConfigError(
            f"{env.spec.name} has {env.spec.players} players, and `podzero play` shows games for one or two; "
            "see `podzero evaluate` and `podzero tournament`"
        )
    _refuse(env.spec.name, "is played against a person, not recorded", video.options)
    players = {name: _search(name, env, where) for name in (who, *page.others)}
    simulations = simulations or USUAL_SIMULATIONS
    for search in players.values():
        # This loads the players, so that errors come before anything is shown.
        search.name(simulations)
    if web:
        try:
            from podzero.tools.play.server import serve
        except ModuleNotFoundError as missing:
            raise ConfigError(f"the page needs {missing.name}: {how_to_install('web')}") from None
        address = free_address(page.host, page.port)
        serve(env, players, simulations, address, _kept(page.kept, players), _rendered_picture(where))
    else:
        TerminalGame(PlayableGame(env), players[who], simulations, int(second), Console()).run()
    return None


def is_watched(where: EnvConfig, video: Video) -> bool:
    """Whether `where` is a single-player environment, in which people watch an agent instead of playing."""
    if isinstance(where, SimulatorConfig):
        # A simulator that cannot render is played in the terminal, unless a video is requested.
        return (bool(video.options) or renders(where)) and spec_of(where).players == 1
    return isinstance(where, GymnasiumConfig)


def _refuse(title: str, why: str, options: list[str], or_else: str = "") -> None:
    if options:
        raise ConfigError(f"{title} {why}: remove {' '.join([*options, or_else]).strip()}")


def _rendered_picture(where: EnvConfig) -> Callable[[PlayableGame], str] | None:
    if not isinstance(where, SimulatorConfig) or not renders(where):
        return None
    import_extra("PIL", "the picture of a game of your own")
    from podzero.tools.play.picture import RenderedPicture

    return RenderedPicture(where)


def _kept(folder: Path | None, players: Iterable[str]) -> list[KeptGame]:
    if folder is not None:
        return kept_games(folder)
    kept = []
    parsed = map(parse_player, players)
    for workdir in dict.fromkeys(one.workdir.root for one in parsed if isinstance(one, TrainedPlayer)):
        # Raised by runs that kept no games.
        with suppress(ConfigError):
            kept += kept_games(workdir)
    return kept


def _search(name: str, env: Env, where: EnvConfig) -> PositionSearch:
    if isinstance(parse_player(name), EnginePlayer):
        raise ConfigError(
            f"'{name}' is another program, with its own user interfaces; `podzero evaluate WHO --opponent {name}` lets "
            "an agent play against it"
        )
    discount = where.discount
    return PositionSearch(lambda simulations: make_player(name, env, simulations, discount, keep_nodes=True))
