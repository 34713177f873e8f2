"""Writes episodes as videos: VP9 in MP4, which needs no library with a copyleft licence, or GIF."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from podzero.errors import ConfigError
from podzero.importing import import_extra
from podzero.tools.play.episode import Episode
from podzero.tools.play.episode_picture import pictures

SUFFIXES = (".mp4", ".gif")
"""The kinds of files."""
PAUSE_S = 1.0
"""How long the end of an episode is shown."""
GIF_PICTURES_PER_SECOND = 25.0
"""Most pictures per second of a GIF; of faster episodes some steps are left out."""
_GIF_COLOURS = 128


def check_file(path: Path) -> None:
    """Refuses a file that `write_video` could not write, before anything is played.

    Raises:
      ConfigError: its kind is unknown, its folder cannot be written, or the encoder is not installed.
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


def write_video(path: Path, episodes: Iterable[Episode]) -> int:
    """Writes episodes of one environment one after the other; replaces the file only once all is written.

    Args:
      path: the file, whose suffix is one of `SUFFIXES`.
      episodes: at least one. They are recorded while the video is written, if they come from a generator.

    Returns:
      the number of pictures in it.

    Raises:
      ConfigError: there is no encoder, or the file cannot be written.
    """
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


def _with_pause(episode: Episode) -> Iterator[Image.Image]:
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
            f"OpenCV {opencv.__version__} cannot write {path.suffix}: it has no encoder of VP9. Install the package "
            "opencv-python-headless of the extra `envs`, or write a .gif, which needs no encoder"
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
            yield picture.quantize(_GIF_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)

    images = reduced()
    next(images).save(path, save_all=True, append_images=images, duration=1000 * every / speed, loop=0)
    return count


def _opencv() -> Any:
    return import_extra("cv2", "a video as .mp4")


def _not_writable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be written: {error.strerror or error}")
