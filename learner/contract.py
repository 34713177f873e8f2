"""The contract that an optimizer of one's own fulfils, checked on the network's parameters before a run starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from podzero.errors import ConfigError
from podzero.learner.sharding import leaf_names
from podzero.types import Params

_STEPS = 3
"""Updates of the check."""


def check_optimizer(optimizer: optax.GradientTransformation, params: Params, name: str) -> None:
    """Checks that updates have the form of the parameters, are finite, and point against the gradient.

    Args:
      optimizer: the optimizer, with a learning rate of 1.
      params: the parameters of a network.
      name: what to call the optimizer in messages.

    Raises:
      ConfigError: the optimizer violates the contract; the message has a line for each fault.
    """
    faults = [*_faults_of_forms(optimizer, params)] or [*_faults_of_updates(optimizer, params)]
    if faults:
        raise ConfigError("\n  ".join([f"{name} violates the contract of optimizers (docs/own_parts.md):", *faults]))


def _faults_of_forms(optimizer: optax.GradientTransformation, params: Params) -> Iterator[str]:
    state = jax.eval_shape(optimizer.init, params)
    updates, after = jax.eval_shape(optimizer.update, params, state, params)
    for what, expected, found in (("updates", params, updates), ("the state after an update", state, after)):
        structures: list[Any] = [jax.tree.structure(tree) for tree in (expected, found)]
        if structures[0] != structures[1]:
            like = "the parameters" if expected is params else "the state of init"
            yield f"{what} have another structure than {like}: {structures[1]}"
            continue
        leaves = zip(leaf_names(expected), jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
        for path, one, two in leaves:
            if (one.shape, one.dtype) != (two.shape, two.dtype):
                yield f"{what}: {path} is {_form(two)}; expected {_form(one)}"


def _faults_of_updates(optimizer: optax.GradientTransformation, params: Params) -> Iterator[str]:
    gradient = optax.tree.random_like(jax.random.key(0), params)

    @jax.jit
    def step(state: Any) -> tuple[Any, jax.Array, jax.Array]:
        updates, state = optimizer.update(gradient, state, params)
        finite = jnp.isfinite(optax.tree.norm(updates))
        return state, finite, optax.tree.vdot(updates, gradient)

    state, slope = jax.jit(optimizer.init)(params), 0.0
    for number in range(1, _STEPS + 1):
        state, finite, change = step(state)
        if not finite:
            yield f"update {number} for a gradient of random numbers is not finite (NaN or infinity)"
            return
        slope += float(change)
    if slope > 0:
        yield (
            "updates point along the gradient, so the loss would rise; expected steps to be added to the parameters: "
            "end the chain with optax.scale_by_learning_rate(learning_rate)"
        )


def _form(leaf: Any) -> str:
    return f"{leaf.dtype} {list(leaf.shape)}"
