"""Self-play without an actor's loop: the program that plays one move of all games."""

from __future__ import annotations

from collections.abc import Callable

import jax

from podzero.config import Experiment
from podzero.driver.build import actor_parts
from podzero.envs import make_env
from podzero.networks import make_network
from podzero.types import Params


def self_play(experiment: Experiment) -> Callable[[], None]:
    """A function that plays one move of all games and fetches it; it is compiled already.

    New parameters arrive as often as in training. So int8 calibrates and compiles as often (an actor does it in the
    background), and its cache holds no more than it would hold. The network is untrained, which changes the time of a
    search through the cache alone: trained networks return to the same positions more often.
    """
    parts = actor_parts(experiment)
    trained: Params = make_network(experiment.network, make_env(experiment.env).spec).init(jax.random.key(0))
    play = jax.jit(parts.core.move, donate_argnums=1)
    state, params = jax.jit(parts.core.init)(jax.random.key(experiment.seed)), parts.fold(trained)
    moves, due = 0, moves_per_version(experiment)

    def move() -> None:
        nonlocal state, params, moves
        if moves and moves % due == 0:
            params = parts.fold(trained)
        state, played = play(params, state)
        jax.device_get(played)
        moves += 1

    move()
    return move


def moves_per_version(experiment: Experiment) -> int:
    """Moves of an actor, of all its games, between two versions of the parameters where play and learning keep pace."""
    learner, actors = experiment.learner, experiment.actors
    samples = learner.publish_every * learner.batch_size / experiment.replay.samples_per_insert
    return max(1, round(samples / (actors.count * actors.games)))
