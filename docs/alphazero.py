"""AlphaZero in one file: what podzero does, on one machine, without Ray and without a replay server.

    uv run python docs/alphazero.py tic_tac_toe --minutes 3
    uv run podzero evaluate runs/alphazero-tic_tac_toe --opponent solver --games 400 --simulations 32

Five steps repeat: search, play, keep finished games, train, use the new parameters. `podzero train` runs the same steps
in processes of their own; the comment above each block names the file that does its work there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax

from podzero.config import Experiment, GameConfig, load
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, Network, Params, Sample, View
from podzero.envs import make_env
from podzero.files.workdir import Workdir
from podzero.learner.losses import alphazero_loss
from podzero.learner.objectives import make_augment
from podzero.networks import make_network
from podzero.networks.snapshots import save_snapshot


class Games(NamedTuple):
    """B running games."""

    states: EnvState
    plies: Array
    """`[B]` int32, the moves played in each."""
    opening: Array
    """`[B]` int32, the number of moves at the beginning that are random, so that replay contains bad positions too."""


class Moves(NamedTuple):
    """One move in each of B games."""

    observation: Array
    legal: Array
    policy: Array
    """`[B, A]` float32, the policy after search: the policy target."""
    player: Array
    searched: Array
    """`[B]` bool, False in the opening."""
    rewards: Array
    """`[B, 2]` float32, of both players; those of the last move are the outcome."""
    done: Array


# actors/core.py plays one move in B games: search, step, and new games in place of those that have ended. envs/ has the
# rules, search/models.py turns them into this model, search/algorithms.py has this search, PUCT and faster trees.
def make_play(
    experiment: Experiment, env: Env, network: Network
) -> tuple[Callable[[Array], Games], Callable[[Params, Array, Games], tuple[Games, Moves]]]:
    """The functions that start B games, and play one move in each by Gumbel search (Danihelka et al. 2022)."""
    config, simulations = experiment.actors, experiment.search.simulations
    view, step = jax.vmap(env.view), jax.vmap(env.step)

    def evaluate(params: Params, states: EnvState) -> tuple[View, jax.Array, jax.Array]:
        seen = view(states)
        logits, value = network.apply(params, seen.observation)
        return seen, jnp.where(seen.legal, logits, -1e9), value

    def recurrent(params: Params, key: Array, action: Array, states: EnvState) -> tuple[Any, EnvState]:
        mover, states = view(states).player, step(states, action)
        seen, logits, value = evaluate(params, states)
        reward = jnp.take_along_axis(seen.rewards, mover[:, None], axis=1)[:, 0]
        # What is good for the player to move is bad for the opponent who moved; after the end nothing follows.
        discount = jnp.where(seen.done, 0.0, jnp.where(seen.player == mover, 1.0, -1.0))
        return mctx.RecurrentFnOutput(reward=reward, discount=discount, prior_logits=logits, value=value), states

    def start(key: Array) -> Games:
        init_key, opens_key, length_key = jax.random.split(key, 3)
        states = jax.vmap(env.init)(jax.random.split(init_key, config.games))
        opens = jax.random.bernoulli(opens_key, config.opening_fraction, (config.games,))
        length = jax.random.randint(length_key, (config.games,), 0, config.opening_plies + 1)
        return Games(states, jnp.zeros(config.games, jnp.int32), jnp.where(opens, length, 0))

    def play(params: Params, key: Array, games: Games) -> tuple[Games, Moves]:
        search_key, random_key, start_key = jax.random.split(key, 3)
        before, logits, value = evaluate(params, games.states)
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=games.states)
        found = mctx.gumbel_muzero_policy(params, search_key, root, recurrent, simulations, ~before.legal)
        searched = games.plies >= games.opening
        any_legal = jax.random.categorical(random_key, jnp.where(before.legal, 0.0, -jnp.inf))
        states = step(games.states, jnp.where(searched, found.action, any_legal))
        after = view(states)
        moves = Moves(
            before.observation, before.legal, found.action_weights, before.player, searched, after.rewards, after.done
        )
        played = games._replace(states=states, plies=games.plies + 1)
        return jax.vmap(optax.tree.where)(after.done, start(start_key), played), moves

    return jax.jit(start), jax.jit(play)


# actors/assembly.py turns finished games into samples (with lambda-returns); replay/ is a ring like this one in Reverb,
# sharded over machines, whose rate limiter holds `samples_per_insert`.
class Replay:
    """The newest samples of finished games."""

    def __init__(self, capacity: int, games: int) -> None:
        self._capacity = capacity
        self._running: list[list[Moves]] = [[] for _ in range(games)]
        self._samples: list[Sample] = []
        self.inserted = 0

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, moves: Moves, version: int) -> None:
        """Keeps one move of all games; the games that it ended become samples, whose values are the outcome."""
        for row in range(len(moves.done)):
            if moves.searched[row]:
                self._running[row].append(moves)
            if moves.done[row]:
                for past in self._running[row]:
                    value = moves.rewards[row, past.player[row]]
                    fields = (past.observation[row], past.legal[row], past.policy[row])
                    self._insert(Sample(*fields, value_target=value, version=np.array(version, np.int32)))
                self._running[row] = []

    def sample(self, random: np.random.Generator, count: int) -> Sample:
        """A uniformly random batch `[count, ...]`."""
        drawn = [self._samples[index] for index in random.integers(len(self._samples), size=count)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *drawn)

    def _insert(self, sample: Sample) -> None:
        if len(self._samples) < self._capacity:
            self._samples.append(sample)
        else:
            self._samples[self.inserted % self._capacity] = sample
        self.inserted += 1


# learner/step.py makes a step, over the mesh of learner/sharding.py; learner/losses.py has the loss.
def make_train(
    experiment: Experiment, env: Env, network: Network, optimizer: optax.GradientTransformation
) -> Callable[[Params, Any, Array, Sample], tuple[Params, Any, jax.Array]]:
    """The function that makes one step of the optimizer on a batch, and returns the loss."""
    augment = make_augment(env.symmetries if experiment.learner.augment else (), env.spec.num_actions)

    def train(params: Params, opt_state: Any, key: Array, batch: Sample) -> tuple[Params, Any, jax.Array]:
        def loss(params: Params) -> jax.Array:
            return alphazero_loss(network, experiment.learner, params, augment(key, batch)).total

        value, gradients = jax.value_and_grad(loss)(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return jax.jit(train)


# actors/selfplay.py and learner/learner.py are the two loops into which this one is divided; runtime/params.py
# carries the parameters from one to the other, and evaluation/ judges them.
def run(experiment: Experiment, workdir: Workdir, minutes: float, steps: float = np.inf) -> int:
    """Plays and trains for so many minutes, or steps if they are made earlier, and saves the parameters.

    Returns:
      The number of steps.
    """
    assert isinstance(experiment.env, GameConfig)
    env, config, random = make_env(experiment.env), experiment.replay, np.random.default_rng(experiment.seed)
    network = make_network(experiment.network, env.spec)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(2e-3, weight_decay=1e-4))
    start, play = make_play(experiment, env, network)
    train = make_train(experiment, env, network, optimizer)
    key = jax.random.key(experiment.seed)
    params, games = jax.jit(network.init)(key), start(key)
    opt_state, replay = jax.jit(optimizer.init)(params), Replay(config.capacity, experiment.actors.games)
    batch_size, step, loss = experiment.learner.batch_size, 0, jnp.array(jnp.nan)
    told, end = 0.0, time.monotonic() + 60 * minutes
    workdir.open(experiment)
    while time.monotonic() < end and step < steps:
        key, play_key = jax.random.split(key)
        games, moves = play(params, play_key, games)
        replay.add(jax.device_get(moves), step)
        while step < (replay.inserted - config.min_size) * config.samples_per_insert / batch_size:
            key, train_key = jax.random.split(key)
            params, opt_state, loss = train(params, opt_state, train_key, replay.sample(random, batch_size))
            step += 1
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"step {step:,}  samples {replay.inserted:,}  loss {float(loss):.3f}", flush=True)
    save_snapshot(workdir.snapshots, step, params, experiment)
    return step


def main() -> None:
    """Trains the experiment of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="an experiment with a board game, as tic_tac_toe or connect_four")
    parser.add_argument("--minutes", type=float, default=3.0)
    options = parser.parse_args()
    workdir = Workdir(f"runs/alphazero-{options.config}")
    steps = run(load(options.config), workdir, options.minutes)
    print(f"{steps:,} steps; the agent is in {workdir.root}")


if __name__ == "__main__":
    main()
