"""Games and environments of pgx, jumanji and gymnax, libraries written in JAX, as `JaxGame`s.

Pgx: Koyamada et al. 2023, https://arxiv.org/abs/2303.17503. Jumanji: Bonnet et al. 2024,
https://arxiv.org/abs/2306.09884. Gymnax: https://github.com/RobertTLange/gymnax.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podzero.core.errors import ConfigError, nearest
from podzero.core.importing import import_extra
from podzero.core.types import Array, EnvState, Symmetry, View
from podzero.envs.boards.rules import symmetries_of
from podzero.envs.gymnasium_envs.making import explained

_MAX_PLIES = {"tic_tac_toe": 9, "animal_shogi": 256, "shogi": 512}
"""The number of plies after which pgx ends a game."""


class PgxGame:
    """One game of pgx as a `JaxGame`, whose states hold no observation."""

    def __init__(self, name: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pgx warns about every game that has a newer version
            import pgx  # here: it takes half a second, and most games do without it

            self._game: Any = pgx.make(cast(Any, name))
        self._name = name
        self.max_plies = _MAX_PLIES.get(name)

    @cached_property
    def symmetries(self) -> Sequence[Symmetry]:
        """The symmetries without the identity; empty if the game has none."""
        return symmetries_of(self._name)

    def init(self, key: Array) -> EnvState:
        """Starts a game; the key decides which player begins."""
        return _without_observation(self._game.init(key))

    def step(self, state: EnvState, action: Array) -> EnvState:
        """Plays a legal `action`; a state that is over stays the same, with zero rewards."""
        # pgx requires a key, but these games are deterministic.
        return _without_observation(self._game.step(state, action, jax.random.key(0)))

    def view(self, state: EnvState) -> View:
        """The view of `state`, from the perspective of the player to move."""
        return View(
            observation=self._game.observe(state),
            legal=state.legal_action_mask,
            player=state.current_player,
            rewards=state.rewards,
            done=state.terminated | state.truncated,
            truncated=state.truncated & ~state.terminated,
        )


def _without_observation(state: Any) -> Any:
    # A search tree stores many states but needs the observation of each only once, so `view` computes it.
    return state.replace(observation=jnp.zeros((0,), state.observation.dtype))


MASK = "action_mask"
"""The field of a jumanji observation that holds the legal actions."""
ONE_HOT = 32
"""Integers of jumanji with at most this number of values are observed one-hot."""
HIDDEN = ("Minesweeper", "MemoryChain", "MetaMaze", "SimpleBandit")
"""Environments whose state holds what the player must not see, by the beginning of their ids."""
_GAMES, _PLIES = 16, 32
"""The number and length of random games in which chance is looked for."""


class LibraryState(NamedTuple):
    """A state of the library with what the step to it returned: `view` cannot compute that from the state alone."""

    state: Any
    observation: Any
    reward: Array
    """Of the last step, scaled, float32."""
    done: Array
    truncated: Array


class _LibraryEnv(ABC):
    """The part that is the same for both libraries."""

    players = 1

    def __init__(self, library: str, identifier: str, known: list[str], reward_scale: float, learned: bool) -> None:
        self._where = f"env.id = '{identifier}' of {library}"
        self._scale = reward_scale
        if identifier not in known:
            raise ConfigError(f"env.id = '{identifier}' is not in {library}'s registry{nearest(identifier, known)}")
        if identifier.startswith(HIDDEN) and not learned:
            self._refuse("it hides information, which the search would see in its state")

    @abstractmethod
    def init(self, key: Array) -> LibraryState:
        """Starts an episode."""

    @abstractmethod
    def _shown(self, state: LibraryState) -> tuple[jax.Array, jax.Array]:
        """The observation as the network reads it, and the legal actions."""

    def step(self, state: LibraryState, action: Array, key: Array | None = None) -> LibraryState:
        """Takes the action with this number; a state that is over stays the same, with a reward of zero."""
        over = state._replace(reward=jnp.zeros_like(state.reward))
        after: LibraryState = optax.tree.where(state.done, over, self._after(state.state, action, key))
        return after

    @abstractmethod
    def _after(self, state: Any, action: Array, key: Array | None = None) -> LibraryState:
        """The library's step; what it draws, if anything, it draws from `key`."""

    def view(self, state: LibraryState) -> View:
        """The view of `state`; all actions are legal if the library gives no mask."""
        observation, legal = self._shown(state)
        return View(
            observation=observation,
            legal=legal,
            player=jnp.int32(0),
            rewards=jnp.stack([state.reward, jnp.zeros_like(state.reward)]),
            done=state.done,
            truncated=state.truncated,
        )

    def _refuse_chance(self) -> None:
        """Refuses an environment whose steps differ with another key, in random games."""

        def ply(state: LibraryState, key: Array) -> tuple[LibraryState, jax.Array]:
            legal = self.view(state).legal
            action = jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf)).astype(jnp.int32)
            after, other = self._after(state.state, action), self._after(state.state, action, key)
            differ = jax.tree.map(lambda one, two: (one != two).any(), self.view(after), self.view(other))
            return optax.tree.where(state.done, state, after), jnp.stack(jax.tree.leaves(differ)).any() & ~state.done

        @jax.jit
        @jax.vmap
        def differs(key: Array) -> jax.Array:
            start, plies = jax.random.split(key)
            return jax.lax.scan(ply, self.init(start), jax.random.split(plies, _PLIES))[1].any()

        if bool(differs(jax.random.split(jax.random.key(0), _GAMES)).any()):
            learned = "set env.model=learned, with a network that learns a model"
            self._refuse(f"its steps depend on chance, which the search would foresee; {learned}")

    def _refuse(self, reason: str) -> NoReturn:
        raise ConfigError(f"{self._where} cannot be played: {reason}")


