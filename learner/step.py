"""The train step: several optimizer steps in one dispatch, guarded against NaN, with averaged weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from podzero.learner.augment import Augment
from podzero.learner.losses import Loss, alphazero_loss
from podzero.learner.sharding import batch_sharding, replicated
from podzero.learner.state import TrainState
from podzero.types import Array, Network, Params, Sample


class StepSums(NamedTuple):
    """What the steps of a dispatch add up, each `[]` float32. Skipped steps add to `skipped` only."""

    steps: jax.Array
    """Steps that moved the weights."""
    skipped: jax.Array
    """Steps whose loss or gradient was not finite."""
    loss: jax.Array
    policy_loss: jax.Array
    policy_kl: jax.Array
    value_loss: jax.Array
    gradient_norm: jax.Array
    """Before clipping."""
    policy_age: jax.Array
    """Mean over the batch of (learner step - the step whose weights searched the position)."""

    @classmethod
    def zeros(cls) -> StepSums:
        """Nothing added yet."""
        return cls(*(jnp.zeros((), jnp.float32) for _ in cls._fields))


class Recipe(NamedTuple):
    """What a train step is made of."""

    network: Network
    optimizer: optax.GradientTransformation
    augment: Augment
    value_weight: float
    """Weight of the value's squared error beside the policy's cross-entropy."""
    ema_decay: float
    """Decay per step of the averaged weights; 0 makes them equal the raw ones."""
    microbatches: int = 1
    """Parts of a batch whose gradients are added up one after the other."""


TrainStep = Callable[[TrainState, Sample], tuple[TrainState, StepSums]]
"""Maps a state (donated) and batches `[K, B, ...]` to the state K steps later and the sums over them."""

_Carry = tuple[TrainState, StepSums]


def make_train_step(recipe: Recipe, mesh: Mesh, shardings: TrainState) -> TrainStep:
    """The dispatch of K steps over `mesh`, compiled at its first call; `shardings` say where the state's leaves lie.

    On accelerators the K steps are one program, a `lax.scan`, so that the host speaks to the device once per K steps.
    On CPU they are K dispatches of one program. XLA:CPU runs loop bodies without its fast convolutions: a scan took
    5.3 s a step where single dispatches took 0.24 s (64x5 convolutions and their gradients, batch 64, 2 cores). A fully
    unrolled scan is as fast as single dispatches, but compiles K bodies instead of one.
    """
    carry_shardings = (shardings, jax.tree.map(lambda _: replicated(mesh), jax.eval_shape(StepSums.zeros)))
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    step = partial(_step, recipe, shardings.params, recipe.microbatches if on_cpu else 1)
    compiled = partial(jax.jit, donate_argnums=0, out_shardings=carry_shardings)

    def scan(state: TrainState, batches: Sample) -> _Carry:
        carry = (state, StepSums.zeros())
        return jax.lax.scan(lambda carry, batch: (step(carry, batch), None), carry, batches)[0]

    def indexed(carry: _Carry, batches: Sample, index: Array) -> _Carry:
        return step(carry, jax.tree.map(lambda leaf: leaf[index], batches))

    if not on_cpu:
        return compiled(scan, in_shardings=(carry_shardings[0], batch_sharding(mesh)))

    zeros = jax.jit(StepSums.zeros, out_shardings=carry_shardings[1])
    dispatch_one = compiled(indexed, in_shardings=(carry_shardings, batch_sharding(mesh), None))

    def loop(state: TrainState, batches: Sample) -> _Carry:
        carry = (state, zeros())
        for index in range(batches.legal.shape[0]):
            carry = dispatch_one(carry, batches, jax.device_put(np.int32(index)))
        return carry

    return loop


def _step(recipe: Recipe, shardings: Params, unroll: int, carry: _Carry, batch: Sample) -> _Carry:
    """One optimizer step on a batch `[B, ...]`; gradients lie as `shardings` says of the parameters."""
    state, sums = carry
    key, augment_key = jax.random.split(state.key)
    gradients, loss = _gradients(recipe, unroll, state.params, recipe.augment(augment_key, batch))
    constrain: Any = jax.lax.with_sharding_constraint
    gradients = constrain(gradients, shardings)
    norm = optax.tree.norm(gradients)
    updates, opt_state = recipe.optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    ema = average(state.ema, params, ema_decay_at(state.step, recipe.ema_decay))
    moved = TrainState(state.step + 1, params, ema, opt_state, key)
    skipped = TrainState(state.step + 1, state.params, state.ema, state.opt_state, key)
    # The norm is finite only when all gradients are.
    finite = jnp.isfinite(loss.total) & jnp.isfinite(norm)
    age = jnp.mean((state.step - batch.version).astype(jnp.float32))
    one = StepSums(jnp.float32(1), jnp.float32(0), loss.total, loss.policy, loss.policy_kl, loss.value, norm, age)
    none = StepSums.zeros()._replace(skipped=jnp.float32(1))
    return _where(finite, moved, skipped), jax.tree.map(jnp.add, sums, _where(finite, one, none))


def _gradients(recipe: Recipe, unroll: int, params: Params, batch: Sample) -> tuple[Params, Loss]:
    """Gradients and loss, both means over a batch `[B, ...]`, one microbatch after the other."""

    def objective(params: Params, part: Sample) -> tuple[jax.Array, Loss]:
        loss = alphazero_loss(recipe.network, recipe.value_weight, params, part)
        return loss.total, loss

    gradient: Callable[[Params, Sample], tuple[Params, Loss]] = jax.grad(objective, has_aux=True)
    count = recipe.microbatches
    if count == 1:
        return gradient(params, batch)
    # Every count-th sample, so that each part is spread over the devices as the batch is.
    parts = jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(-1, count, *leaf.shape[1:]), 1, 0), batch)

    def add(total: tuple[Params, Loss], part: Sample) -> tuple[tuple[Params, Loss], None]:
        return jax.tree.map(jnp.add, total, gradient(params, part)), None

    shapes = jax.eval_shape(gradient, params, jax.tree.map(lambda leaf: leaf[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(add, zeros, parts, unroll=unroll)
    mean: tuple[Params, Loss] = jax.tree.map(lambda leaf: leaf / count, total)
    return mean


def ema_decay_at(step: Array, decay: float) -> jax.Array:
    """`min(decay, (1 + t) / (10 + t))` for step t: early averages forget the random start quickly."""
    t = jnp.asarray(step, jnp.float32)
    return jnp.minimum(decay, (1.0 + t) / (10.0 + t))


def average(ema: Params, params: Params, decay: Array) -> Params:
    """`decay * ema + (1 - decay) * params`, leaf by leaf."""
    return jax.tree.map(lambda old, new: decay * old + (1.0 - decay) * new, ema, params)


def _where(condition: jax.Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
