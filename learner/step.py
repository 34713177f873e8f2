"""The train state and its step: several optimizer steps in one dispatch, guarded against NaN, with averaged weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from podzero.learner.losses import LossOutput
from podzero.learner.objectives import Objective
from podzero.learner.optimizers import Rate
from podzero.learner.sharding import batch_sharding, put_batch, replicated
from podzero.types import Array, Batch, Params


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The state that a train step updates and a checkpoint contains."""

    step: Array
    """`[]` int32, optimizer steps so far, including those that the NaN guard skipped."""
    progress: Array
    """`[]` float32 in [0, 1], how far the run has come towards its end, as of the newest dispatch."""
    params: Params
    """The weights that the optimizer updates, float32."""
    ema: Params
    """Their exponential moving average, which actors use."""
    opt_state: Any
    """The state of the optax optimizer."""
    key: Array
    """`[]` typed PRNG key of the augmentation."""


def init_state(init: Callable[[Array], Params], optimizer: optax.GradientTransformation, key: Array) -> TrainState:
    """The state before the first step, with parameters from `init`; `key` is consumed."""
    init_key, train_key = jax.random.split(key)
    params = init(init_key)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        progress=jnp.zeros((), jnp.float32),
        params=params,
        ema=jax.tree.map(jnp.copy, params),
        opt_state=optimizer.init(params),
        key=train_key,
    )


def with_progress(state: TrainState, progress: float) -> TrainState:
    """The state on the devices with another progress, which must be the same on all hosts."""
    assert isinstance(state.progress, jax.Array)
    return replace(state, progress=put_batch(np.float32(progress), state.progress.sharding))


class StepSums(NamedTuple):
    """Sums over the steps of a dispatch, each `[]` float32. Skipped steps add to `skipped` only."""

    steps: jax.Array
    """Steps that updated the weights."""
    skipped: jax.Array
    """Steps whose loss or gradient was not finite."""
    gradient_norm: jax.Array
    """Before clipping."""
    learning_rate: jax.Array
    policy_age: jax.Array
    """Mean over the batch of the learner step minus the step of the parameters that searched the sample."""
    metrics: dict[str, jax.Array]
    """The objective's metrics by name."""


class TrainStepSpec(NamedTuple):
    """The components of a train step."""

    objective: Objective
    metric_names: Sequence[str]
    """Names of the objective's metrics."""
    optimizer: optax.GradientTransformation
    """With a learning rate of 1."""
    rate: Rate
    """The learning rate."""
    ema_decay: float
    """Decay per step of the averaged weights; with 0 they equal the raw weights."""
    microbatches: int = 1
    """Number of parts of a batch whose gradients are accumulated one after another."""

    def zero_sums(self) -> StepSums:
        """The sums before the first step."""
        zero = jnp.zeros((), jnp.float32)
        return StepSums(zero, zero, zero, zero, zero, dict.fromkeys(self.metric_names, zero))


class StepOutput(NamedTuple):
    """The output of a dispatch of K steps."""

    state: TrainState
    sums: StepSums
    errors: Sequence[jax.Array]
    """Absolute errors of the samples' values, float32: concatenated `[K, B]`, in one part per executed program."""


TrainStep = Callable[[TrainState, Batch], StepOutput]
"""Maps a state (donated) and batches `[K, B, ...]` to the state K steps later, with sums and errors."""

_Carry = tuple[TrainState, StepSums]


def make_train_step(spec: TrainStepSpec, mesh: Mesh, shardings: TrainState) -> TrainStep:
    """The dispatch of K steps over `mesh`, compiled at its first call; `shardings` are those of the state.

    On accelerators the K steps are one program, a `lax.scan`, so that the host dispatches once per K steps. On CPU they
    are K dispatches of one program. XLA:CPU executes loop bodies without its fast convolutions: a scan took 5.3 s per
    step where single dispatches took 0.24 s (64x5 convolutions and their gradients, batch 64, 2 cores). A fully
    unrolled scan is as fast as single dispatches, but compiles K bodies instead of one.
    """
    carry_shardings = (shardings, jax.tree.map(lambda _: replicated(mesh), jax.eval_shape(spec.zero_sums)))
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    step = partial(_step, spec, shardings.params, spec.microbatches if on_cpu else 1)
    compiled = partial(jax.jit, donate_argnums=0)

    def scan(state: TrainState, batches: Batch) -> StepOutput:
        (state, sums), errors = jax.lax.scan(step, (state, spec.zero_sums()), with_relative_weights(batches))
        return StepOutput(state, sums, [errors])

    def indexed(carry: _Carry, batches: Batch, index: Array) -> tuple[_Carry, jax.Array]:
        carry, errors = step(carry, with_relative_weights(jax.tree.map(lambda leaf: leaf[index], batches)))
        return carry, errors[None]

    if not on_cpu:
        error_shardings: Any = [batch_sharding(mesh)]
        return compiled(
            scan,
            in_shardings=(carry_shardings[0], batch_sharding(mesh)),
            out_shardings=StepOutput(*carry_shardings, error_shardings),
        )

    zeros = jax.jit(spec.zero_sums, out_shardings=carry_shardings[1])
    dispatch_one = compiled(
        indexed,
        in_shardings=(carry_shardings, batch_sharding(mesh), None),
        out_shardings=(carry_shardings, batch_sharding(mesh)),
    )

    def loop(state: TrainState, batches: Batch) -> StepOutput:
        carry, errors = (state, zeros()), []
        for index in range(batches.samples.version.shape[0]):
            carry, step_errors = dispatch_one(carry, batches, jax.device_put(np.int32(index)))
            errors.append(step_errors)
        return StepOutput(*carry, errors)

    return loop


