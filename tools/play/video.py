"""Videos of episodes in single-player environments: MP4 with VP9, whose encoder has no copyleft licence, or GIF.

The episodes are those of `podzero evaluate --games 1` with the same player, simulations and seed. Not by gymnasium's
`RecordVideo`: its moviepy needs an older Pillow and brings a build of FFmpeg under the GPL.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from functools import cache
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import jax
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console

from podzero.config import GymnasiumConfig, SimulatorConfig
from podzero.core.errors import ConfigError, os_errors
from podzero.core.importing import import_extra
from podzero.core.types import Array, EnvState
from podzero.envs import SimulatorReplay, VectorEnv, VectorStep, make_env, observed_picture, rendering, simulator_errors
from podzero.evaluation.arena import Arena
from podzero.evaluation.episodes import Policy, play_episodes, random_policy, reward_scale
from podzero.evaluation.players import MovesPlayer, Player, SearchPlayer
from podzero.evaluation.resolve import acting, resolve
from podzero.files.players import TrainedPlayer, is_packed, parse_player
from podzero.files.workdir import written_together
from podzero.tools.play.picture import png_of

SUFFIXES = (".mp4", ".gif")
"""Suffixes of the supported file formats."""
PAUSE_S = 1.0
"""Seconds for which the last frame of an episode is shown."""
GIF_PICTURES_PER_SECOND = 25.0
"""Highest frame rate of a GIF; steps of faster episodes are skipped."""
_GIF_COLOURS = 128


MAX_FRAMES = 10_000
"""Most frames of an episode; later steps have only rewards and values."""
MAX_BYTES = 2**28
"""Size of an episode's frames, as PNG files, after which no more are added."""

Progress = Callable[[str], object]
"""Called with what is being done, in words."""


