"""The command `play`: a person plays against a player, in the terminal or on a page, or watches an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.status import Status

from podzero.config import EnvConfig, GymnasiumConfig, SimulatorConfig
from podzero.core.errors import ConfigError
from podzero.core.importing import how_to_install, import_extra
from podzero.core.protocols import Env
from podzero.envs import make_env, renders, spec_of
from podzero.evaluation.evaluate import discount_of
from podzero.evaluation.games import KeptGame, kept_games
from podzero.files.players import PREFIX, EnginePlayer, TrainedPlayer, game_to_play, parse_player
from podzero.tools.commands.listen_address import free_address
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import PositionSearch, make_player
from podzero.tools.play.terminal import TerminalGame

if TYPE_CHECKING:
    from podzero.tools.play.episode import PlayedEpisode, Watcher

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
        kept = [] if self.kept is None else ["--kept"]
        return [*self.others, *kept, *self.listening]

    @property
    def listening(self) -> list[str]:
        """Those of `options` that say where the page is served."""
        given = {"--host": self.host, "--port": self.port}
        return [name for name, value in given.items() if value is not None]


def play(
    who: str, game: str | None, simulations: int | None, second: bool, web: bool, page: PageOptions, video: Video
) -> dict[str, Any] | None:
    """Plays games until the person quits; in single-player environments, shows the agent's episodes.

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
      the result of `record` if a video was written, else None.

    Raises:
      ConfigError, WorkdirError, SnapshotError: a player does not exist or cannot play this game.
      ConfigError: an option does not fit the game, or a package is not installed.
      AddressNotUsable: the page cannot be served at the requested address.
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
        address = free_address(page.host, page.port)
        _page().serve_game(env, players, simulations, address, _kept(page.kept, players), _own_picture(where))
    else:
        TerminalGame(PlayableGame(env), players[who], simulations, int(second), Console()).run()
    return None


def _refuse(title: str, why: str, options: list[str], or_else: str = "") -> None:
    if options:
        raise ConfigError(f"{title} {why}: remove {' '.join([*options, or_else]).strip()}")


def _own_picture(where: str | EnvConfig) -> Callable[[PlayableGame], str] | None:
    if not isinstance(where, SimulatorConfig) or not renders(where):
        return None
    import_extra("PIL", "the picture of a game of your own")
    from podzero.tools.play.picture import OwnPicture

    return OwnPicture(where)


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


def _page() -> ModuleType:
    """The page's module, which needs optional packages."""
    try:
        from podzero.tools.play import server
    except ModuleNotFoundError as missing:
        raise ConfigError(f"the page needs {missing.name}: {how_to_install('web')}") from None
    return server


def _search(name: str, env: Env, where: str | EnvConfig) -> PositionSearch:
    if isinstance(parse_player(name), EnginePlayer):
        raise ConfigError(
            f"'{name}' is another program, with its own user interfaces; `podzero evaluate WHO --opponent {name}` lets "
            "an agent play against it"
        )
    discount = discount_of(where)
    return PositionSearch(lambda simulations: make_player(name, env, simulations, discount, keep_nodes=True))


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
        given = {"--to": self.file, "--games": self.games, "--seed": self.seed}
        return [name for name, value in given.items() if value is not None]


def is_watched(where: str | EnvConfig, video: Video) -> bool:
    """Whether `where` is a single-player environment, in which people watch an agent instead of playing."""
    if isinstance(where, SimulatorConfig):
        # A simulator that cannot render is played in the terminal, unless a video is requested.
        return (bool(video.options) or renders(where)) and spec_of(where).players == 1
    return isinstance(where, GymnasiumConfig)


def record(who: str, where: GymnasiumConfig | SimulatorConfig, simulations: int | None, video: Video) -> dict[str, Any]:
    """Plays episodes and writes them to one video.

    Args:
      who: the player, see `podzero.files.players`.
      where: the environment.
      simulations: simulations per step; None for the number used in training.
      video: options of the video; its file is by default in `videos/` of the player's working directory.

    Returns:
      `game`, `player`, `file`, `pictures` (frames of the video), `seed`, `steps` and `returns` (one per episode), and
      `cut` (see `PlayedEpisode.cut`).

    Raises:
      ConfigError, WorkdirError, SnapshotError: the player cannot act there, or the environment cannot be rendered.
      ConfigError: the file cannot be written, or a package is not installed.
      EnvironmentFailed, SimulatorError: the environment failed.
    """
    import_extra("PIL", "a video of an environment")
    from podzero.tools.play.episode import watcher_of
    from podzero.tools.play.video import check_file, write_video

    # Before the player is loaded, which takes seconds; the default file's name needs the loaded player.
    if video.file is not None:
        check_file(video.file)
    watcher = watcher_of(who, where, simulations)
    seed, games = video.seed or 0, video.games or 1
    file = video.file or _default_file(who, watcher.subject.player, seed)
    check_file(file)
    with Console(stderr=True).status("starting") as status:
        recorder = _Recorder(watcher, status)
        pictures = write_video(file, recorder.episodes(range(seed, seed + games)))
    return {
        "game": watcher.subject.environment,
        "player": watcher.subject.player,
        "file": str(file),
        "pictures": pictures,
        "seed": seed,
        "steps": recorder.steps,
        "returns": recorder.returns,
        "cut": recorder.cut,
    }


class _Recorder:
    """Records episodes, keeps their statistics, and shows progress."""

    def __init__(self, watcher: Watcher, status: Status) -> None:
        self._watcher = watcher
        self._status = status
        self.steps: list[int] = []
        self.returns: list[float] = []
        self.cut: str | None = None

    def episodes(self, seeds: Iterable[int]) -> Iterator[PlayedEpisode]:
        """Yields an episode for each seed, recorded on demand: only one is in memory."""
        for seed in seeds:
            episode = self._watcher.episode(seed, partial(self._keep_going, seed))
            self.steps.append(episode.steps)
            self.returns.append(float(episode.returns[-1]))
            self.cut = self.cut or episode.cut
            self._status.update(
                f"seed {seed}: return {self.returns[-1]:,.1f}, {episode.steps:,} steps; writing the video"
            )
            yield episode

    def _keep_going(self, seed: int, step: int) -> bool:
        self._status.update(f"seed {seed}: step {step:,}")
        return True


def _default_file(who: str, name: str, seed: int) -> Path:
    """`videos/step-STEP-seed-SEED.mp4` in the working directory of `who`, whose full name is `name`."""
    player = parse_player(who)
    # Agents of the zoo have working directories too, but among podzero's own files.
    if not isinstance(player, TrainedPlayer) or who.startswith(PREFIX):
        raise ConfigError(f"'{who}' has no working directory of yours: name a file with --to episode.mp4")
    return player.workdir.root / "videos" / f"step-{name.rpartition('@')[2]}-seed-{seed}.mp4"
