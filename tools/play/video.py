"""Writes episodes as videos: MP4 with VP9, whose encoder has no copyleft licence, or GIF."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from podzero.core.errors import ConfigError
from podzero.core.importing import import_extra
from podzero.tools.play.episode import Curve, Numbers, PlayedEpisode, curves_of, number

SUFFIXES = (".mp4", ".gif")
"""Suffixes of the supported file formats."""
PAUSE_S = 1.0
"""Seconds for which the last frame of an episode is shown."""
GIF_PICTURES_PER_SECOND = 25.0
"""Highest frame rate of a GIF; steps of faster episodes are skipped."""
_GIF_COLOURS = 128


def check_file(path: Path) -> None:
    """Creates the file's folder, and checks that `write_video` can write the file.

    Raises:
      ConfigError: the suffix is unknown, the folder cannot be written, or the encoder is not installed.
    """
    if path.is_dir():
        raise ConfigError(f"--to {path}: this is a folder; name a file in it, for example {path / 'episode.mp4'}")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--to {path}: videos are written as {' or '.join(SUFFIXES)}, not as '{path.suffix}'")
    if path.suffix.lower() == ".mp4":
        _opencv()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(path, error) from None
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"--to {path}: the folder {path.parent} cannot be written")


def write_video(path: Path, episodes: Iterable[PlayedEpisode]) -> int:
    """Writes episodes one after another to a video.

    Args:
      path: the file, whose suffix is one of `SUFFIXES`.
      episodes: at least one episode, all of one environment; a generator may record them on demand.

    Returns:
      the video's number of pictures.

    Raises:
      ConfigError: the encoder is not installed, or the file cannot be written.
    """
    # Replace the file only once all is written.
    partial = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix.lower()}")
    rest = iter(episodes)
    first = next(rest)
    speed = first.subject.steps_per_second
    shown = chain.from_iterable(_with_pause(episode) for episode in chain([first], rest))
    try:
        count = (_write_mp4 if partial.suffix == ".mp4" else _write_gif)(partial, shown, speed)
        os.replace(partial, path)
    except OSError as error:
        raise _not_writable(path, error) from None
    finally:
        partial.unlink(missing_ok=True)
    return count


def _with_pause(episode: PlayedEpisode) -> Iterator[Image.Image]:
    picture = None
    for picture in pictures(episode):
        yield picture
    for _ in range(round(PAUSE_S * episode.subject.steps_per_second) if picture else 0):
        assert picture is not None
        yield picture


def _write_mp4(path: Path, shown: Iterator[Image.Image], speed: float) -> int:
    opencv = _opencv()
    first = next(shown)
    writer = opencv.VideoWriter(str(path), opencv.CAP_FFMPEG, opencv.VideoWriter_fourcc(*"vp09"), speed, first.size)
    if not writer.isOpened():
        raise ConfigError(
            f"OpenCV {opencv.__version__} cannot write {path.suffix}: it has no VP9 encoder. Install the package "
            "opencv-python-headless (extra `envs`), or write a .gif, which needs no encoder"
        )
    count = 0
    try:
        for picture in chain([first], shown):
            writer.write(opencv.cvtColor(np.asarray(picture), opencv.COLOR_RGB2BGR))
            count += 1
    finally:
        writer.release()
    return count


def _write_gif(path: Path, shown: Iterator[Image.Image], speed: float) -> int:
    every = max(1, round(speed / GIF_PICTURES_PER_SECOND))
    count = 0

    def reduced() -> Iterator[Image.Image]:
        nonlocal count
        for picture in islice(shown, 0, None, every):
            count += 1
            # Without dithering, areas that do not change stay equal from picture to picture, and the file small.
            yield picture.quantize(_GIF_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)

    images = reduced()
    next(images).save(path, save_all=True, append_images=images, duration=1000 * every / speed, loop=0)
    return count


def _opencv() -> Any:
    return import_extra("cv2", "a video as .mp4")


def _not_writable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be written: {error.strerror or error}")


WIDTH = 640
"""Width of the video, in pixels."""
TALLEST = 520
"""Largest height of an episode's frame in the video, in pixels."""
_MARGIN, _HEADER, _TITLE = 20, 40, 32
_CURVE_WIDTH, _CURVE_HEIGHT, _DOT = WIDTH - 2 * _MARGIN - 56, 64, 5
_PANEL = _CURVE_HEIGHT + 2 * _DOT
_FINE = 3
"""Curves are drawn at this multiple of their size and then reduced, which smooths them."""
_PAPER, _INK, _QUIET, _RULE = "#ffffff", "#1f2937", "#6b7280", "#e5e7eb"
_FUTURE = "#cbd5e1"


def pictures(episode: PlayedEpisode) -> Iterator[Image.Image]:
    """A picture for each frame, with a header and the curves so far; all have the same size."""
    panels = [_Panel(curve, episode.steps) for curve in curves_of(episode)]
    for step, png in enumerate(episode.frames):
        frame = fitted(Image.open(io.BytesIO(png)).convert("RGB"))
        top = _HEADER + frame.height
        height = top + len(panels) * (_TITLE + _PANEL) + _MARGIN
        # Video encoders need even sides.
        picture = Image.new("RGB", (WIDTH, height + height % 2), _PAPER)
        _write_header(picture, episode, step)
        left = (WIDTH - frame.width) // 2
        picture.paste(frame, (left, _HEADER))
        ImageDraw.Draw(picture).rectangle((left, _HEADER, left + frame.width - 1, top - 1), outline=_RULE)
        for row, panel in enumerate(panels):
            panel.draw_on(picture, top + row * (_TITLE + _PANEL), step)
        yield picture