class Episode(NamedTuple):
    """An episode of T steps; its first F positions (F at most T + 1) have frames."""

    seed: int
    frames: list[bytes]
    """`[F]` PNG files: frame t shows the position before step t, frame T the terminal one."""
    rewards: list[float]
    """`[T]`, the reward of each step."""
    values: list[float]
    """`[T]`, the estimated discounted return before each step, in units of the rewards; empty without estimates."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.rewards)

    def add_frame(self, render: Callable[[], np.ndarray[Any, Any]]) -> None:
        """Adds the frame that `render` returns, `[H, W, 3]` uint8, unless there are `MAX_FRAMES` or `MAX_BYTES`."""
        # Rendering is slow, so not even that is done then.
        if len(self.frames) < MAX_FRAMES and sum(map(len, self.frames)) < MAX_BYTES:
            self.frames.append(png_of(render()))


class GymnasiumWatcher:
    """Records an agent in a gymnasium environment, which is rendered while the episode is played; see `record`."""

    def __init__(self, who: str, env: GymnasiumConfig, simulations: int | None) -> None:
        self.player, self.discount = who, env.discount
        self._policy: Policy | None = None
        if who != "random":
            self.player, self._policy = acting(who, env, simulations)
        self._rendering = rendering(env)
        self.steps_per_second = self._rendering.steps_per_second

    def episode(self, seed: int, progress: Progress) -> Episode:
        """Records an episode; one that fails is discarded and played again, as in evaluations."""
        recorded = Episode(seed, [], [], [])
        with closing(VectorEnv(self._rendering.config, 1, seed)) as environments:
            policy = self._policy or random_policy(environments.spec)

            def show(step: VectorStep) -> None:
                renders, seen = self._rendering.renders, step.observation[0]
                recorded.add_frame(lambda: environments.render()[0] if renders else observed_picture(seen))

            def choose(key: Array, step: VectorStep) -> tuple[Array, Array | None]:
                progress(f"seed {seed}: step {recorded.steps:,}")
                if not recorded.frames:
                    show(step)
                action, value = policy(key, step)
                if value is not None:
                    recorded.values.append(float(value[0]))
                return action, value

            def watch(step: VectorStep) -> None:
                if step.failed[0]:
                    for field in (recorded.frames, recorded.rewards, recorded.values):
                        field.clear()
                else:
                    recorded.rewards.append(float(step.reward[0]))
                    show(step)

            play_episodes(environments, choose, 1, jax.random.key(seed), watch=watch)
        return recorded


class SimulatorWatcher:
    """Records a player in a single-player simulator, as `GymnasiumWatcher`: plays a game, then renders its moves."""

    def __init__(self, who: str, config: SimulatorConfig, simulations: int | None) -> None:
        env = make_env(config)
        if env.spec.players != 1:
            raise ConfigError(f"{config.title} has two players; episodes are shown of environments for one")
        player = resolve(who, env, simulations, config.discount)
        if isinstance(player, MovesPlayer):
            raise ConfigError(f"player '{who}' only plays matches; it cannot act in {config.title}")
        self._arena, self._played_by, self._config = Arena(env), player, config
        self.player, self.discount = player.name, config.discount
        with closing(SimulatorReplay(config)) as replay:
            self.steps_per_second = replay.steps_per_second

    @simulator_errors()
    def episode(self, seed: int, progress: Progress) -> Episode:
        """Records an episode."""
        player = _RecordedPlayer(self._played_by, lambda moves: progress(f"seed {seed}: step {moves:,}"))
        self._arena.alone(player, 1, jax.random.key(seed))
        # Searches see rewards scaled in float32; people read those of the game.
        values = np.array(player.values, np.float32) / reward_scale(self._config)
        recorded = Episode(seed, [], [], values.astype(float).tolist())
        with closing(SimulatorReplay(self._config)) as replay:
            for reward in replay.play(player.seed, player.moves):
                recorded.rewards.append(reward)
                recorded.add_frame(replay.frame)
        # The reward of the start, which no move led to.
        del recorded.rewards[0]
        return recorded


class _RecordedPlayer:
    """A `Player` that records one game: its seed, moves and values."""

    def __init__(self, player: Player, progress: Callable[[int], object]) -> None:
        self._player, self._progress = player, progress
        self.name, self.deterministic = player.name, player.deterministic
        self.seed = 0
        self.moves: list[int] = []
        self.values: list[float] = []

    def choose(self, key: Array, states: EnvState) -> Array:
        """See `Player`."""
        self.seed = int(states.seed[0])
        if isinstance(self._player, SearchPlayer):
            found = self._player.search(key, states)
            self.values.append(float(found.value[0]))
            action = found.action
        else:
            action = self._player.choose(key, states)
        self.moves.append(int(action[0]))
        self._progress(len(self.moves))
        return action


def record(
    who: str,
    where: GymnasiumConfig | SimulatorConfig,
    simulations: int | None,
    file: Path | None,
    games: int,
    seed: int,
) -> dict[str, Any]:
    """Plays episodes and writes them to one video, by default in `videos/` of the player's working directory.

    Simulations are by default those of training. `seed` is the first episode's; later ones have the next.

    Returns:
      `game`, `player`, `file`, `seed`, and for each episode its number of `steps` and of `frames` (as many as steps,
      and one more, unless the video ends before the episode), its `returns`, and the `rewards` and `values` of its
      steps (empty if the player does not estimate values).
    """
    # Before the player is loaded, which takes seconds; the default file's name needs the loaded player.
    if file is not None:
        check_file(file)
    if isinstance(where, GymnasiumConfig):
        watcher: GymnasiumWatcher | SimulatorWatcher = GymnasiumWatcher(who, where, simulations)
    else:
        watcher = SimulatorWatcher(who, where, simulations)
    if file is None:
        file = _default_file(who, watcher.player, seed)
        check_file(file)
    played: list[Episode] = []
    frames: list[int] = []

    def shown() -> Iterator[Image.Image]:
        """Records episodes on demand: the frames of only one are in memory."""
        for episode_seed in range(seed, seed + games):
            episode = watcher.episode(episode_seed, status.update)
            played.append(episode._replace(frames=[]))
            frames.append(len(episode.frames))
            status.update(f"seed {episode_seed}: {episode.steps:,} steps; writing the video")
            yield from pictures(where.title, episode, watcher.discount, watcher.steps_per_second)

    with Console(stderr=True).status("starting") as status:
        write_video(file, shown(), watcher.steps_per_second)
    return {
        "game": where.title,
        "player": watcher.player,
        "file": str(file),
        "seed": seed,
        "steps": [episode.steps for episode in played],
        "frames": frames,
        "returns": [sum(episode.rewards) for episode in played],
        "rewards": [episode.rewards for episode in played],
        "values": [episode.values for episode in played],
    }


def _default_file(who: str, name: str, seed: int) -> Path:
    """`videos/step-STEP-seed-SEED.mp4` in the working directory of `who`, whose full name is `name`."""
    player = parse_player(who)
    if not isinstance(player, TrainedPlayer) or is_packed(who):
        raise ConfigError(f"'{who}' has no working directory of yours: name a file with --to episode.mp4")
    return player.workdir.root / "videos" / f"step-{name.rpartition('@')[2]}-seed-{seed}.mp4"


def check_file(path: Path) -> None:
    """Creates the file's folder, and checks that `write_video` can write the file."""
    if path.is_dir():
        raise ConfigError(f"--to {path}: this is a folder; name a file in it, for example {path / 'episode.mp4'}")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--to {path}: videos are written as {' or '.join(SUFFIXES)}, not as '{path.suffix}'")
    if path.suffix.lower() == ".mp4":
        import_extra("cv2", "a video as .mp4")
    with _unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path.parent).close()


def _unwritable(path: Path) -> AbstractContextManager[None]:
    return os_errors(ConfigError, f"{path} cannot be written", "name a file with --to")


def write_video(path: Path, shown: Iterator[Image.Image], steps_per_second: float) -> None:
    """Writes pictures of one size to a file, whose suffix is one of `SUFFIXES`."""
    write = _write_mp4 if path.suffix.lower() == ".mp4" else _write_gif
    with _unwritable(path), written_together(path.parent) as folder:
        write(folder / path.name, shown, steps_per_second)


