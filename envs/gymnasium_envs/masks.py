"""Action masks: where an environment tells which actions are legal, and what is accepted as a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from podzero.envs.gymnasium_envs.spaces import Actions, HostArray, is_truth

MASK = "action_mask"
"""Key of `info` and of Dict observations: which actions are legal, `[A]` bool or 0 and 1, as in gymnasium's Taxi-v4 and
in PettingZoo."""
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
    f"observation['{MASK}']": lambda env, observation, info: (
        observation.get(MASK) if isinstance(observation, Mapping) else None
    ),
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

        Raises:
          ValueError: a mask is missing, unexpected, or not one, or it allows no action.
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
    """Where an environment has its masks, by its space of `observations` and by what its first reset returns.

    Raises:
      ValueError: it has what may be a mask, but is not read as one; the message names it.
    """
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
    """The masks of `running` environments (`[...]` bool) as `[N, A]` bool."""
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
        raise ValueError(
            f"{place} is {array.tolist()!r:.200}; expected bool, or 1 for each legal and 0 for each illegal action"
        )
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
