"""Self-play without an actor's loop: the program that plays one move of all games."""

from __future__ import annotations

import logging
from collections.abc import Callable

import jax

from podzero.config import Experiment
from podzero.envs import make_env
from podzero.inference import BackgroundSource
from podzero.networks import make_network
from podzero.runtime.build import actor_parts
from podzero.types import Params, Versioned

log = logging.getLogger(__name__)

COMPILATION_S = 600.0
"""Longest wait for the first parameters."""


def self_play(experiment: Experiment) -> Callable[[], None]:
    """A function that plays one move of all games and fetches it; it is compiled already.

    New parameters are published as often as in training, and taken as an actor with int8 does: in the background, and
    not too often. So the cache of int8 holds no more than it would hold. The network is untrained, which changes the
    time of a search through the cache alone: trained networks return to the same positions more often.
    """
    log.info("compiling self-play: %s, actors.inference=%s", experiment.env.title, experiment.actors.inference)
    parts = actor_parts(experiment)
    trained: Params = make_network(experiment.network, make_env(experiment.env).spec).init(jax.random.key(0))
    source = BackgroundSource(_Published(trained, moves_per_version(experiment)), parts.fold)
    play = jax.jit(parts.core.move, donate_argnums=1)
    state, params = jax.jit(parts.core.init)(jax.random.key(experiment.seed)), source.wait(COMPILATION_S).params

    def move() -> None:
        nonlocal state, params
        if newer := source.poll():
            params = newer.params
        state, played = play(params, state)
        jax.device_get(played)

    move()
    return move


class _Published:
    """A `ParamSource` with the same parameters as a new version after every `moves` polls."""

    def __init__(self, params: Params, moves: int) -> None:
        self._params = params
        self._moves = moves
        self._polls = self._version = 0

    def wait(self, timeout_s: float) -> Versioned:
        """The first version; never waits."""
        return Versioned(self._version, self._params)

    def poll(self) -> Versioned | None:
        """A new version, if it is due."""
        self._polls += 1
        if self._polls // self._moves == self._version:
            return None
        self._version = self._polls // self._moves
        return Versioned(self._version, self._params)


def moves_per_version(experiment: Experiment) -> int:
    """Moves of an actor, of all its games, between two versions of the parameters where play and learning keep pace."""
    learner, actors = experiment.learner, experiment.actors
    samples = learner.publish_every * learner.batch_size / experiment.replay.samples_per_insert
    return max(1, round(samples / (actors.count * actors.games)))
