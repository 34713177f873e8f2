"""What environments take and return, checked: alike before a run, in it, and in recorded episodes.

First the action masks: where an environment tells which actions are legal, and what is accepted as a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from podzero.envs.gymnasium_envs.spaces import Actions, HostArray, Observations, is_truth

MASK = "action_mask"
"""Key of `info` and of Dict observations: the legal actions, `[A]` bool or 0 and 1, as in Taxi-v4 and PettingZoo."""
_METHOD = "action_masks"
"""Method of an environment that returns the mask, as in sb3-contrib."""
_NAMES = frozenset((
    MASK, _METHOD, "actions_mask", "avail_actions", "available_actions", "legal_action_mask", "legal_actions",
    "legal_actions_mask", "legal_moves", "valid_action_mask", "valid_actions", "valid_actions_mask", "valid_moves",
))  # fmt: skip
"""Keys under which environments put masks or lists of legal actions."""


def _method(env: Any) -> Any:
    # Vector environments have no `get_wrapper_attr`.
    attribute = getattr(env, "get_wrapper_attr", env.__getattribute__)
    try:
        method = attribute(_METHOD)
    except AttributeError:
        return None
    return method()


_PLACES: Mapping[str, Callable[[Any, Any, Mapping[str, Any]], Any]] = {
    f"info['{MASK}']": lambda env, observation, info: info.get(MASK),
    f"observation['{MASK}']": lambda env, seen, info: seen.get(MASK) if isinstance(seen, Mapping) else None,
    f"{_METHOD}()": lambda env, observation, info: _method(env),
}
"""Reads the mask that belongs to an observation, or None, at each place where podzero looks for it."""
_ADVICE = f"podzero reads masks from {', '.join(_PLACES)}; rename it, or remove it with a wrapper if it is no mask"


class Masks(NamedTuple):
    """Reads the action masks of one environment, or of a vector of environments."""

    actions: int
    """A, the number of discrete actions."""
    place: str | None = None
    """Where the masks are, a key of `_PLACES`; None if all actions are legal."""

    def read(self, env: Any, observation: Any, info: Mapping[str, Any], ended: HostArray) -> dict[str, HostArray]:
        """Under `MASK`, the legal actions `[..., A]` bool, all where the episode has `ended` (`[...]` bool).

        Empty without masks.
        """
        # No action follows the end of an episode, and many environments then have no mask, or an empty one.
        running = ~ended
        if self.place is None:
            if self.actions and running.any() and (name := _mask_name(info)) is not None:
                raise ValueError(
                    f"info has '{name}', although there was no mask after the first reset: each one must have "
                    f"it; {_ADVICE}"
                )
            return {}
        legal = np.ones((*ended.shape, self.actions), bool)
        if running.any():
            mask = _PLACES[self.place](env, observation, info)
            if mask is None:
                raise ValueError(f"there is no {self.place}, although there was one after the first reset")
            legal[running] = _checked(mask, legal.shape, running, self.place)
        return {MASK: legal}


def find_masks(
    env: Any, observation: Any, info: Mapping[str, Any], observations: spaces.Space[Any], actions: Actions
) -> Masks:
    """Where an environment has its masks, by its space of `observations` and by what its first reset returns."""
    found = (place for place, read in _PLACES.items() if read(env, observation, info) is not None)
    place = next(found, None)
    if not actions.count:
        if place is not None:
            raise ValueError(f"there is {place}, but masks of continuous actions are not supported")
        return Masks(0)
    if place is None and (name := _mask_name(info) or _mask_name(dict(_parts(observations)))) is not None:
        raise ValueError(f"info or observation has '{name}', which is not read as a mask; {_ADVICE}")
    if place == f"{_METHOD}()" and not isinstance(actions.source, spaces.Discrete):
        raise ValueError(
            f"there is {place}, which other libraries read as one mask for each part of {actions.source}; give "
            f"info['{MASK}'], [{actions.count}] bool, with one entry for each combination, numbered as by "
            "numpy.ravel_multi_index"
        )
    return Masks(actions.count, place)


def _checked(mask: Any, shape: tuple[int, ...], running: HostArray, place: str) -> HostArray:
    """The rows `[N, A]` bool of a mask for which `running` `[...]` bool is true; checks its shape and values."""
    try:
        array = np.asarray(mask)
        found = f"the shape {list(array.shape)}"
    except ValueError:
        array, found = np.empty(0), "parts of different lengths"
    if array.shape != shape:
        raise ValueError(
            f"{place} has {found}; expected {list(shape)}: one entry for each action, or for each combination of a "
            "MultiDiscrete or MultiBinary, numbered as by numpy.ravel_multi_index"
        )
    rows: HostArray = array[running]
    if not is_truth(rows):
        raise ValueError(f"{place} is {array.tolist()!r:.200}; expected bool, or 1 for legal and 0 for illegal actions")
    legal = rows.astype(bool)
    if not legal.any(axis=-1).all():
        raise ValueError(f"{place} allows no action")
    return legal


def _mask_name(tree: Mapping[str, Any]) -> str | None:
    """The first key of a tree that names a mask; one with a single number does not, since that is a count."""
    return next((key for key in tree if key in _NAMES and hasattr(tree[key], "__len__")), None)


def _parts(space: spaces.Space[Any]) -> Iterator[tuple[str, Any]]:
    """The keys in a space, at any depth, with an array in place of their values."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield key, ()
            yield from _parts(part)
    elif isinstance(space, spaces.Tuple):
        for part in space.spaces:
            yield from _parts(part)


