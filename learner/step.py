"""The train step: several optimizer steps in one dispatch, guarded against NaN, with averaged weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from podzero.learner.objectives import LossOutput, Objective
from podzero.learner.sharding import batch_sharding, replicated
from podzero.learner.state import TrainState
from podzero.types import Array, Batch, Params


class StepSums(NamedTuple):
    """What the steps of a dispatch add up, each `[]` float32. Skipped steps add to `skipped` only."""

    steps: jax.Array
    """Steps that moved the weights."""
    skipped: jax.Array
    """Steps whose loss or gradient was not finite."""
    gradient_norm: jax.Array
    """Before clipping."""
    policy_age: jax.Array
    """Mean over the batch of (learner step - the step whose weights searched the position)."""
    parts: dict[str, jax.Array]
    """The objective's figures by name."""


class Recipe(NamedTuple):
    """What a train step is made of."""

    objective: Objective
    parts: Sequence[str]
    """Names of the objective's figures."""
    optimizer: optax.GradientTransformation
    ema_decay: float
    """Decay per step of the averaged weights; 0 makes them equal the raw ones."""
    microbatches: int = 1
    """Parts of a batch whose gradients are added up one after the other."""

    def no_sums(self) -> StepSums:
        """Nothing added yet."""
        zero = jnp.zeros((), jnp.float32)
        return StepSums(zero, zero, zero, zero, dict.fromkeys(self.parts, zero))


class Stepped(NamedTuple):
    """What a dispatch of K steps gives back."""

    state: TrainState
    sums: StepSums
    errors: Sequence[jax.Array]
    """Absolute errors of the samples' values: one after the other `[K, B]` float32, in as many parts along K as there
    were programs."""


TrainStep = Callable[[TrainState, Batch], Stepped]
"""Maps a state (donated) and batches `[K, B, ...]` to the state K steps later, and what there is to say of them."""

_Carry = tuple[TrainState, StepSums]


def make_train_step(recipe: Recipe, mesh: Mesh, shardings: TrainState) -> TrainStep:
    """The dispatch of K steps over `mesh`, compiled at its first call; `shardings` say where the state's leaves lie.

    On accelerators the K steps are one program, a `lax.scan`, so that the host speaks to the device once per K steps.
    On CPU they are K dispatches of one program. XLA:CPU runs loop bodies without its fast convolutions: a scan took
    5.3 s a step where single dispatches took 0.24 s (64x5 convolutions and their gradients, batch 64, 2 cores). A fully
    unrolled scan is as fast as single dispatches, but compiles K bodies instead of one.
    """
    carry_shardings = (shardings, jax.tree.map(lambda _: replicated(mesh), jax.eval_shape(recipe.no_sums)))
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    step = partial(_step, recipe, shardings.params, recipe.microbatches if on_cpu else 1)
    compiled = partial(jax.jit, donate_argnums=0)

    def scan(state: TrainState, batches: Batch) -> Stepped:
        (state, sums), errors = jax.lax.scan(step, (state, recipe.no_sums()), batches)
        return Stepped(state, sums, [errors])

    def indexed(carry: _Carry, batches: Batch, index: Array) -> tuple[_Carry, jax.Array]:
        carry, errors = step(carry, jax.tree.map(lambda leaf: leaf[index], batches))
        return carry, errors[None]

    if not on_cpu:
        where: Any = [batch_sharding(mesh)]
        return compiled(
            scan,
            in_shardings=(carry_shardings[0], batch_sharding(mesh)),
            out_shardings=Stepped(*carry_shardings, where),
        )

    zeros = jax.jit(recipe.no_sums, out_shardings=carry_shardings[1])
    dispatch_one = compiled(
        indexed,
        in_shardings=(carry_shardings, batch_sharding(mesh), None),
        out_shardings=(carry_shardings, batch_sharding(mesh)),
    )

    def loop(state: TrainState, batches: Batch) -> Stepped:
        carry, errors = (state, zeros()), []
        for index in range(batches.samples.version.shape[0]):
            carry, wrong = dispatch_one(carry, batches, jax.device_put(np.int32(index)))
            errors.append(wrong)
        return Stepped(*carry, errors)

    return loop


