"""The train state and the train step: K optimizer steps per dispatch, guarded against NaN, with averaged weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podzero.core.types import Array, Batch, PackedBatch, Params, Sample, Window
from podzero.learner.losses import LossOutput
from podzero.learner.objectives import Objective
from podzero.learner.optimizers import Rate
from podzero.learner.sharding import SAMPLE_AXES, batch_sharding, put_batch, replicated


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The state that a train step updates and a checkpoint contains."""

    step: Array
    """`[]` int32, number of optimizer steps so far, including those that the NaN guard skipped."""
    progress: Array
    """`[]` float32 in [0, 1], the run's progress at the newest dispatch."""
    params: Params
    """The weights that the optimizer updates, float32."""
    ema: Params
    """The exponential moving average of the weights, which actors use."""
    opt_state: Any
    key: Array
    """`[]` typed PRNG key, for augmentation."""
    teacher: Params | None = None
    """The teacher's parameters, which stay as they are and are in no checkpoint; None without a teacher."""


def init_state(init: Callable[[Array], Params], optimizer: optax.GradientTransformation, key: Array) -> TrainState:
    """The state before the first step; `key` is consumed."""
    init_key, train_key = jax.random.split(key)
    params = init(init_key)
    step, progress = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32)
    ema = jax.tree.map(jnp.copy, params)
    return TrainState(step, progress, params, ema, optimizer.init(params), train_key)


def with_progress(state: TrainState, progress: float) -> TrainState:
    """The state with another progress, which must be equal on all hosts."""
    assert isinstance(state.progress, jax.Array)
    return replace(state, progress=put_batch(np.float32(progress), state.progress.sharding))


class StepSums(NamedTuple):
    """Sums over the steps of a dispatch, each `[]` float32. Skipped steps only add to `skipped`."""

    steps: jax.Array
    """Number of steps that updated the weights."""
    skipped: jax.Array
    """Number of steps whose loss or gradient was not finite."""
    gradient_norm: jax.Array
    """Norm of the gradient before clipping."""
    learning_rate: jax.Array
    metrics: dict[str, jax.Array]


class TrainStepSpec(NamedTuple):
    """The components of a train step."""

    objective: Objective
    unpack: Callable[[Array], Sample | Window]
    """Unpacks rows `[B, row_bytes]`."""
    metric_names: Sequence[str]
    optimizer: optax.GradientTransformation
    """The optimizer, with a learning rate of 1."""
    rate: Rate
    ema_decay: float
    """Decay of the averaged weights per step; with 0 they equal the raw weights."""
    microbatches: int = 1
    """Number of parts into which a batch is split to accumulate gradients."""

    def zero_sums(self) -> StepSums:
        """The sums before the first step."""
        zero = jnp.zeros((), jnp.float32)
        return StepSums(zero, zero, zero, zero, dict.fromkeys(self.metric_names, zero))


class StepOutput(NamedTuple):
    """The output of a dispatch of K steps."""

    state: TrainState
    sums: StepSums
    errors: Sequence[jax.Array]
    """Absolute errors of the samples' values, float32, one array per executed program; `[K, B]` if concatenated."""


TrainStep = Callable[[TrainState, PackedBatch], StepOutput]
"""Maps a state, which is donated, and batches `[K, B, ...]` to the state K steps later, with sums and errors."""

_Carry = tuple[TrainState, StepSums]


def make_train_step(spec: TrainStepSpec, mesh: Mesh, shardings: TrainState) -> TrainStep:
    """Builds the dispatch of K steps over `mesh`, which compiles at its first call."""
    carry_shardings = (shardings, jax.tree.map(lambda _: replicated(mesh), jax.eval_shape(spec.zero_sums)))
    # Samples are sharded as their rows: without saying so, XLA would shard parts of a sample too.
    constrain: Any = jax.lax.with_sharding_constraint
    samples: Any = NamedSharding(mesh, PartitionSpec(SAMPLE_AXES))  # type: ignore[no-untyped-call]
    unpack = spec.unpack
    spec = spec._replace(unpack=lambda rows: constrain(unpack(rows), samples))
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    # A CPU unrolls the microbatches, since it is slow inside loops; see below.
    step = partial(_step, spec, shardings.params, spec.microbatches if on_cpu else 1)
    compiled = partial(jax.jit, donate_argnums=0)

    def scan(state: TrainState, batches: PackedBatch) -> StepOutput:
        (state, sums), errors = jax.lax.scan(step, (state, spec.zero_sums()), with_relative_weights(batches))
        return StepOutput(state, sums, [errors])

    def indexed(carry: _Carry, batches: PackedBatch, index: Array) -> tuple[_Carry, jax.Array]:
        carry, errors = step(carry, with_relative_weights(jax.tree.map(lambda leaf: leaf[index], batches)))
        return carry, errors[None]

    # Accelerators run the K steps as one program, so that the host dispatches only once.
    if not on_cpu:
        error_shardings: Any = [batch_sharding(mesh)]
        return compiled(
            scan,
            in_shardings=(carry_shardings[0], batch_sharding(mesh)),
            out_shardings=StepOutput(*carry_shardings, error_shardings),
        )

    # CPUs run K programs of one step. XLA:CPU executes loop bodies without its fast convolutions: a scan took 5.3 s per
    # step, single dispatches 0.24 s (64x5 convolutions and gradients, batch 64, 2 cores). An unrolled scan is as fast,
    # but compiles K bodies instead of one.
    zeros = jax.jit(spec.zero_sums, out_shardings=carry_shardings[1])
    dispatch_one = compiled(
        indexed,
        in_shardings=(carry_shardings, batch_sharding(mesh), None),
        out_shardings=(carry_shardings, batch_sharding(mesh)),
    )

    def loop(state: TrainState, batches: PackedBatch) -> StepOutput:
        carry, errors = (state, zeros()), []
        for index in range(batches.rows.shape[0]):
            carry, step_errors = dispatch_one(carry, batches, jax.device_put(np.int32(index)))
            errors.append(step_errors)
        return StepOutput(*carry, errors)

    return loop


