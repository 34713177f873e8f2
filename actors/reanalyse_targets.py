"""Searching old positions again: what was seen and done stays, what the search said of it becomes new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from podzero.actors.assembly import value_targets
from podzero.actors.windows import value_errors
from podzero.config import ActorsConfig, Experiment
from podzero.envs import unpack_states
from podzero.protocols import Env, Search
from podzero.samples import observations_kept
from podzero.search import ModelSearch, ModelSearchResult
from podzero.types import Array, ModelNetwork, Params, Sample, SearchResult, StoredState, View, Window


class Reanalysed(NamedTuple):
    """Samples with targets of a later search."""

    samples: Sample | Window
    """`[N, ...]` on every field, in the order of what was searched again."""
    errors: npt.NDArray[np.float32] | None
    """`[N]`, what is known of their worth, as of `Cut`; None where nothing is."""


Reanalyse = Callable[[Params, int, int, Any], Reanalysed]
"""`(params, their version, turn, past [N, ...])`: searches again; no two turns should have the same number."""


def position_reanalysis(env: Env, search: Search, config: ActorsConfig, seed: int) -> Reanalyse:
    """Searches AlphaZero's positions (`StoredState`) again: policy and root value are new, the outcome is not.

    The search explores as an actor's does at the beginning of a game (`actors.temperature`): without noise it would
    never look at what the prior thinks little of, and only the fresh samples would teach that it is wrong.

    Args:
      env: the game.
      search: over it.
      config: how actors explore, and what they aim at.
      seed: of the exploration.
    """
    key, like = jax.random.key(seed), jax.eval_shape(env.init, jax.random.key(0))

    @jax.jit
    def look(params: Params, turn: Array, rows: Array) -> tuple[SearchResult, View]:
        states = unpack_states(rows, like)
        temperature = jnp.full(rows.shape[0], config.temperature, jnp.float32)
        return search(params, jax.random.fold_in(key, turn), states, temperature), jax.vmap(env.view)(states)

    def reanalyse(params: Params, version: int, turn: int, states: StoredState) -> Reanalysed:
        found, view = jax.device_get(look(params, turn, states.state))
        samples = Sample(
            observation=view.observation,
            legal=view.legal,
            policy_target=found.policy,
            value_target=value_targets(np.asarray(states.outcome), found.value, config.root_value_weight),
            version=np.full(len(states.outcome), version, np.int32),
        )
        return Reanalysed(samples, None)

    return reanalyse


def window_reanalysis(experiment: Experiment, network: ModelNetwork, search: ModelSearch, seed: int) -> Reanalyse:
    """Searches MuZero's windows (`Window` with all observations) again (Schrittwieser et al. 2020, MuZero Reanalyze).

    Each of the positions 0 to K gets the policy and value of a new search, which explores as an actor's does at the
    beginning of an episode; with continuous actions it also chooses among candidates of the new policy. The n positions
    after them, whose values only stand for what comes later, get the value that the network gives them: a search of
    each would cost more than all others together. Rewards, actions and where the episode ends are what they were.

    Args:
      experiment: what is trained.
      network: the model.
      search: over it.
      seed: of the exploration.
    """
    key, config = jax.random.key(seed), experiment.muzero
    searched, kept = config.unroll_steps + 1, observations_kept(experiment)

    @jax.jit
    def look(params: Params, turn: Array, observation: Array) -> tuple[ModelSearchResult, jax.Array]:
        roots, later = _merged(observation[:, :searched]), _merged(observation[:, searched:])
        temperature = jnp.full(roots.shape[0], experiment.actors.temperature, jnp.float32)
        found = search(params, jax.random.fold_in(key, turn), roots, temperature)
        _, value = network.predict(params, network.represent(params, later))
        return found, network.decode(value)

    def reanalyse(params: Params, version: int, turn: int, states: Window) -> Reanalysed:
        found, later = jax.device_get(look(params, turn, states.observation))
        count, length = len(states.length), np.asarray(states.length)[:, None]

        def split(positions: Array) -> npt.NDArray[Any]:
            """`[N * T, ...]` as `[N, T, ...]`."""
            return np.asarray(positions).reshape(count, -1, *positions.shape[1:])

        def existing(field: Array) -> npt.NDArray[Any]:
            """The field `[N * (K + 1), ...]` of the search as `[N, K + 1, ...]`, zero where no action follows."""
            values = split(field)
            acted = np.arange(searched) < length
            return np.where(acted.reshape(acted.shape + (1,) * (values.ndim - 2)), values, np.zeros((), values.dtype))

        positions = np.arange(states.value.shape[1])
        judged = (positions < length) | ((positions == length) & ~np.asarray(states.terminated)[:, None])
        value = np.concatenate([split(found.value), split(later)], axis=1)
        windows = states._replace(
            observation=states.observation[:, :kept],
            value=np.where(judged, value, np.float32(0.0)),
            policy=existing(found.policy),
            candidates=states.candidates if found.candidates.ndim == 2 else existing(found.candidates),
            version=np.full(count, version, np.int32),
        )
        return Reanalysed(windows, value_errors(windows, experiment.env.discount, config.td_steps))

    return reanalyse


def _merged(observation: Array) -> jax.Array:
    """`[N, T, *observation_shape]` as `[N * T, *observation_shape]`."""
    return jnp.asarray(observation).reshape(-1, *observation.shape[2:])
