"""Converts gymnasium's spaces: observations to arrays of one shape and dtype, actions from integers or [-1, 1]."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from podzero.core.errors import ConfigError

HostArray = np.ndarray[Any, Any]

MAX_JOINT_ACTIONS = 4096
"""Most combinations of a MultiDiscrete or MultiBinary action space."""
WIDEST_ACTION = 2.0**24
"""Largest distance between the bounds of an action. Actions are float32 in [-1, 1], which in a wider range do not
distinguish even whole numbers: bounds such as ±3.4e38 do not count as bounds."""
NOMINAL_WIDTHS = 10.0
"""How far outside its bounds a float of an episode may lie, in their widths: LunarLander flies four widths above."""
ROUNDING = 1e-3
"""How far outside its bounds a float of a first observation may lie, relative to one plus the bound."""
_FLATTENED = (spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete, spaces.Dict, spaces.Tuple)


class Observations:
    """Converts observations of one space to arrays of one shape and dtype.

    A Box keeps its shape (a scalar becomes `[1]`) and its dtype, except that 64-bit dtypes become float32, because JAX
    would truncate them. `gymnasium.spaces.flatten` turns any other space into a float32 vector: Discrete becomes
    one-hot, and the parts of a Dict or Tuple are concatenated.
    """

    def __init__(self, space: spaces.Space[Any], where: str) -> None:
        """Raises `ConfigError` if the space cannot be flattened; `where` names the environment in its message."""
        unknown = _unknown_part(space)
        if unknown is not None:
            raise ConfigError(
                f"{where}: its observation space contains {unknown}, which has no fixed shape; podzero supports Box, "
                "Discrete, MultiBinary, MultiDiscrete, and Dict or Tuple of these. Convert it with a wrapper"
            )
        self.source = space
        self.flattens = not isinstance(space, spaces.Box)
        box = spaces.flatten_space(space) if self.flattens else space
        assert isinstance(box, spaces.Box)
        self._box = box
        self.shape: tuple[int, ...] = box.shape or (1,)
        self.dtype = np.dtype(np.float32) if self.flattens or box.dtype.itemsize == 8 else np.dtype(box.dtype)
        self._low, self._high = _limits(box, self.shape, self.dtype)

    @property
    def box(self) -> spaces.Box:
        """The space of the converted observations, unbounded."""
        dtype: Any = self.dtype
        if dtype.kind == "b":
            return spaces.Box(0, 1, self.shape, dtype)
        info: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        return spaces.Box(info.min, info.max, self.shape, dtype)

    def convert(self, observation: Any) -> HostArray:
        """Converts one observation, to `[*shape]`."""
        if self.flattens:
            if (wrong := mismatch(self.source, observation, bounds=False)) is not None:
                raise ValueError(wrong)
            return np.asarray(spaces.flatten(self.source, observation), self.dtype)
        return self._cast(np.asarray(observation))

    def convert_all(self, observations: Any, batch_space: spaces.Space[Any]) -> HostArray:
        """Converts B observations of a vector environment, to `[B, *shape]`."""
        if self.flattens:
            return np.stack([self.convert(one) for one in gymnasium.vector.utils.iterate(batch_space, observations)])
        return self._cast(np.asarray(observations), 1)

    def recorded(self, observations: HostArray) -> HostArray:
        """Converts B recorded observations `[B, *shape]`, those of a Dict, Tuple or discrete space flattened.

        Raises `ValueError` if `convert` or `valid` would refuse one of them in an episode of the environment.
        """
        if self.flattens:
            converted = np.stack([self._flattened(row) for row in observations])
        else:
            converted = self._cast(observations.reshape(len(observations), *self._box.shape), 1)
        if not (valid := self.valid(converted)).all():
            row = int(np.argmin(valid))
            raise ValueError(f"observation {row} contains {self.invalid_value(converted[row])}")
        return converted

    def _flattened(self, row: HostArray) -> HostArray:
        """One recorded observation that was flattened; it is converted once more, so that all its parts are checked."""
        with contextlib.suppress(ValueError, IndexError):  # an element of Discrete without a one
            converted = self.convert(spaces.unflatten(self.source, row))
            if np.array_equal(converted, row.astype(self.dtype)):
                return converted
        raise ValueError(f"{row.tolist()!r:.200} is not an element of {self.source}, flattened")

    def _cast(self, array: HostArray, lead: int = 0) -> HostArray:
        """Converts observations of a Box, with `lead` axes before its own."""
        if array.shape[lead:] != self._box.shape or array.dtype != self._box.dtype:
            wrong = _box_mismatch(self._box, array, False, lead)
            if wrong is not None:
                raise ValueError(wrong)
        if array.dtype != self.dtype:
            with np.errstate(over="ignore"):  # `valid` refuses the infinity
                array = array.astype(self.dtype)
        return array.reshape(*array.shape[:lead], *self.shape)

    def valid(self, observations: HostArray) -> HostArray:
        """Which of B converted observations are valid: `[B]` bool.

        Floats must be finite and at most `NOMINAL_WIDTHS` outside finite bounds, integers within their bounds.
        """
        # Every value of the dtype is valid, as in images.
        if self._low is None or self._high is None:
            return np.ones(len(observations), bool)
        inside: HostArray = ~self._outside(observations).reshape(len(observations), -1).any(axis=1)
        return inside

    def invalid_value(self, observation: HostArray) -> str | None:
        """The first invalid value of one converted observation and its valid range, or None."""
        if self._low is None or self._high is None or not (outside := self._outside(observation)).any():
            return None
        low, high = self._low[outside][0], self._high[outside][0]
        return f"{observation[outside][0]}, outside the range {low:g} to {high:g}"

    def _outside(self, observations: HostArray) -> HostArray:
        inside: HostArray = (observations >= self._low) & (observations <= self._high)  # false for NaN
        return ~inside


class Actions:
    """Converts podzero's actions, integers from 0 or floats in [-1, 1], to those of one space.

    The start of a Discrete is added. The combinations of a MultiDiscrete or MultiBinary are numbered in C order, as by
    `numpy.ravel_multi_index`. In each dimension of a Box, [-1, 1] is scaled to the range between the bounds.
    """

    def __init__(self, space: spaces.Space[Any], where: str) -> None:
        """Raises `ConfigError` if the space is not supported; `where` names the environment in its message."""
        self.count = 0
        """Number of discrete actions; 0 if they are continuous."""
        self.bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        """As in `EnvSpec.action_bounds`."""
        self.source: Any = space
        if isinstance(space, spaces.Discrete):
            self.count = int(space.n)
            self._parts: tuple[int, ...] = (self.count,)
        elif isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
            self.count = self._joint(space, where)
        elif isinstance(space, spaces.Box):
            self.bounds = self._bounded(space, where)
        else:
            raise ConfigError(f"{where}: its actions are {space}; supported: Discrete, MultiDiscrete, MultiBinary, Box")

    def decode(self, actions: Any) -> HostArray:
        """B actions `[B]` int32 or `[B, D]` float32, converted for a vector environment."""
        if self.bounds is not None:
            fraction = (np.clip(actions, -1.0, 1.0) + 1.0) * 0.5
            values = self._low + fraction * (self._high - self._low)
            decoded: HostArray = values.astype(self.source.dtype).reshape(-1, *self.source.shape)
            return decoded
        chosen = np.asarray(actions)
        if not isinstance(self.source, spaces.Discrete):
            chosen = np.stack(np.unravel_index(chosen, self._parts), axis=-1).reshape(-1, *self.source.shape)
        discrete: HostArray = (chosen + getattr(self.source, "start", 0)).astype(self.source.dtype)
        return discrete

    def encode(self, actions: Any) -> HostArray:
        """T actions of the environment, `[T, *shape]`, as podzero's `[T]` int32; only of discrete spaces.

        Raises `ValueError` if one is not in the space.
        """
        array = np.asarray(actions)
        if array.dtype.kind not in "iu" or array.shape[1:] != self.source.shape:
            expected = f"integers of shape {['T', *self.source.shape]}, the environment's own actions"
            raise ValueError(f"actions are {array.dtype} of shape {list(array.shape)}; expected {expected}")
        numbers = (array.astype(np.int64) - getattr(self.source, "start", 0)).reshape(len(array), -1)
        outside = ((numbers < 0) | (numbers >= self._parts)).any(axis=1)
        if outside.any():
            raise ValueError(f"the action {array[outside][0]} is not in {self.source}")
        encoded: HostArray = np.ravel_multi_index(tuple(numbers.T), self._parts).astype(np.int32)
        return encoded

    def _joint(self, space: spaces.MultiDiscrete | spaces.MultiBinary, where: str) -> int:
        choices = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
        self._parts = tuple(int(n) for n in choices.ravel())
        count = int(np.prod(self._parts, dtype=float))
        if count > MAX_JOINT_ACTIONS:
            raise ConfigError(
                f"{where}: its action space {space} has {count} combinations, but podzero supports at most "
                f"{MAX_JOINT_ACTIONS}; reduce them with a wrapper"
            )
        return count

    def _bounded(self, space: spaces.Box, where: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        low, high = (limit.astype(np.float64) for limit in (space.low, space.high))
        if space.dtype.kind != "f" or not (high - low <= WIDEST_ACTION).all():
            raise ConfigError(
                f"{where}: its action space {space} must contain floats between bounds at most {WIDEST_ACTION:,.0f} "
                f"apart. Write a wrapper like this one, with bounds that suit the environment, and name it in "
                f"env.wrappers as bounded.py:Bounded\n\n{_bounding(space)}"
            )
        self._low, self._high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
        return tuple(self._low.tolist()), tuple(self._high.tolist())


def _bounding(space: spaces.Box) -> str:
    """Python code of a wrapper that gives an environment with this action space bounded floats."""
    low, high = (limit.astype(np.float64) for limit in (space.low, space.high))
    middle, wide = np.clip(0.0, low, high), ~(high - low <= WIDEST_ACTION)
    limits = np.where(wide, np.maximum(low, middle - 1), low), np.where(wide, np.minimum(high, middle + 1), high)
    shown = (limit.flat[0] if (limit == limit.flat[0]).all() else limit.tolist() for limit in limits)
    bounds = ", ".join(f"np.float32({one})" for one in shown)
    cast = "action" if space.dtype.kind == "f" else "np.rint(action)"
    return f"""\
