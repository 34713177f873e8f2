"""Environments of jumanji for one player as `JaxGame`s (Bonnet et al. 2024, https://arxiv.org/abs/2306.09884)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.errors import ConfigError, nearest
from podzero.importing import import_extra
from podzero.types import Array, View

MASK = "action_mask"
"""The field of an observation that holds the legal actions."""
ONE_HOT = 32
"""Integers with at most this number of values are observed one-hot."""
HIDDEN = ("Minesweeper",)
"""Environments whose state holds what the player must not see, by the beginning of their ids."""
_GAMES, _PLIES = 16, 32
"""The number and length of random games in which chance is looked for."""


class PuzzleState(NamedTuple):
    """A state of jumanji's with what its step returned, since jumanji observes only when it steps."""

    state: Any
    observation: Any
    reward: Array
    """Of the last step, scaled, float32."""
    done: Array
    truncated: Array


class JumanjiPuzzle:
    """A deterministic environment of jumanji.

    Actions of several parts are numbered in row-major order. The fields of an observation are flattened and joined to
    one vector of float32: integers of at most `ONE_HOT` values one-hot, other bounded numbers scaled to [0, 1].
    """

    players = 1

    def __init__(self, identifier: str, kwargs: Mapping[str, Any], reward_scale: float) -> None:
        """Makes the environment.

        Args:
          identifier: its id in jumanji's registry.
          kwargs: keyword arguments of `jumanji.make`.
          reward_scale: factor applied to rewards.

        Raises:
          ConfigError: jumanji is not installed, does not know the id or cannot make it, or tree search cannot play the
            environment: it has several agents, no finite set of actions, hidden information, or chance in its steps.
        """
        self._where = f"env.id = '{identifier}'"
        self._jumanji = import_extra("jumanji", f"{self._where} of jumanji")
        self._scale = reward_scale
        known = sorted(self._jumanji.registered_environments())
        if identifier not in known:
            raise ConfigError(f"{self._where} is not in jumanji's registry{nearest(identifier, known)}")
        if identifier.startswith(HIDDEN):
            self._refuse("it hides information, which the search would see in its state")
        try:
            self._env = self._jumanji.make(identifier, **kwargs)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{self._where}: jumanji.make(**{dict(kwargs)}) raised {found}") from error
        self.max_plies: int | None = getattr(self._env, "time_limit", None)
        self._parts = self._action_parts()
        self._ranges = self._observed_ranges()
        if self._depends_on_chance():
            self._refuse("its steps depend on chance, which the search would foresee")

    def init(self, key: Array) -> PuzzleState:
        """Starts an episode."""
        return self._after(*self._env.reset(key))

    def step(self, state: PuzzleState, action: Array) -> PuzzleState:
        """Takes the action with this number; a state that is over stays the same, with a reward of zero."""
        parts = jnp.stack(jnp.unravel_index(action, self._parts)).astype(jnp.int32)
        after = self._after(*self._env.step(state.state, parts if self._has_parts else parts[0]))
        over = state._replace(reward=jnp.zeros_like(state.reward))
        kept: PuzzleState = jax.tree.map(lambda old, new: jnp.where(state.done, old, new), over, after)
        return kept

    def view(self, state: PuzzleState) -> View:
        """The view of `state`; all actions are legal if it is over, or if jumanji gives no mask."""
        legal = getattr(state.observation, MASK, None)
        every = jnp.ones(math.prod(self._parts), bool)
        return View(
            observation=self._encoded(state.observation),
            legal=every if legal is None else legal.reshape(-1) | state.done,
            player=jnp.int32(0),
            rewards=jnp.stack([state.reward, jnp.zeros_like(state.reward)]),
            done=state.done,
            truncated=state.truncated,
        )

    @property
    def _has_parts(self) -> bool:
        return isinstance(self._env.action_spec, self._jumanji.specs.MultiDiscreteArray)

    def _action_parts(self) -> tuple[int, ...]:
        """The number of values of each part of an action."""
        spec, specs = self._env.action_spec, self._jumanji.specs
        if not isinstance(spec, specs.DiscreteArray | specs.MultiDiscreteArray):
            self._refuse(f"its actions are {type(spec).__name__}; expected DiscreteArray or MultiDiscreteArray")
        if self._env.reward_spec.shape != ():
            self._refuse(f"it has several agents: its rewards have the shape {list(self._env.reward_spec.shape)}")
        parts = tuple(int(values) for values in np.atleast_1d(spec.num_values))
        mask = getattr(self._env.observation_spec, MASK, None)
        if mask is not None and math.prod(mask.shape) != math.prod(parts):
            self._refuse(f"it has several agents: {MASK} has the shape {list(mask.shape)}, for actions {list(parts)}")
        return parts

    def _after(self, state: Any, timestep: Any) -> PuzzleState:
        done = timestep.last()
        reward = jnp.float32(self._scale) * timestep.reward.astype(jnp.float32)
        # A time limit that jumanji calls a termination leaves a discount of 0.
        return PuzzleState(state, timestep.observation, reward, done, done & (timestep.discount > 0))

    def _observed_ranges(self) -> list[tuple[float, float]]:
        """The least and the largest value of each field of an observation, without the mask; infinite if unbounded."""
        # What jumanji describes is computed here once: inside a program that is traced it would be a tracer.
        observation = jax.eval_shape(self._env.reset, jax.random.key(0))[1].observation
        return [self._range(spec) for _, spec in _leaves(observation, self._env.observation_spec)]

    def _range(self, spec: Any) -> tuple[float, float]:
        bounded = isinstance(spec, self._jumanji.specs.BoundedArray)
        least, most = (spec.minimum, spec.maximum) if bounded else (-np.inf, np.inf)
        return float(np.min(least)), float(np.max(most))

    def _encoded(self, observation: Any) -> jax.Array:
        values = [value for value, _ in _leaves(observation, self._env.observation_spec)]
        ranged = zip(values, self._ranges, strict=True)
        return jnp.concatenate([_encoded_field(jnp.asarray(value), *ends).reshape(-1) for value, ends in ranged])

    def _depends_on_chance(self) -> bool:
        """Whether steps differ when the keys in a state are replaced, in random games."""

        def ply(state: PuzzleState, key: Array) -> tuple[PuzzleState, jax.Array]:
            legal = self.view(state).legal
            action = jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf)).astype(jnp.int32)
            after = self.step(state, action)
            other = self.step(state._replace(state=_with_key(state.state, key)), action)
            seen, otherwise = self.view(after), self.view(other)
            differ = jax.tree.map(lambda one, two: (one != two).any(), seen, otherwise)
            return after, jnp.stack(jax.tree.leaves(differ)).any()

        @jax.jit
        @jax.vmap
        def differs(key: Array) -> jax.Array:
            start, plies = jax.random.split(key)
            return jax.lax.scan(ply, self.init(start), jax.random.split(plies, _PLIES))[1].any()

        return bool(differs(jax.random.split(jax.random.key(0), _GAMES)).any())

    def _refuse(self, reason: str) -> None:
        raise ConfigError(f"{self._where} of jumanji cannot be played by tree search: {reason}")


