"""The FLOPs of training a network, counted in its jaxpr without compiling or running it.

The count is that of model FLOPs utilization (Chowdhery et al. 2022, appendix B, https://arxiv.org/abs/2204.02311): the
multiply-adds, two operations each, of the matrix products and convolutions of the loss and of its gradients. It
excludes elementwise operations, the optimizer, augmentation and rematerialization (`network.remat`). Like XLA's own
count it also excludes products with the zero padding around a board.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from podzero.learner.objectives import Objective
from podzero.samples import with_axes
from podzero.types import Batch, Params, Sample, Window


def training_flops(objective: Objective, like: Sample | Window, batch_size: int) -> float:
    """FLOPs per sample of one step, forward and backward.

    They are counted in the forward-mode derivative: reverse mode transposes each of its products into one of equal
    size, and forward mode rematerializes nothing.

    Args:
      objective: of which the loss is counted.
      like: the shape of one sample.
      batch_size: samples of a batch.
    """

    def derivative(params: Params, direction: Params, batch: Batch) -> Any:
        return jax.jvp(lambda p: objective.loss(p, batch).total, (params,), (direction,))

    params = jax.eval_shape(objective.init, jax.random.key(0))
    traced = jax.make_jaxpr(derivative)(params, params, Batch(with_axes(like, batch_size)))
    return flops_of(traced) / batch_size


def flops_of(jaxpr: Jaxpr) -> float:
    """FLOPs of all products in a jaxpr: of a scan times its length, of a `cond` those of the largest branch, of a
    `while`, whose trip count depends on data, those of one iteration.
    """
    return sum(map(_flops, jaxpr.eqns))


def _flops(eqn: JaxprEqn) -> float:
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        left, out = _shape(eqn.invars[0]), _shape(eqn.outvars[0])
        return 2.0 * float(math.prod(out) * math.prod(left[d] for d in contracted))
    if eqn.primitive.name == "conv_general_dilated":
        return _convolution(eqn)
    inner = [flops_of(jaxpr) for jaxpr in jaxprs_in_params(eqn.params)]
    if eqn.primitive.name == "cond":
        return max(inner)
    trip_count: int = eqn.params["length"] if eqn.primitive.name == "scan" else 1
    return sum(inner) * trip_count


def _convolution(eqn: JaxprEqn) -> float:
    params, layout = eqn.params, eqn.params["dimension_numbers"]
    image, kernel, out = map(_shape, (*eqn.invars, *eqn.outvars))
    pairs = 1
    for at, (i, k, o) in enumerate(zip(layout.lhs_spec[2:], layout.rhs_spec[2:], layout.out_spec[2:], strict=True)):
        dilation = params["lhs_dilation"][at]
        starts = np.arange(out[o])[:, None] * params["window_strides"][at] - params["padding"][at][0]
        met = starts + np.arange(kernel[k]) * params["rhs_dilation"][at]
        pairs *= int(np.sum((met >= 0) & (met < image[i] * dilation) & (met % dilation == 0)))
    batch, features = (out[d] for d in layout.out_spec[:2])
    return 2.0 * float(pairs * batch * features * kernel[layout.rhs_spec[1]])


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(map(int, variable.aval.shape))