def _step(recipe: Recipe, shardings: Params, unroll: int, carry: _Carry, batch: Batch) -> tuple[_Carry, jax.Array]:
    """One optimizer step on a batch `[B, ...]`; gradients lie as `shardings` says of the parameters."""
    state, sums = carry
    key, prepare_key = jax.random.split(state.key)
    prepared = recipe.objective.prepare(prepare_key, batch)
    gradients, terms = _gradients(recipe, unroll, state.params, prepared)
    constrain: Any = jax.lax.with_sharding_constraint
    gradients = constrain(gradients, shardings)
    norm = optax.tree.norm(gradients)
    updates, opt_state = recipe.optimizer.update(gradients, state.opt_state, state.params)
    params = recipe.objective.observe(optax.apply_updates(state.params, updates), batch)
    ema = average(state.ema, params, ema_decay_at(state.step, recipe.ema_decay))
    moved = TrainState(state.step + 1, params, ema, opt_state, key)
    skipped = TrainState(state.step + 1, state.params, state.ema, state.opt_state, key)
    # The norm is finite only when all gradients are.
    finite = jnp.isfinite(terms.total) & jnp.isfinite(norm)
    age = jnp.mean((state.step - batch.samples.version).astype(jnp.float32))
    one = StepSums(jnp.float32(1), jnp.float32(0), norm, age, terms.parts)
    none = recipe.no_sums()._replace(skipped=jnp.float32(1))
    carry = (_where(finite, moved, skipped), jax.tree.map(jnp.add, sums, _where(finite, one, none)))
    return carry, terms.errors


def _gradients(recipe: Recipe, unroll: int, params: Params, batch: Batch) -> tuple[Params, LossOutput]:
    """Gradients and loss, both means over a batch `[B, ...]`, one microbatch after the other."""

    def objective(params: Params, part: Batch) -> tuple[jax.Array, LossOutput]:
        terms = recipe.objective.loss(params, part)
        return terms.total, terms

    gradient: Callable[[Params, Batch], tuple[Params, LossOutput]] = jax.grad(objective, has_aux=True)
    count = recipe.microbatches
    if count == 1:
        return gradient(params, batch)
    # Every count-th sample, so that each part is spread over the devices as the batch is.
    parts = jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(-1, count, *leaf.shape[1:]), 1, 0), batch)

    def add(total: tuple[Params, LossOutput], part: Batch) -> tuple[tuple[Params, LossOutput], jax.Array]:
        gradients, terms = gradient(params, part)
        alone = terms._replace(errors=jnp.zeros(()))
        return jax.tree.map(jnp.add, total, (gradients, alone)), terms.errors

    shapes = jax.eval_shape(gradient, params, jax.tree.map(lambda leaf: leaf[0], parts))
    shapes = (shapes[0], shapes[1]._replace(errors=jax.eval_shape(lambda: jnp.zeros(()))))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, errors = jax.lax.scan(add, zeros, parts, unroll=unroll)
    gradients, terms = jax.tree.map(lambda leaf: leaf / count, total)
    return gradients, terms._replace(errors=jnp.moveaxis(errors, 0, 1).reshape(-1))


def ema_decay_at(step: Array, decay: float) -> jax.Array:
    """`min(decay, (1 + t) / (10 + t))` for step t: early averages forget the random start quickly."""
    t = jnp.asarray(step, jnp.float32)
    return jnp.minimum(decay, (1.0 + t) / (10.0 + t))


def average(ema: Params, params: Params, decay: Array) -> Params:
    """`decay * ema + (1 - decay) * params`, leaf by leaf."""
    return jax.tree.map(lambda old, new: decay * old + (1.0 - decay) * new, ema, params)


def _where(condition: jax.Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