import gymnasium
import numpy as np

class Bounded(gymnasium.wrappers.TransformAction):
    def __init__(self, env):
        space = gymnasium.spaces.Box({bounds}, {space.shape})
        super().__init__(env, lambda action: {cast}.astype("{space.dtype}"), space)
"""


def mismatch(space: spaces.Space[Any], value: Any, *, bounds: bool) -> str | None:
    """Why `value` is not an element of `space`, or None if it is.

    A dtype of the same kind is accepted, because many environments return float64 for float32. Whether floats are
    finite and within their bounds is checked only if `bounds` is true.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            return f"{value!r:.200} does not have the keys {list(space.spaces)}"
        parts = [(f"[{key!r}]", part, value[key]) for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            return f"{value!r:.200} does not have {len(space.spaces)} parts"
        parts = [(f"[{i}]", part, one) for i, (part, one) in enumerate(zip(space.spaces, value, strict=True))]
    elif isinstance(space, spaces.Box):
        return _box_mismatch(space, np.asarray(value), bounds)
    else:
        return None if space.contains(value) else f"{value!r:.200} is not in {space}"
    found = ((name, mismatch(part, one, bounds=bounds)) for name, part, one in parts)
    return next((f"{name}: {wrong}" for name, wrong in found if wrong), None)


def _box_mismatch(space: spaces.Box, value: HostArray, bounds: bool, lead: int = 0) -> str | None:
    """Why an array with `lead` more axes before those of a Box holds no elements of it; see `mismatch`."""
    if value.shape[lead:] != space.shape:
        return f"shape {list(value.shape[lead:])} instead of {list(space.shape)}"
    whole = space.dtype.kind in "biu"
    # Integers of any dtype may be cast, because their bounds are checked.
    if not (whole and value.dtype.kind in "biu") and not np.can_cast(value.dtype, space.dtype, "same_kind"):
        return f"dtype {value.dtype} instead of {space.dtype}"
    if not (bounds or whole):  # floats often exceed their bounds
        return None
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        return f"NaN or infinity in {value!r:.200}"
    slack = 0.0 if whole else ROUNDING
    with np.errstate(over="ignore"):
        low, high = (np.broadcast_to(limit.astype(np.float64), value.shape) for limit in (space.low, space.high))
        outside = (value < low - slack * (1 + abs(low))) | (value > high + slack * (1 + abs(high)))
    if outside.any():
        return f"{value[outside][0]} is outside its bounds {low[outside][0]} to {high[outside][0]}"
    return None


def is_truth(values: HostArray) -> bool:
    """Whether all values are bool, or exactly 0 or 1."""
    kind = values.dtype.kind
    return kind == "b" or (kind in "iuf" and bool(((values == 0) | (values == 1)).all()))


def _limits(box: spaces.Box, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[HostArray | None, HostArray | None]:
    """Lowest and highest values that `valid` accepts, `[*shape]` in `dtype`; None if it accepts all of the dtype."""
    low, high = (limit.reshape(shape).astype(np.float64) for limit in (box.low, box.high))
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        slack = NOMINAL_WIDTHS if box.dtype.kind == "f" else 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            margin = slack * (high - low)
        margin[~np.isfinite(margin)] = most if slack else 0.0
        return np.clip(low - margin, -most, most).astype(dtype), np.clip(high + margin, -most, most).astype(dtype)
    if dtype.kind == "b" or (low.max() <= np.iinfo(dtype).min and high.min() >= np.iinfo(dtype).max):
        return None, None
    return box.low.reshape(shape), box.high.reshape(shape)


def _unknown_part(space: spaces.Space[Any]) -> spaces.Space[Any] | None:
    """The first part of `space` that has no fixed shape, if any."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return next((found for part in parts if (found := _unknown_part(part)) is not None), None)
    return None if isinstance(space, (spaces.Box, *_FLATTENED)) else space
