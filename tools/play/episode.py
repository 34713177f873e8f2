"""A recorded episode: what an environment looked like, what it paid, and what the agent expected."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from podzero.tools.play.png import png_of

MAX_FRAMES = 10_000
"""Most frames of an episode that are kept. Its later steps have values and rewards, but no frames."""
MAX_FRAME_BYTES = 256 * 2**20
"""Size of the frames of an episode, as PNG, after which no more are kept."""

Array = np.ndarray[Any, Any]


class Subject(NamedTuple):
    """Who acts where."""

    player: str
    """The full name, as RUN@STEP."""
    environment: str
    discount: float
    """Of values, per step."""
    steps_per_second: float
    """The speed at which the environment wants to be shown."""


class Episode(NamedTuple):
    """One episode of T steps, of which the first F positions (F at most T + 1) have frames."""

    subject: Subject
    seed: int
    frames: tuple[bytes, ...]
    """PNG files; frame t shows what the agent saw before step t, and frame T the end."""
    values: Array | None
    """`[T]` float64, the agent's estimate before each step of the discounted rewards to come, in the units of the
    rewards; None of players without values."""
    rewards: Array
    """`[T]` float64."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.rewards)

    @property
    def returns(self) -> Array:
        """`[T + 1]` float64, the undiscounted sum of rewards before each step, and of all."""
        return np.concatenate([[0.0], np.cumsum(self.rewards)])

    @property
    def frame_size(self) -> tuple[int, int]:
        """Width and height of the frames."""
        size: tuple[int, int] = Image.open(io.BytesIO(self.frames[0])).size
        return size

    @property
    def cut(self) -> str | None:
        """What is said if frames are missing."""
        if len(self.frames) > self.steps:
            return None
        return f"frames of the first {len(self.frames):,} of {self.steps:,} steps only: more are not kept"


class FrameLog:
    """Collects the frames of an episode, until there are too many.

    Args:
      most_frames: number of frames to keep.
      most_bytes: size of the frames after which no more are kept.
    """

    def __init__(self, most_frames: int = MAX_FRAMES, most_bytes: int = MAX_FRAME_BYTES) -> None:
        self._most = most_frames, most_bytes
        self.clear()

    def clear(self) -> None:
        """Forgets all frames."""
        self._frames: list[bytes] = []
        self._bytes = 0
        self.full = False
        """Whether later frames are dropped."""

    def add(self, pixels: Array) -> None:
        """Keeps a frame `[H, W, 3]` uint8, or drops it if there are too many."""
        if self.full:
            return
        self._frames.append(png_of(pixels))
        self._bytes += len(self._frames[-1])
        self.full = len(self._frames) >= self._most[0] or self._bytes >= self._most[1]

    @property
    def frames(self) -> tuple[bytes, ...]:
        """The frames kept so far."""
        return tuple(self._frames)
