"""What the learner of a slice asks for: chips that play, or chips of inference servers and cores of their actors."""

from __future__ import annotations

import math
import time
from typing import Any

import jax
import jax.numpy as jnp

from podzero.config import Experiment
from podzero.envs import make_env
from podzero.runtime.build import selfplay_core
from podzero.tools.compile.verdict import Verdict
from podzero.tools.compile.waiting import evaluations_per_move, moves_asked
from podzero.types import Array, EnvState, Params

_MOVES = 4
"""Moves over which the time of a core is measured, after one that compiles."""


def needed_moves_per_s(experiment: Experiment, learner: Verdict) -> float:
    """Moves/s from which the learner never waits, by its samples/s of the compiler.

    Args:
      experiment: of the learner.
      learner: its program, which fits.
    """
    program = learner.program
    seconds = learner.estimated_seconds() + learner.seconds()["links"]
    fresh, _ = experiment.batch_parts
    return moves_asked(experiment, fresh * program.trip_count / seconds)


def moves_per_core_s(experiment: Experiment) -> float:
    """Moves that one core of this machine plays in a second: rules and tree, without the network.

    Args:
      experiment: of a game in JAX.
    """
    games = max(1, experiment.actors.games // experiment.server.groups)
    search = experiment.search
    changes: dict[str, object] = {"actors": experiment.actors.model_copy(update={"games": games})}
    if experiment.actors.inference == "device":  # whose trees are not those of actors on CPUs
        changes["search"] = search.model_copy(update={"tree": "mctx", "slots": None})
    env = make_env(experiment.env)

    def evaluate(params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        del params, key
        batch = len(jax.tree.leaves(states)[0])
        return jnp.zeros((batch, env.spec.num_actions)), jnp.zeros(batch)

    core = selfplay_core(experiment.model_copy(update=changes), env, evaluate)
    start = jax.jit(core.init)(jax.random.key(0))

    move = jax.jit(core.move)
    state, played = move(None, start)
    jax.device_get(played)
    began = time.process_time()  # of all threads, so that it does not matter how many cores JAX uses
    for _ in range(_MOVES):
        state, played = move(None, state)
        jax.device_get(played)
    return games * _MOVES / (time.process_time() - began)


def feeding(
    experiment: Experiment, learner: Verdict, server: Verdict, playing: dict[str, Any], per_core_s: float
) -> dict[str, float]:
    """How many chips, or chips and cores, play what the learner learns from.

    Args:
      experiment: of all programs.
      learner: its program on the slice.
      server: the program of an inference server on one chip.
      playing: the rates of `device` on one chip.
      per_core_s: moves/s of a core, by `moves_per_core_s`.
    """
    moves = needed_moves_per_s(experiment, learner)
    evaluations = moves * evaluations_per_move(experiment)
    served = server.program.batch / server.estimated_seconds()
    return {
        "moves_per_s": moves,
        "evaluations_per_s": evaluations,
        "device_chips": math.ceil(evaluations / playing["evaluations_per_s"]),
        "server_chips": math.ceil(evaluations / served),
        "server_cores": math.ceil(moves / per_core_s),
        "server_chip_evaluations_per_s": served,
        "core_moves_per_s": per_core_s,
    }