class JumanjiEnv(_LibraryEnv):
    """An environment of jumanji, deterministic unless its model is learned.

    Actions of several parts are numbered in row-major order. The fields of an observation are flattened and joined to
    one vector of float32: integers of at most `ONE_HOT` values one-hot, other bounded numbers scaled to [0, 1].
    """

    def __init__(self, identifier: str, kwargs: Mapping[str, Any], reward_scale: float, learned: bool = False) -> None:
        """Makes the environment by `jumanji.make`; rewards are multiplied by `reward_scale`."""
        self._jumanji = import_extra("jumanji", f"env.id = '{identifier}' of jumanji")
        known = sorted(self._jumanji.registered_environments())
        super().__init__("jumanji", identifier, known, reward_scale, learned)
        with explained(self._where, kwargs):
            self._env = self._jumanji.make(identifier, **kwargs)
        self.max_plies: int | None = getattr(self._env, "time_limit", None)
        self._parts = self._action_parts()
        self._ranges = self._observed_ranges()
        if not learned:
            self._refuse_chance()

    def init(self, key: Array) -> LibraryState:
        """Starts an episode."""
        return self._observed(*self._env.reset(key))

    def _shown(self, state: LibraryState) -> tuple[jax.Array, jax.Array]:
        mask = getattr(state.observation, MASK, None)
        legal = jnp.ones(math.prod(self._parts), bool)
        values = [value for value, _ in _leaves(state.observation, self._env.observation_spec)]
        ranged = zip(values, self._ranges, strict=True)
        observation = jnp.concatenate([_encoded(jnp.asarray(value), *ends).reshape(-1) for value, ends in ranged])
        return observation, legal if mask is None else mask.reshape(-1) | state.done

    def _after(self, state: Any, action: Array, key: Array | None = None) -> LibraryState:
        parts = jnp.stack(jnp.unravel_index(action, self._parts)).astype(jnp.int32)
        drawing = state if key is None else _with_key(state, key)
        has_parts = isinstance(self._env.action_spec, self._jumanji.specs.MultiDiscreteArray)
        return self._observed(*self._env.step(drawing, parts if has_parts else parts[0]))

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

    def _observed(self, state: Any, timestep: Any) -> LibraryState:
        done = timestep.last()
        reward = jnp.float32(self._scale) * timestep.reward.astype(jnp.float32)
        # A time limit that jumanji calls a termination leaves a discount of 0.
        return LibraryState(state, timestep.observation, reward, done, done & (timestep.discount > 0))

    def _observed_ranges(self) -> list[tuple[float, float]]:
        """The least and the largest value of each field of an observation, without the mask; infinite if unbounded."""
        # What jumanji describes is computed here once: inside a program that is traced it would be a tracer.
        observation = jax.eval_shape(self._env.reset, jax.random.key(0))[1].observation
        specs = [spec for _, spec in _leaves(observation, self._env.observation_spec)]
        ends = [(getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)) for spec in specs]
        return [(float(np.min(least)), float(np.max(most))) for least, most in ends]