def _write_mp4(path: Path, shown: Iterator[Image.Image], speed: float) -> None:
    opencv = import_extra("cv2", "a video as .mp4")
    first = next(shown)
    writer = opencv.VideoWriter(str(path), opencv.CAP_FFMPEG, opencv.VideoWriter_fourcc(*"vp09"), speed, first.size)
    if not writer.isOpened():
        raise ConfigError(
            f"OpenCV {opencv.__version__} cannot write {path.suffix}: it has no VP9 encoder. Install the package "
            "opencv-python-headless (extra `envs`), or write a .gif, which needs no encoder"
        )
    try:
        for picture in chain([first], shown):
            writer.write(opencv.cvtColor(np.asarray(picture), opencv.COLOR_RGB2BGR))
    finally:
        writer.release()


def _write_gif(path: Path, shown: Iterator[Image.Image], speed: float) -> None:
    every = max(1, round(speed / GIF_PICTURES_PER_SECOND))
    # Without dithering, areas that do not change stay equal from picture to picture, and the file small.
    images = (
        picture.quantize(_GIF_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        for picture in islice(shown, 0, None, every)
    )
    next(images).save(path, save_all=True, append_images=images, duration=1000 * every / speed, loop=0)


WIDTH = 640
"""Width of the video, in pixels."""
TALLEST = 520
"""Largest height of an episode's frame in the video, in pixels."""
_MARGIN, _HEADER, _TITLE, _CURVE = 20, 40, 36, 72
_ROW = _TITLE + _CURVE
_PAPER, _INK, _FUTURE = "#ffffff", "#1f2937", "#cbd5e1"


def pictures(title: str, episode: Episode, discount: float, steps_per_second: float) -> Iterator[Image.Image]:
    """A picture of one size for each frame, with the curves of value and return; the last one again for `PAUSE_S`."""
    curves = [("return so far", "#059669", np.cumsum([0.0, *episode.rewards]))]
    if episode.values:
        ahead = "value: rewards to come" + (f", discounted by {discount:g} per step" if discount < 1 else "")
        curves.insert(0, (ahead, "#2563eb", np.array(episode.values)))
    for step, png in enumerate(episode.frames):
        frame = fitted(Image.open(io.BytesIO(png)).convert("RGB"))
        below = _HEADER + frame.height
        height = below + len(curves) * _ROW + _MARGIN
        # Video encoders need even sides.
        picture = Image.new("RGB", (WIDTH, height + height % 2), _PAPER)
        picture.paste(frame, ((WIDTH - frame.width) // 2, _HEADER))
        draw = ImageDraw.Draw(picture)
        draw.rectangle((_MARGIN, _HEADER, WIDTH - _MARGIN, below), outline=_FUTURE)
        reward = f"reward {number(episode.rewards[step - 1])}" if step else ""
        header = f"{title.partition('/')[2]}   seed {episode.seed}   step {step:,} of {episode.steps:,}   {reward}"
        draw.text((_MARGIN, _HEADER // 2), header, _INK, _font(), "lm")
        for row, (name, colour, heights) in enumerate(curves):
            # The terminal position has no value.
            known = min(step, len(heights) - 1)
            least, most = number(heights.min(initial=0.0)), number(heights.max(initial=0.0))
            text = f"{name}   {number(heights[known])}   (from {least} to {most})"
            draw.text((_MARGIN, below + row * _ROW + _TITLE // 2), text, colour, _font(), "lm")
            line = points(heights, episode.steps, below + row * _ROW + _TITLE)
            draw.line(line, _FUTURE, 3)
            draw.line(line[: known + 1], colour, 3)
            draw.circle(line[known], 5, colour)
        yield picture
    yield from repeat(picture, round(PAUSE_S * steps_per_second))


def points(heights: np.ndarray[Any, Any], steps: int, top: int) -> list[tuple[float, float]]:
    """A curve over the steps of an episode, in pixels, between the lowest and the highest of its heights and 0."""
    low, high = heights.min(initial=0.0), heights.max(initial=0.0)
    across = _MARGIN + np.arange(len(heights)) * (WIDTH - 2 * _MARGIN) / max(steps, 1)
    down = top + (high - heights) * _CURVE / (high - low or 1.0)
    return list(zip(across.tolist(), down.tolist(), strict=True))


def fitted(frame: Image.Image) -> Image.Image:
    """Resizes a frame to the video's width and `TALLEST`."""
    scale = min((WIDTH - 2 * _MARGIN) / frame.width, TALLEST / frame.height)
    # Pixels of small frames stay sharp at whole multiples of their size.
    size = [max(1, round((int(scale) or scale) * side)) for side in frame.size]
    return frame.resize((size[0], size[1]), Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS)


def number(value: float) -> str:
    """Formats a value with about three digits."""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    # Adding 0 makes 0 of -0.
    return f"{round(value, digits) + 0.0:,.{digits}f}"


@cache
def _font() -> Any:
    return ImageFont.load_default(15)