def with_relative_weights(batches: PackedBatch) -> PackedBatch:
    """Divides the importance weights of each batch by the largest, so that they only scale updates down (Schaul et al.
    2016, https://arxiv.org/abs/1511.05952, section 3.4).
    """
    if batches.weight is None:
        return batches
    # The devices exchange the maximum. For all batches [K, B, ...] of a program at once, that is one small all-reduce
    # per dispatch and not one per step, whose latency would show.
    weight = jnp.asarray(batches.weight)
    return batches._replace(weight=weight / jnp.max(weight, axis=-1, keepdims=True))


def _step(
    spec: TrainStepSpec, shardings: Params, unroll: int, carry: _Carry, packed: PackedBatch
) -> tuple[_Carry, jax.Array]:
    """One optimizer step on a batch `[B, ...]`; gradients get the parameters' `shardings`."""
    state, sums = carry
    batch = Batch(spec.unpack(packed.rows), packed.weight)
    key, augment_key = jax.random.split(state.key)
    gradients, loss = _gradients(spec, unroll, state, spec.objective.augment(augment_key, batch))
    assert loss.errors.shape == batch.samples.version.shape
    # Sharded as the parameters, so that XLA may reduce-scatter the gradients instead of all-reducing them.
    constrain: Any = jax.lax.with_sharding_constraint
    gradients = constrain(gradients, shardings)
    norm = optax.tree.norm(gradients)
    updates, opt_state = spec.optimizer.update(gradients, state.opt_state, state.params)
    rate = spec.rate(state.step, state.progress)
    updated_params = optax.apply_updates(state.params, optax.tree.scale(rate, updates))
    params = spec.objective.observe(updated_params, batch)
    ema = optax.incremental_update(params, state.ema, 1.0 - ema_decay_at(state.step, spec.ema_decay))
    # The NaN guard: if the loss or any gradient is not finite, the step counts but changes no weights. The norm is
    # finite only if all gradients are.
    skipped = replace(state, step=state.step + 1, key=key)
    updated = replace(skipped, params=params, ema=ema, opt_state=opt_state)
    finite = jnp.isfinite(loss.total) & jnp.isfinite(norm)
    update_sums = StepSums(jnp.float32(1), jnp.float32(0), norm, rate, loss.metrics)
    skip_sums = spec.zero_sums()._replace(skipped=jnp.float32(1))
    sums = optax.tree.add(sums, optax.tree.where(finite, update_sums, skip_sums))
    return (optax.tree.where(finite, updated, skipped), sums), loss.errors


def _gradients(spec: TrainStepSpec, unroll: int, state: TrainState, batch: Batch) -> tuple[Params, LossOutput]:
    """The gradients and loss of a batch `[B, ...]`, accumulated over microbatches: means over the batch."""

    def objective(params: Params, microbatch: Batch) -> tuple[jax.Array, LossOutput]:
        # The teacher evaluates one microbatch at a time, which bounds its activations like those of the network.
        loss = spec.objective.taught_loss(params, state.teacher, state.step, microbatch)
        return loss.total, loss

    gradient: Callable[[Params, Batch], tuple[Params, LossOutput]] = jax.grad(objective, has_aux=True)
    params, count = state.params, spec.microbatches
    if count == 1:
        return gradient(params, batch)
    # A microbatch takes every `count`-th sample, so that it is spread over the devices like the batch.
    microbatches = jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(-1, count, *leaf.shape[1:]), 1, 0), batch)

    def accumulate(total: Params, microbatch: Batch) -> tuple[Params, LossOutput]:
        gradients, loss = gradient(params, microbatch)
        return optax.tree.add(total, gradients), loss

    total, losses = jax.lax.scan(accumulate, optax.tree.zeros_like(params), microbatches, unroll=unroll)
    weight = None if batch.weight is None else jnp.sum(microbatches.weight, axis=1)
    metrics = jax.tree.map(partial(jnp.average, weights=weight), losses.metrics)
    # Errors [count, B / count] return to the order of the batch.
    errors = jnp.moveaxis(losses.errors, 0, 1).reshape(-1)
    return jax.tree.map(lambda leaf: leaf / count, total), LossOutput(jnp.mean(losses.total), metrics, errors)


def ema_decay_at(step: Array, decay: float) -> jax.Array:
    """`min(decay, (1 + t) / (10 + t))` at step t, so that the random initial weights fade quickly."""
    t = jnp.asarray(step, jnp.float32)
    return jnp.minimum(decay, (1.0 + t) / (10.0 + t))