def with_relative_weights(batches: Batch) -> Batch:
    """Importance weights `w / max w` of each batch, so that they only scale updates downwards (Schaul et al. 2016,
    https://arxiv.org/abs/1511.05952, section 3.4).

    Batches are those of all hosts, so the devices exchange the maximum. It is taken for all batches `[K, B, ...]` of a
    program at once: one small all-reduce in a dispatch instead of one in each step, whose latency would show.
    """
    if batches.weight is None:
        return batches
    weight = jnp.asarray(batches.weight)
    return batches._replace(weight=weight / jnp.max(weight, axis=-1, keepdims=True))


def _step(spec: TrainStepSpec, shardings: Params, unroll: int, carry: _Carry, batch: Batch) -> tuple[_Carry, jax.Array]:
    """One optimizer step on a batch `[B, ...]` with relative weights; gradients get the parameters' `shardings`."""
    state, sums = carry
    key, augment_key = jax.random.split(state.key)
    gradients, loss = _gradients(spec, unroll, state.params, spec.objective.augment(augment_key, batch))
    constrain: Any = jax.lax.with_sharding_constraint
    gradients = constrain(gradients, shardings)
    norm = optax.tree.norm(gradients)
    updates, opt_state = spec.optimizer.update(gradients, state.opt_state, state.params)
    rate = spec.rate(state.step, state.progress)
    updated_params = optax.apply_updates(state.params, optax.tree.scale(rate, updates))
    params = spec.objective.observe(updated_params, batch)
    ema = optax.incremental_update(params, state.ema, 1.0 - ema_decay_at(state.step, spec.ema_decay))
    skipped = replace(state, step=state.step + 1, key=key)
    updated = replace(skipped, params=params, ema=ema, opt_state=opt_state)
    finite = jnp.isfinite(loss.total) & jnp.isfinite(norm)  # the norm is finite only if all gradients are
    age = jnp.mean((state.step - batch.samples.version).astype(jnp.float32))
    update_sums = StepSums(jnp.float32(1), jnp.float32(0), norm, rate, age, loss.metrics)
    skip_sums = spec.zero_sums()._replace(skipped=jnp.float32(1))
    sums = optax.tree.add(sums, optax.tree.where(finite, update_sums, skip_sums))
    return (optax.tree.where(finite, updated, skipped), sums), loss.errors


def _gradients(spec: TrainStepSpec, unroll: int, params: Params, batch: Batch) -> tuple[Params, LossOutput]:
    """Gradients and loss, both means over a batch `[B, ...]`, accumulated over microbatches."""

    def objective(params: Params, microbatch: Batch) -> tuple[jax.Array, LossOutput]:
        loss = spec.objective.loss(params, microbatch)
        return loss.total, loss

    gradient: Callable[[Params, Batch], tuple[Params, LossOutput]] = jax.grad(objective, has_aux=True)
    count = spec.microbatches
    if count == 1:
        return gradient(params, batch)
    # A microbatch takes every count-th sample, so that it is sharded over the devices as the batch is.
    microbatches = jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(-1, count, *leaf.shape[1:]), 1, 0), batch)

    def accumulate(total: Params, microbatch: Batch) -> tuple[Params, LossOutput]:
        gradients, loss = gradient(params, microbatch)
        return optax.tree.add(total, gradients), loss

    total, losses = jax.lax.scan(accumulate, optax.tree.zeros_like(params), microbatches, unroll=unroll)
    gradients, loss = jax.tree.map(lambda leaf: leaf / count, total), jax.tree.map(jnp.mean, losses)
    return gradients, loss._replace(errors=jnp.moveaxis(losses.errors, 0, 1).reshape(-1))


def ema_decay_at(step: Array, decay: float) -> jax.Array:
    """`min(decay, (1 + t) / (10 + t))` for step t: the weight of the random initial parameters decays quickly."""
    t = jnp.asarray(step, jnp.float32)
    return jnp.minimum(decay, (1.0 + t) / (10.0 + t))
