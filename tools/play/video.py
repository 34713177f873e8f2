"""Videos of episodes: MP4 with VP9, whose encoder has no copyleft licence, or GIF.

Not by gymnasium's `RecordVideo`: its moviepy needs an older Pillow and brings a build of FFmpeg under the GPL.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console

from podzero.config import GymnasiumConfig, SimulatorConfig
from podzero.core.errors import ConfigError
from podzero.core.importing import import_extra
from podzero.files.players import PREFIX, TrainedPlayer, parse_player
from podzero.tools.play.episode import Episode, GymnasiumWatcher, SimulatorWatcher

SUFFIXES = (".mp4", ".gif")
"""Suffixes of the supported file formats."""
PAUSE_S = 1.0
"""Seconds for which the last frame of an episode is shown."""
GIF_PICTURES_PER_SECOND = 25.0
"""Highest frame rate of a GIF; steps of faster episodes are skipped."""
_GIF_COLOURS = 128


def record(
    who: str,
    where: GymnasiumConfig | SimulatorConfig,
    simulations: int | None,
    file: Path | None,
    games: int,
    seed: int,
) -> dict[str, Any]:
    """Plays episodes and writes them to one video.

    Args:
      who: the player, see `podzero.files.players`.
      where: the environment.
      simulations: simulations per step; None for the number used in training.
      file: the video's file; None for one in `videos/` of the player's working directory.
      games: number of episodes.
      seed: the first episode's seed; later episodes have the next numbers.

    Returns:
      `game`, `player`, `file`, `seed`, and for each episode its `steps`, its `returns`, and the `rewards` and `values`
      of its steps (empty if the player does not estimate values).

    Raises:
      ConfigError, WorkdirError, SnapshotError: the player cannot act there, or the environment cannot be rendered.
      ConfigError: the file cannot be written, or a package is not installed.
      EnvironmentFailed, SimulatorError: the environment failed.
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

    def shown() -> Iterator[Image.Image]:
        """Records episodes on demand: the frames of only one are in memory."""
        for episode_seed in range(seed, seed + games):
            episode = watcher.episode(episode_seed, status.update)
            played.append(episode._replace(frames=[]))
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
        "returns": [sum(episode.rewards) for episode in played],
        "rewards": [episode.rewards for episode in played],
        "values": [episode.values for episode in played],
    }


def _default_file(who: str, name: str, seed: int) -> Path:
    """`videos/step-STEP-seed-SEED.mp4` in the working directory of `who`, whose full name is `name`."""
    player = parse_player(who)
    # Agents of the zoo have working directories too, but among podzero's own files.
    if not isinstance(player, TrainedPlayer) or who.startswith(PREFIX):
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(path, error) from None
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"--to {path}: the folder {path.parent} cannot be written")


def write_video(path: Path, shown: Iterator[Image.Image], steps_per_second: float) -> None:
    """Writes pictures of one size to a file, whose suffix is one of `SUFFIXES`."""
    # Replace the file only once all is written.
    partial = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix.lower()}")
    try:
        (_write_mp4 if partial.suffix == ".mp4" else _write_gif)(partial, shown, steps_per_second)
        os.replace(partial, path)
    except OSError as error:
        raise _not_writable(path, error) from None
    finally:
        partial.unlink(missing_ok=True)


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


def _not_writable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be written: {error.strerror or error}")


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
