"""Reanalysis: stored positions are searched again with newer parameters, which renews their targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podzero.actors.clients import ActorLoop
from podzero.actors.core import explore
from podzero.actors.environments import window_priorities
from podzero.actors.targets import outcome_classes, value_targets
from podzero.config import Experiment
from podzero.config.samples import stored_observations, windows_of
from podzero.core.protocols import BatchedSearch, Env
from podzero.core.types import Array, ModelNetwork, Params, Sample, SearchResult, StoredState, View, Window
from podzero.envs import SimulatorError, faults_of, simulator_errors, unpack_states
from podzero.search import ModelSearch, ModelSearchResult

Reanalyse = Callable[[Params, int, int, Any], Sample | Window]
"""`(params, their version, batch index, stored samples [N, ...])` to samples with new targets. The batch index, folded
into the PRNG key, must differ between batches."""


def position_reanalysis(experiment: Experiment, env: Env, search: BatchedSearch, seed: int) -> Reanalyse:
    """Reanalyses AlphaZero's positions (`StoredState`): policy and root value are renewed, outcome and lambda-return
    stay those of the game as it was played.
    """
    key, config = jax.random.key(seed), experiment.actors
    like = jax.eval_shape(env.init, jax.random.key(0))

    @jax.jit
    def search_positions(params: Params, index: Array, packed: Array) -> tuple[SearchResult, View]:
        states = unpack_states(packed, like)
        # Explore as at the beginning of a game. Without noise the search would never try the actions that the prior
        # rules out, and only new games could correct the prior.
        exploration = explore(config, jnp.zeros(packed.shape[0]))
        return search(params, jax.random.fold_in(key, index), states, exploration), jax.vmap(env.view)(states)

    def reanalyse(params: Params, version: int, index: int, states: StoredState) -> Sample | Window:
        result, view = jax.device_get(search_positions(params, index, states.state))
        samples = Sample(
            observation=view.observation,
            legal=view.legal,
            policy_target=result.policy,
            value_target=value_targets(np.asarray(states.lambda_return), result.value, config.root_value_weight),
            version=np.full(len(states.outcome), version, np.int32),
            state=states.state,
        )
        if experiment.has_auxiliary_heads:
            # Stored positions do not tell how long their games lasted, how they ended, or which action followed.
            unknown = np.full(len(states.outcome), -1, np.int32)
            outcome = outcome_classes(states.outcome, states.truncated)
            samples = samples._replace(outcome=outcome, moves_left=unknown, reply=unknown)
            if experiment.predicts_ownership:
                samples = samples._replace(ownership=np.full((len(unknown), env.spec.squares), -1, np.int8))
        return samples

    return reanalyse


def window_reanalysis(experiment: Experiment, network: ModelNetwork, search: ModelSearch, seed: int) -> Reanalyse:
    """Reanalyses MuZero's windows, stored with all observations (Schrittwieser et al. 2020, MuZero Reanalyze).

    Positions 0 to K get the policy and value of a new search and, with continuous actions, new candidates. The n
    positions after K get the network's value. Rewards, actions and the end of the episode do not change.
    """
    key, config = jax.random.key(seed), experiment.muzero
    searched, kept = config.unroll_steps + 1, stored_observations(experiment)

    @jax.jit
    def search_windows(params: Params, index: Array, observation: jax.Array) -> tuple[ModelSearchResult, jax.Array]:
        roots, later = (jax.lax.collapse(part, 0, 2) for part in jnp.split(observation, [searched], axis=1))
        exploration = explore(experiment.actors, jnp.zeros(roots.shape[0]))
        result = search(params, jax.random.fold_in(key, index), roots, exploration)
        # Targets only bootstrap from the later values. Searching there too would cost more than all the rest.
        _, value = network.predict(params, network.represent(params, later))
        return result, network.decode(value)

    def reanalyse(params: Params, version: int, index: int, states: Window) -> Sample | Window:
        result, later_value = jax.device_get(search_windows(params, index, states.observation))
        count = len(states.length)
        fields: dict[str, Any] = states._asdict() | {
            "value": np.concatenate([each.reshape(count, -1) for each in (result.value, later_value)], axis=1),
            "policy": result.policy.reshape(count, searched, -1),
            "candidates": result.candidates.reshape(count, searched, *result.candidates.shape[1:]),
            "version": np.full((count, 1), version, np.int32),
        }

        def gathered(name: str, entries: int) -> Any:
            return fields[name][:, :entries]

        return windows_of(experiment, gathered, states.length, states.terminated, states.action, kept)

    return reanalyse


@dataclass(eq=False, kw_only=True)
class ReanalysisActor(ActorLoop):
    """Searches batches of stored samples again and writes them with new targets, to the table `reanalysed`."""

    reanalyse: Reanalyse
    states: Iterator[StoredState | Window]
    """Reads batches of stored samples. Close it to end a wait there."""

    def run(self) -> None:
        """Reanalyses until `stop` is called or `states` is closed."""
        faults = faults_of(self.experiment.env)
        metrics = {"count/reanalysed": 0.0, "reanalysis/age": 0.0, "reanalysis/version": 0.0}
        for batch, (version, params) in enumerate(self.newest_params(), start=1):
            with self.clock("wait_states"):
                states = next(self.states, None)
            if states is None:
                break
            try:
                with self.clock("search"), simulator_errors():
                    samples = self.reanalyse(params, version, batch, states)
            except SimulatorError as error:
                # No episode is lost: the samples stay in replay, with the targets they have.
                faults.add(str(error), episodes=0)
                continue
            faults.completed()
            with self.clock("write"):
                priorities = window_priorities(samples, self.experiment) if isinstance(samples, Window) else None
                self.clients.write(samples, None, priorities)
            metrics["count/reanalysed"] += len(states.version)
            # How many steps of the learner lie between the old parameters and the new ones.
            metrics["reanalysis/age"] = float(np.mean(version - np.asarray(states.version)))
            metrics["reanalysis/version"] = float(version)
            if self.report_due:
                self.report(metrics)
                metrics["count/reanalysed"] = 0.0
        self.report(metrics)
