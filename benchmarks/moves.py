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

    The network is untrained: its parameters do not change the time of a search.
    """
    parts = actor_parts(experiment)
    params: Params = parts.fold(make_network(experiment.network, make_env(experiment.env).spec).init(jax.random.key(0)))
    play = jax.jit(parts.core.move, donate_argnums=1)
    state = jax.jit(parts.core.init)(jax.random.key(experiment.seed))

    def move() -> None:
        nonlocal state
        state, moves = play(params, state)
        jax.device_get(moves)

    move()
    return move