def _leaves(observation: Any, spec: Any) -> Iterator[tuple[Any, Any]]:
    """The arrays of an observation, a NamedTuple or dataclass of such, with their specs; without the mask."""
    fields = observation._asdict() if hasattr(observation, "_asdict") else vars(observation)
    for name, value in fields.items():
        if hasattr(value, "shape"):
            yield from [(value, spec[name])] if name != MASK else []
        else:
            yield from _leaves(value, spec[name])


def _with_key(state: Any, key: Array) -> Any:
    """The state with another key in the place of each of its old-style keys, which jumanji calls `key`."""

    def other(path: Any, leaf: Array) -> Array:
        return jax.random.key_data(key) if jax.tree_util.keystr(path[-1:]).strip(".[]'") == "key" else leaf

    return jax.tree_util.tree_map_with_path(other, state)


def _encoded_field(values: jax.Array, least: float, most: float) -> jax.Array:
    """The values of a field between `least` and `most` as float32; one-hot ones get a last axis."""
    if jnp.issubdtype(values.dtype, jnp.integer) and most - least < ONE_HOT:
        return jax.nn.one_hot(values - int(least), int(most - least) + 1, dtype=jnp.float32)
    if most == least or np.isinf(most - least):
        return values.astype(jnp.float32)
    return (values.astype(jnp.float32) - least) / (most - least)
