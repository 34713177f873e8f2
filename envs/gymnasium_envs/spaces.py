"""Gymnasium's spaces in podzero's words: observations of one shape and dtype, actions counted or in [-1, 1]."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from podzero.errors import ConfigError

Array = np.ndarray[Any, Any]

MAX_JOINT_ACTIONS = 4096
"""More combinations than these are no list to choose from."""
NOMINAL_WIDTHS = 10.0
"""How many widths of its bounds a float may lie outside them in the middle of an episode. Bounds of floats are often
nominal: LunarLander flies four widths above its own."""
ROUNDING = 1e-3
"""How far outside its bounds a float may lie in a first observation, relative to one plus the bound."""
_FLATTENED = (spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete, spaces.Dict, spaces.Tuple)


class Observations:
    """Observations of one space as arrays of one shape and dtype.

    A Box keeps its shape (a scalar becomes `[1]`) and its dtype, but 64-bit dtypes become float32, which is what JAX
    would make of them or worse. Any other space is flattened as gymnasium does it, to a float32 vector: a number out
    of n becomes one-hot, the parts of a Dict or Tuple are put one behind the other.
    """

    def __init__(self, space: spaces.Space[Any], where: str) -> None:
        """Raises `ConfigError` for a space that cannot be flattened; `where` is what it calls the environment."""
        unknown = _unknown_part(space)
        if unknown is not None:
            raise ConfigError(
                f"{where}: its observation space holds {unknown}, which has no fixed shape; podzero knows Box, "
                "Discrete, MultiBinary, MultiDiscrete, and Dict or Tuple of these. Convert it with a wrapper"
            )
        self.source = space
        self.flattens = not isinstance(space, spaces.Box)
        box = spaces.flatten_space(space) if self.flattens else space
        assert isinstance(box, spaces.Box)
        self.shape: tuple[int, ...] = box.shape or (1,)
        self.dtype = np.dtype(np.float32) if self.flattens or box.dtype.itemsize == 8 else np.dtype(box.dtype)
        self._low, self._high = _limits(box, self.shape, self.dtype)

    @property
    def box(self) -> spaces.Box:
        """What the converted observations are, without bounds."""
        dtype: Any = self.dtype
        if dtype.kind == "b":
            return spaces.Box(0, 1, self.shape, dtype)
        info: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        return spaces.Box(info.min, info.max, self.shape, dtype)

    def convert(self, observation: Any) -> Array:
        """One observation, `[*shape]`.

        Raises:
          ValueError: its shape or dtype is not its space's, or a counted part is out of range. Bounds of floats are
            left to `fits`, which looks at many at once.
        """
        if self.flattens:
            if (wrong := complaint(self.source, observation, bounds=False)) is not None:
                raise ValueError(wrong)
            return np.asarray(spaces.flatten(self.source, observation), self.dtype)
        array = np.asarray(observation)
        if array.shape != self.source.shape or (array.dtype != self.dtype and not _casts(array, self.source)):
            raise ValueError(complaint(self.source, array, bounds=False) or f"{array.dtype} is not {self.dtype}")
        return array.astype(self.dtype, copy=False).reshape(self.shape)

    def convert_all(self, observations: Any, batch_space: spaces.Space[Any]) -> Array:
        """B observations of a vector environment, `[B, *shape]`, in memory of their own; raises as `convert`."""
        if self.flattens:
            return np.stack([self.convert(one) for one in gymnasium.vector.utils.iterate(batch_space, observations)])
        array = np.asarray(observations)
        if array.shape[1:] != self.source.shape or (array.dtype != self.dtype and not _casts(array, self.source)):
            raise ValueError(complaint(self.source, array[0], bounds=False) or f"{array.dtype} is not {self.dtype}")
        return np.array(array, self.dtype).reshape(-1, *self.shape)

    def fits(self, observations: Array) -> Array | None:
        """Which of B converted observations may be in the space: `[B]` bool, or None if all may.

        Floats must be finite and at most `NOMINAL_WIDTHS` outside of finite bounds, integers within their bounds.
        Nothing is looked at where the dtype leaves no room for an error, as in images.
        """
        if self._low is None or self._high is None:
            return None
        inside = (observations >= self._low) & (observations <= self._high)  # false for NaN
        if inside.all():
            return None
        fits: Array = inside.reshape(len(inside), -1).all(axis=1)
        return fits

    def misfit(self, observation: Array) -> str | None:
        """What keeps one converted observation from fitting, in words."""
        if self._low is None or self._high is None:
            return None
        wrong = ~((observation >= self._low) & (observation <= self._high))
        if not wrong.any():
            return None
        low, high = self._low[wrong][0], self._high[wrong][0]
        return f"{observation[wrong][0]}, where {low:g} to {high:g} may be expected"


class Actions:
    """Actions of one space as podzero hands them over: the number of one, or floats in [-1, 1].

    Discrete counts from its own start. The combinations of a MultiDiscrete or MultiBinary are numbered in C order, as
    `numpy.ravel_multi_index` does. Of a Box each dimension's [-1, 1] becomes the range between its bounds.
    """

    def __init__(self, space: spaces.Space[Any], where: str) -> None:
        """Raises `ConfigError` for a space that podzero cannot act in; `where` is what it calls the environment."""
        self.count = 0
        """Actions to choose among; 0 where they are continuous."""
        self.bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        """As in `EnvSpec.action_bounds`."""
        self.source: Any = space
        if isinstance(space, spaces.Discrete):
            self.count = int(space.n)
        elif isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
            self.count = self._joint(space, where)
        elif isinstance(space, spaces.Box):
            self.bounds = self._bounded(space, where)
        else:
            raise ConfigError(
                f"{where}: its action space is {space}; podzero knows Discrete, MultiDiscrete, MultiBinary and Box"
            )

    def decode(self, actions: Any) -> Array:
        """B actions `[B]` int32 or `[B, D]` float32 in the form that a vector environment takes."""
        if self.bounds is not None:
            share = (np.clip(actions, -1.0, 1.0) + 1.0) * 0.5
            values = self._low + share * (self._high - self._low)
            decoded: Array = values.astype(self.source.dtype).reshape(-1, *self.source.shape)
            return decoded
        chosen = np.asarray(actions)
        if not isinstance(self.source, spaces.Discrete):
            chosen = np.stack(np.unravel_index(chosen, self._parts), axis=-1).reshape(-1, *self.source.shape)
        counted: Array = (chosen + getattr(self.source, "start", 0)).astype(self.source.dtype)
        return counted

    def _joint(self, space: spaces.MultiDiscrete | spaces.MultiBinary, where: str) -> int:
        choices = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
        self._parts = tuple(int(n) for n in choices.ravel())
        count = int(np.prod(self._parts, dtype=float))
        if count > MAX_JOINT_ACTIONS:
            raise ConfigError(
                f"{where}: its action space {space} has {count} combinations, and podzero lists {MAX_JOINT_ACTIONS} "
                "at most; leave some out with a wrapper"
            )
        return count

    def _bounded(self, space: spaces.Box, where: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if not space.is_bounded() or space.dtype.kind != "f":
            raise ConfigError(
                f"{where}: its action space {space} must be of floats between finite bounds; "
                "set them with gymnasium's wrapper RescaleAction or one of your own"
            )
        self._low, self._high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
        return tuple(self._low.tolist()), tuple(self._high.tolist())


def complaint(space: spaces.Space[Any], value: Any, *, bounds: bool) -> str | None:
    """What is wrong with `value` as an element of `space`, or None; the `bounds` of floats only if asked for.

    Dtypes may be of the same kind: gymnasium environments give float64 for float32 and mean no harm.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            return f"{value!r:.200} has not the keys {list(space.spaces)}"
        parts = [(f"[{key!r}]", part, value[key]) for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            return f"{value!r:.200} has not {len(space.spaces)} parts"
        parts = [(f"[{i}]", part, one) for i, (part, one) in enumerate(zip(space.spaces, value, strict=True))]
    elif isinstance(space, spaces.Box):
        return _box_complaint(space, np.asarray(value), bounds)
    else:
        return None if space.contains(value) else f"{value!r:.200} is not in {space}"
    found = ((name, complaint(part, one, bounds=bounds)) for name, part, one in parts)
    return next((f"{name}: {wrong}" for name, wrong in found if wrong), None)


def _box_complaint(space: spaces.Box, value: Array, bounds: bool) -> str | None:
    if value.shape != space.shape:
        return f"shape {list(value.shape)} instead of {list(space.shape)}"
    if not _casts(value, space):
        return f"dtype {value.dtype} instead of {space.dtype}"
    if value.dtype.kind == "f" and bounds and not np.isfinite(value).all():
        return f"NaN or infinity in {value!r:.200}"
    slack = ROUNDING if space.dtype.kind == "f" else 0.0
    with np.errstate(over="ignore"):
        low, high = (limit.astype(np.float64) for limit in (space.low, space.high))
        outside = (value < low - slack * (1 + abs(low))) | (value > high + slack * (1 + abs(high)))
    # Integers count something: there is nothing nominal about their bounds.
    if outside.any() and (bounds or space.dtype.kind != "f"):
        return f"{value[outside][0]} is outside of its bounds {low[outside][0]} to {high[outside][0]}"
    return None


def _casts(value: Array, space: spaces.Space[Any]) -> bool:
    return np.can_cast(value.dtype, space.dtype, "same_kind")


def _limits(box: spaces.Box, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array | None, Array | None]:
    """Lowest and highest values that `fits` accepts, `[*shape]` in `dtype`; None where the dtype says it all."""
    low, high = (limit.reshape(shape).astype(np.float64) for limit in (box.low, box.high))
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        slack = NOMINAL_WIDTHS if box.dtype.kind == "f" else 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            room = slack * (high - low)
        room[~np.isfinite(room)] = most if slack else 0.0
        return np.clip(low - room, -most, most).astype(dtype), np.clip(high + room, -most, most).astype(dtype)
    if dtype.kind == "b" or (low.max() <= np.iinfo(dtype).min and high.min() >= np.iinfo(dtype).max):
        return None, None
    return box.low.reshape(shape), box.high.reshape(shape)


def _unknown_part(space: spaces.Space[Any]) -> spaces.Space[Any] | None:
    """The first part of `space` that has no fixed shape, if any."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return next((found for part in parts if (found := _unknown_part(part)) is not None), None)
    return None if isinstance(space, (spaces.Box, *_FLATTENED)) else space