METRIC = "podzero_metric_"
"""How the keys of `Interface.metrics` begin."""
_PARTS = {"reset": ("observation", "info"), "step": ("observation", "reward", "terminated", "truncated", "info")}


class Returned(NamedTuple):
    """What a step returned; the shapes are those of one environment, and lead with B for a vector of B."""

    observation: HostArray
    """`[*observation_shape]`, converted."""
    reward: HostArray
    """`[]`, a number, not yet known to be finite."""
    terminated: HostArray
    """`[]` bool."""
    truncated: HostArray
    """`[]` bool."""
    info: dict[str, HostArray]
    """See `Masks.read`; with the prefix `METRIC` also the numbers of `Interface.metrics`, `[]`, NaN without a value."""


class Interface(NamedTuple):
    """Converts between an environment and podzero's arrays, and checks what the environment returns."""

    name: str
    observations: Observations
    actions: Actions
    masks: Masks
    metrics: tuple[str, ...] = ()
    """The numbers of `info` that are kept (`env.metrics`)."""

    def after_reset(self, env: Any, returned: Any) -> tuple[HostArray, dict[str, HostArray]]:
        """The observation and the info after a reset, as in `Returned`, of an environment or a vector of environments.

        Raises `ValueError` if `returned` is not what gymnasium expects; the message names the part that is wrong.
        """
        first, info = parts_of(returned, "reset")
        observation = self._converted(env, first)
        return observation, self.masks.read(env, first, info, np.zeros(self._lead(observation), bool))

    def after_step(self, env: Any, returned: Any) -> Returned:
        """What a step returned; arguments and errors are those of `after_reset`."""
        shown, reward, terminated, truncated, info = parts_of(returned, "step")
        observation = self._converted(env, shown)
        lead = self._lead(observation)
        rewards = _array("reward", reward, lead)
        if rewards.dtype.kind not in "biuf":
            raise ValueError(f"its reward is {reward!r:.80}; expected a number")
        ended, cut = _flag("terminated", terminated, lead), _flag("truncated", truncated, lead)
        # `|` makes a scalar of arrays without axes.
        kept = self.masks.read(env, shown, info, np.asarray(ended | cut))
        kept |= {METRIC + name: _number(info.get(name), lead) for name in self.metrics}
        return Returned(observation, rewards, ended, cut, kept)

    def _converted(self, env: Any, observation: Any) -> HostArray:
        if isinstance(env, gymnasium.vector.VectorEnv):
            return self.observations.convert_all(observation, env.observation_space)
        return self.observations.convert(observation)

    def _lead(self, observation: HostArray) -> tuple[int, ...]:
        lead: tuple[int, ...] = observation.shape[: observation.ndim - len(self.observations.shape)]
        return lead


def parts_of(returned: Any, method: str) -> tuple[Any, ...]:
    """What `reset` or `step` returned, if it has the right number of values."""
    names = _PARTS[method]
    if not isinstance(returned, tuple | list) or len(returned) != len(names):
        found = f"{len(returned)} values" if isinstance(returned, tuple | list) else f"{type(returned).__name__}"
        raise ValueError(f"{method} returned {found}; expected {len(names)} values: {', '.join(names)}")
    if not isinstance(returned[-1], Mapping):
        raise ValueError(f"the info that {method} returned is {returned[-1]!r:.80}; expected a dict")
    return tuple(returned)


def _number(value: Any, lead: tuple[int, ...]) -> HostArray:
    """`[*lead]` float64, NaN for what is no number."""
    try:
        return np.broadcast_to(np.asarray(value, np.float64), lead)
    except (TypeError, ValueError):
        return np.full(lead, np.nan)


def _flag(name: str, value: Any, lead: tuple[int, ...]) -> HostArray:
    array = _array(name, value, lead)
    if not is_truth(array):
        raise ValueError(f"its {name} is {value!r:.80}; expected True or False")
    return array.astype(bool)


def _array(name: str, value: Any, lead: tuple[int, ...]) -> HostArray:
    """`[*lead]`: one value of each environment."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"its {name} is {value!r:.80}, with parts of different lengths") from None
    if array.shape != lead:
        expected = f"shape {list(lead)}" if lead else "one value, without axes"
        raise ValueError(f"its {name} is {value!r:.80}, of shape {list(array.shape)}; expected {expected}")
    return array