def fitted(frame: Image.Image) -> Image.Image:
    """Resizes a frame to the video's width and `TALLEST`."""
    room = min((WIDTH - 2 * _MARGIN) / frame.width, TALLEST / frame.height)
    # Pixels of small frames stay sharp at whole multiples of their size.
    if room >= 2:
        return frame.resize((int(room) * frame.width, int(room) * frame.height), Image.Resampling.NEAREST)
    scale = min(room, 1.0)
    if scale == 1.0:
        return frame
    size = max(1, round(scale * frame.width)), max(1, round(scale * frame.height))
    return frame.resize(size, Image.Resampling.LANCZOS)


def _write_header(picture: Image.Image, episode: PlayedEpisode, step: int) -> None:
    draw = ImageDraw.Draw(picture)
    y = _HEADER // 2
    name = episode.subject.environment.partition("/")[2]
    draw.text((_MARGIN, y), name, _INK, _font(18), anchor="lm")
    after = _MARGIN + draw.textlength(f"{name}   ", _font(18))
    draw.text((after, y), f"seed {episode.seed}", _QUIET, _font(15), anchor="lm")
    reward = f",  reward  {number(episode.rewards[step - 1])}" if step else ""
    draw.text((WIDTH - _MARGIN, y), f"step {step:,} of {episode.steps:,}{reward}", _QUIET, _font(15), anchor="rm")


class _Panel:
    """A curve with its title and range."""

    def __init__(self, curve: Curve, steps: int) -> None:
        self._curve = curve
        self._low, self._high = _range(curve.heights)
        across = np.arange(len(curve.heights)) / max(steps, 1) * (_CURVE_WIDTH - 1)
        down = (self._high - curve.heights) / (self._high - self._low) * (_CURVE_HEIGHT - 1)
        self._points = np.stack([across, down], axis=1) + _DOT
        # The whole curve, drawn once in each colour; `draw_on` pastes the part before its step over the future.
        self._future, self._past = (self._drawn(colour) for colour in (_FUTURE, curve.colour))

    def draw_on(self, picture: Image.Image, top: int, step: int) -> None:
        """Draws the panel as it is at `step`, with its upper edge at `top`."""
        draw = ImageDraw.Draw(picture)
        # The terminal position has no value.
        step = min(step, len(self._points) - 1)
        title = top + _TITLE - 8
        draw.text((_MARGIN, title), self._curve.name, self._curve.colour, _font(15), anchor="ls")
        after = _MARGIN + draw.textlength(f"{self._curve.name}  ", _font(15))
        shown = number(self._curve.heights[step])
        draw.text((after, title), shown, _INK, _font(15), anchor="ls")
        draw.text((WIDTH - _MARGIN, title), self._curve.unit, _QUIET, _font(12), anchor="rs")
        left, upper = WIDTH - _MARGIN - _CURVE_WIDTH - _DOT, top + _TITLE
        for height, y in ((self._high, upper + _DOT), (self._low, upper + _DOT + _CURVE_HEIGHT)):
            draw.text((left - 6, y), number(height), _QUIET, _font(11), anchor="rm")
        picture.paste(self._future, (left, upper))
        x, y = (round(float(place)) for place in self._points[step])
        picture.paste(self._past.crop((0, 0, x + 1, self._past.height)), (left, upper))
        dot = _dot(self._curve.colour)
        picture.paste(dot, (left + x - _DOT, upper + y - _DOT), dot)

    def _drawn(self, colour: str) -> Image.Image:
        """The whole curve in one colour, over lines at its bounds and at zero."""
        size = _CURVE_WIDTH + 2 * _DOT, _CURVE_HEIGHT + 2 * _DOT
        fine = Image.new("RGB", (size[0] * _FINE, size[1] * _FINE), _PAPER)
        draw = ImageDraw.Draw(fine)
        zero = _DOT + self._high / (self._high - self._low) * (_CURVE_HEIGHT - 1)
        for y in {_DOT, _DOT + _CURVE_HEIGHT - 1, *([zero] if self._low <= 0 <= self._high else [])}:
            draw.line([(0, y * _FINE), (fine.width, y * _FINE)], _RULE, _FINE)
        points = [(float(x) * _FINE, float(y) * _FINE) for x, y in self._points]
        draw.line(points, colour, 2 * _FINE, joint="curve")
        return fine.resize(size, Image.Resampling.LANCZOS)


def _range(heights: Numbers) -> tuple[float, float]:
    """The lowest and highest of the heights and 0, or an interval around them if they are equal."""
    low, high = float(heights.min(initial=0.0)), float(heights.max(initial=0.0))
    return (low, high) if high - low > 1e-9 else (low - 1.0, high + 1.0)


@lru_cache
def _dot(colour: str) -> Image.Image:
    fine = Image.new("RGBA", ((2 * _DOT + 1) * _FINE,) * 2)
    ImageDraw.Draw(fine).ellipse((0, 0, fine.width - 1, fine.height - 1), colour, _PAPER, _FINE)
    return fine.resize((2 * _DOT + 1, 2 * _DOT + 1), Image.Resampling.LANCZOS)


@lru_cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size)