class GymnaxEnv(_LibraryEnv):
    """An environment of gymnax, deterministic unless its model is learned.

    Observations keep their shape and become float32; a number of a `Discrete` space is observed one-hot.
    """

    def __init__(self, identifier: str, kwargs: Mapping[str, Any], reward_scale: float, learned: bool = False) -> None:
        """Makes the environment; rewards are multiplied by `reward_scale`.

        `kwargs` are fields of its parameters, such as `max_steps_in_episode`, and arguments of `gymnax.make`.
        """
        where = f"env.id = '{identifier}' of gymnax"
        # It is in no extra, because its metadata excludes podzero's JAX.
        gymnax = import_extra("gymnax", where, remedy="install it with `uv pip install --no-deps gymnax`")
        super().__init__("gymnax", identifier, sorted(gymnax.registered_envs), reward_scale, learned)
        with explained(self._where, kwargs):
            names = {field.name for field in dataclasses.fields(gymnax.make(identifier)[1])}
            self._env, usual = gymnax.make(identifier, **{name: kwargs[name] for name in kwargs.keys() - names})
            self._params = usual.replace(**{name: kwargs[name] for name in kwargs.keys() & names})
            self.max_plies = int(self._params.max_steps_in_episode)
        actions, self._space = self._env.action_space(self._params), self._env.observation_space(self._params)
        if not hasattr(actions, "n"):
            self._refuse(f"its actions are {type(actions).__name__}; expected Discrete")
        self._actions = int(actions.n)
        if not learned:
            self._refuse_chance()

    def init(self, key: Array) -> LibraryState:
        """Starts an episode."""
        observation, state = self._env.reset_env(key, self._params)
        start = LibraryState(state, self._encoded(observation), jnp.float32(0), jnp.bool_(False), jnp.bool_(False))
        # gymnax starts with Python's numbers; a state must have the dtypes that steps give it.
        after = jax.eval_shape(self._after, state, jnp.int32(0))
        started: LibraryState = jax.tree.map(lambda value, form: jnp.asarray(value, form.dtype), start, after)
        return started

    def _shown(self, state: LibraryState) -> tuple[jax.Array, jax.Array]:
        return state.observation, jnp.ones(self._actions, bool)

    def _after(self, state: Any, action: Array, key: Array | None = None) -> LibraryState:
        drawn_from = jax.random.key(0) if key is None else key
        # Not `step`, which goes on with the next episode when one ends.
        observation, after, reward, terminated, _ = self._env.step_env(drawn_from, state, action, self._params)
        terminated = jnp.asarray(terminated, bool)
        truncated = jnp.asarray(self._env.is_truncated(after, self._params)) & ~terminated
        scaled = jnp.float32(self._scale) * jnp.asarray(reward, jnp.float32)
        return LibraryState(after, self._encoded(observation), scaled, terminated | truncated, truncated)

    def _encoded(self, observation: Any) -> jax.Array:
        if hasattr(self._space, "n"):
            return jax.nn.one_hot(observation, int(self._space.n))
        return jnp.asarray(observation, jnp.float32)


def _leaves(observation: Any, spec: Any) -> Iterator[tuple[Any, Any]]:
    """The arrays of an observation, a NamedTuple or dataclass of such, with their specs; without the mask."""
    fields = observation._asdict() if hasattr(observation, "_asdict") else vars(observation)
    for name, value in fields.items():
        if hasattr(value, "shape"):
            yield from [(value, spec[name])] if name != MASK else []
        else:
            yield from _leaves(value, spec[name])


def _with_key(state: Any, key: Array) -> Any:
    """The state with another key in the place of each of its keys, which jumanji calls `key`."""

    def other(path: Any, leaf: Array) -> Array:
        if jax.tree_util.keystr(path[-1:]).strip(".[]'") != "key":
            return leaf
        return key if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jax.random.key_data(key)

    return jax.tree_util.tree_map_with_path(other, state)


def _encoded(values: jax.Array, least: float, most: float) -> jax.Array:
    """The values of a field between `least` and `most` as float32; one-hot ones get a last axis."""
    if jnp.issubdtype(values.dtype, jnp.integer) and most - least < ONE_HOT:
        return jax.nn.one_hot(values - int(least), int(most - least) + 1, dtype=jnp.float32)
    if most == least or np.isinf(most - least):
        return values.astype(jnp.float32)
    return (values.astype(jnp.float32) - least) / (most - least)
