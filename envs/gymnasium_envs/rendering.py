"""Renders gymnasium environments to frames of pixels."""

from __future__ import annotations

from contextlib import closing
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from podzero.config import GymnasiumConfig
from podzero.core.errors import ConfigError, described
from podzero.envs.gymnasium_envs.making import Factory, lacks, make_own
from podzero.envs.gymnasium_envs.spaces import HostArray

MODE = "rgb_array"
"""Gymnasium's render mode whose frames are arrays of pixels."""
STEPS_PER_SECOND = 15.0
"""Speed of environments that declare none, and of Atari games at four frames per step."""
_MOST_PIXELS = 4_000_000
_COLOURS = 3


class Rendering(NamedTuple):
    """How to render an environment."""

    config: GymnasiumConfig
    """The config for environments that render; they run in this process."""
    steps_per_second: float
    """The environment's own speed."""
    renders: bool
    """Whether the environments render frames; otherwise their observation is an image and is shown instead."""


def rendering_of(config: GymnasiumConfig) -> Rendering:
    """Makes an environment, reads how it renders, and closes it."""
    if config.vectorization != "own":
        config = config.model_copy(update={"vectorization": "sync"})  # frames of other processes cannot be fetched
    with closing(_one(config)) as env:
        modes = env.metadata.get("render_modes") or ()
        renders = MODE in modes
        if not renders and not (config.vectorization == "own" and _is_image(env.single_observation_space)):
            raise ConfigError(
                f"{config.title} cannot be shown: it has no render mode '{MODE}' (its modes: "
                f"{', '.join(map(str, modes)) or 'none'}). Give the environment one, or look at its returns with "
                "`podzero evaluate`"
            )
        speed = float(env.metadata.get("render_fps") or STEPS_PER_SECOND)
    kwargs = {**config.kwargs, "render_mode": MODE} if renders else config.kwargs
    return Rendering(config.model_copy(update={"kwargs": kwargs}), speed, renders)


def rendered(env: Any, title: str) -> Any:
    """What `env.render()` returns."""
    try:
        return env.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"{title}: rendering {lacks(error)}") from error
    except Exception as error:
        raise ConfigError(f"{title} cannot be rendered: {described(error)}") from error


def picture(frame: Any, title: str) -> HostArray:
    """A rendered frame as `[H, W, 3]` uint8; floats must be colours in [0, 1]."""
    pixels = np.asarray(frame)
    if pixels.ndim != 3 or pixels.shape[2] != _COLOURS or not 0 < pixels[..., 0].size <= _MOST_PIXELS:
        raise ConfigError(
            f"{title} cannot be shown: render() returned {type(frame).__name__} of shape {list(pixels.shape)}; "
            f"expected pixels [height, width, {_COLOURS}], {_MOST_PIXELS:,} at most"
        )
    if pixels.dtype.kind == "f":
        pixels = np.rint(np.clip(pixels, 0.0, 1.0) * 255)
    return pixels.astype(np.uint8)


def observed_picture(observation: HostArray) -> HostArray:
    """Converts an image observation to `[H, W, 3]` uint8; a stack `[frames, H, W]` gives its newest frame."""
    newest = observation if observation.shape[-1] == _COLOURS else observation[-1]
    return newest if newest.ndim == _COLOURS else np.repeat(newest[..., None], _COLOURS, axis=-1)


def _is_image(space: Any) -> bool:
    """Whether the space holds gray frames `[frames, H, W]`, or colours `[H, W, 3]` or `[frames, H, W, 3]`."""
    shape: tuple[int, ...] = getattr(space, "shape", None) or ()
    coloured = len(shape) in (3, 4) and shape[-1] == _COLOURS
    return getattr(space, "dtype", None) == np.uint8 and (coloured or len(shape) == 3)


def _one(config: GymnasiumConfig) -> Any:
    return make_own(config, 1) if config.vectorization == "own" else Factory(config)()
