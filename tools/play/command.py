"""The command `play`: a person against a player, in the terminal or on a page, or an agent that is watched."""

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
from podzero.envs import make_env, renders, spec_of
from podzero.errors import ConfigError
from podzero.evaluation.games import KeptGame, kept_games
from podzero.evaluation.players import MovesPlayer, Player
from podzero.evaluation.resolve import resolve
from podzero.importing import how_to_install, import_extra
from podzero.listen_address import free_address
from podzero.player_names import PREFIX, BuiltinPlayer, EnginePlayer, TrainedPlayer, game_to_play, parse_player
from podzero.protocols import Env
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import PositionSearch
from podzero.tools.play.terminal import TerminalGame

if TYPE_CHECKING:
    from podzero.tools.play.episode import Episode, Watcher

USUAL_SIMULATIONS = 128
"""Simulations per search in a game, unless the person gives another number."""


class PageOptions(NamedTuple):
    """The options of the web page."""

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
        with suppress(ConfigError):  # nothing was kept
            kept += kept_games(workdir)
    return kept


def _page() -> ModuleType:
    """The module of the page, whose packages are optional."""
    try:
        from podzero.tools.play import server
    except ModuleNotFoundError as missing:
        raise ConfigError(f"the page needs {missing.name}: {how_to_install('web')}") from None
    return server


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


class Video(NamedTuple):
    """The options of a video; None where an option was not given."""

    file: Path | None = None
    """Where the video is written."""
    games: int | None = None
    """Episodes in it."""
    seed: int | None = None
    """Of the first episode; the next ones have the following seeds."""

    @property
    def options(self) -> list[str]:
        """The options that were given."""
        given = {"--to": self.file, "--games": self.games, "--seed": self.seed}
        return [name for name, value in given.items() if value is not None]


def is_watched(where: str | EnvConfig, video: Video) -> bool:
    """Whether people watch what is played, instead of playing: in an environment for one that can be shown."""
    if isinstance(where, SimulatorConfig):
        return (bool(video.options) or renders(where)) and spec_of(where).players == 1
    return isinstance(where, GymnasiumConfig)


def record(who: str, where: GymnasiumConfig | SimulatorConfig, simulations: int | None, video: Video) -> dict[str, Any]:
    """Plays episodes and writes them as one video.

    Args:
      who: see `podzero.player_names`.
      where: the environment.
      simulations: per step; None takes as many as in training.
      video: the file, by default one below `videos/` in the working directory of the player.

    Returns:
      `game, player, file, pictures, seed, steps, returns` (the latter two for each episode) and `cut`, what is missing.

    Raises:
      ConfigError, WorkdirError, SnapshotError: the player cannot act there, or the environment cannot be rendered.
      ConfigError: the file cannot be written, or a package for it is missing.
      EnvironmentFailed, SimulatorError: the environment failed.
    """
    import_extra("PIL", "a video of an environment")
    from podzero.tools.play.episode import watcher_of
    from podzero.tools.play.video import check_file, write_video

    if video.file is not None:
        check_file(video.file)
    watcher = watcher_of(who, where, simulations)
    seed, games = video.seed or 0, video.games or 1
    file = video.file or _default_file(who, watcher.subject.player, seed)
    check_file(file)
    with Console(stderr=True).status("starts") as status:
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
    """Records episodes, keeps what is told of them, and shows how far it is."""

    def __init__(self, watcher: Watcher, status: Status) -> None:
        self._watcher = watcher
        self._status = status
        self.steps: list[int] = []
        self.returns: list[float] = []
        self.cut: str | None = None

    def episodes(self, seeds: Iterable[int]) -> Iterator[Episode]:
        """One episode for each seed, recorded when it is asked for."""
        for seed in seeds:
            episode = self._watcher.episode(seed, partial(self._goes_on, seed))
            self.steps.append(episode.steps)
            self.returns.append(float(episode.returns[-1]))
            self.cut = self.cut or episode.cut
            self._status.update(
                f"seed {seed}: return {self.returns[-1]:,.1f}, {episode.steps:,} steps; writes the video"
            )
            yield episode

    def _goes_on(self, seed: int, step: int) -> bool:
        self._status.update(f"seed {seed}: step {step:,}")
        return True


def _default_file(who: str, name: str, seed: int) -> Path:
    """`videos/step-STEP-seed-SEED.mp4` in the working directory of `who`, whose full name is `name`."""
    player = parse_player(who)
    if not isinstance(player, TrainedPlayer) or who.startswith(PREFIX):
        raise ConfigError(f"'{who}' has no working directory of yours: say where to write with --to episode.mp4")
    return player.workdir.root / "videos" / f"step-{name.rpartition('@')[2]}-seed-{seed}.mp4"
