"""The part of `play` that shows an agent acting in an environment for one: as a video, or on a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.status import Status

from podzero.config import EnvConfig, GymnasiumConfig, SimulatorConfig
from podzero.envs import renders, spec_of
from podzero.errors import ConfigError
from podzero.importing import import_extra
from podzero.player_names import TrainedPlayer, parse_player
from podzero.zoo_agents import PREFIX

if TYPE_CHECKING:  # they need Pillow, which is optional
    from podzero.tools.play.episode import Episode
    from podzero.tools.play.watching import Watcher


class Video(NamedTuple):
    """What was asked for of episodes; None where nothing was."""

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
    from podzero.tools.play.video import check_file, write_video
    from podzero.tools.play.watching import watcher_of

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
