"""The contracts that networks of one's own fulfil, checked on a few observations.

A network that violates its contract is refused by a `ConfigError` with a line for each fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from podzero.core.errors import ConfigError
from podzero.core.types import Array, EnvSpec, ModelNetwork, Network, Params

ROWS = 6
"""Observations per evaluation of the check."""
_TOLERANCE = 1e-4
"""Largest difference between two evaluations of a row, relative to the largest output: rounding."""


def check_network(network: Network, spec: EnvSpec, name: str) -> None:
    """Checks shapes, dtypes, ranges, determinism and that the rows of a batch are independent.

    The functions of the network should be jitted: each is called a few times with the same shapes. Messages call it
    `name`.
    """
    shapes = {"policy logits": (ROWS, spec.num_actions), "values": (ROWS, *spec.value_shape)}

    def run(params: Params, observation: Array) -> dict[str, jax.Array]:
        return dict(zip(shapes, network.apply(params, observation), strict=True))

    _refuse(_faults_of_outputs(run, _checked_params(network.init, name), spec, shapes), name)


def check_model(network: ModelNetwork, spec: EnvSpec, name: str) -> None:
    """Checks a network that learns a model: parameters, shapes, ranges, determinism, and independent rows."""
    action = np.zeros((ROWS, *spec.action_shape), np.float32 if spec.action_shape else np.int32)

    params = _checked_params(jax.jit(network.init), name)
    latent = jax.eval_shape(network.represent, params, observations(spec)).shape[1:]
    bins = network.encode(np.zeros(1, np.float32)).shape[-1]
    shapes = {
        "latent states": (ROWS, *latent),
        "next latent states": (ROWS, *latent),
        "policies": (ROWS, 2, *spec.action_shape) if spec.action_shape else (ROWS, spec.num_actions),
        "value logits": (ROWS, bins),
        "reward logits": (ROWS, bins),
    }

    @jax.jit
    def run(params: Params, observation: Array) -> dict[str, jax.Array]:
        latent = network.represent(params, observation)
        after, reward = network.dynamics(params, latent, action)
        return dict(zip(shapes, (latent, after, *network.predict(params, after), reward), strict=True))

    _refuse(_faults_of_outputs(run, params, spec, shapes), name)


def _refuse(faults: Iterable[str], name: str) -> None:
    if lines := [*faults]:
        raise ConfigError("\n  ".join([f"{name} violates the contract of networks (docs/own_network.md):", *lines]))


def observations(spec: EnvSpec, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random observations `[ROWS, *observation_shape]` of zeros and ones in the environment's dtype."""
    cells = np.random.default_rng(seed).random((ROWS, *spec.observation_shape))
    return (cells < 0.3).astype(spec.observation_dtype)


def _checked_params(init: Callable[[Array], Params], name: str) -> Params:
    """The parameters that `init` returns, if they fulfil the contract."""
    key = jax.random.key(0)
    params = init(key)
    _refuse(_faults_of_params(params, init(key)), name)
    return params


def _faults_of_params(made: Params, again: Params) -> Iterator[str]:
    leaves = jax.tree_util.tree_leaves_with_path(made)
    if not leaves:
        yield "init returns no parameters; expected nested dicts of arrays"
        return
    for path, leaf in leaves:
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        if not all(isinstance(entry, jax.tree_util.DictKey) and isinstance(entry.key, str) for entry in path):
            yield f"init returns parameters that are not nested dicts with strings as keys, at {where or 'the root'}"
            return
        if leaf.dtype != np.float32:
            yield f"parameter {where} has dtype {leaf.dtype}; expected float32, also where the network computes in less"
        elif not np.isfinite(leaf).all():
            yield f"parameter {where} is not finite after init"
    if not jax.tree.all(jax.tree.map(lambda one, two: np.array_equal(one, two, equal_nan=True), made, again)):
        yield "init is not deterministic: the same key gives different parameters; draw all random numbers from the key"


def _faults_of_outputs(
    run: Callable[[Params, Array], dict[str, jax.Array]],
    params: Params,
    spec: EnvSpec,
    shapes: dict[str, tuple[int, ...]],
) -> Iterator[str]:
    """What is wrong with the outputs that `run` returns by name; those called `values` must lie in [-1, 1]."""
    mine, mixed = observations(spec), observations(spec, seed=1)
    mixed[2] = mine[2]
    first, second, others = (jax.device_get(run(params, each)) for each in (mine, mine, mixed))
    for output, shape in shapes.items():
        one, two, three = first[output], second[output], others[output]
        if one.shape != shape:
            yield f"{output} of {ROWS} observations have shape {list(one.shape)}; expected {list(shape)}"
        elif one.dtype != np.float32:
            yield f"{output} have dtype {one.dtype}; expected float32"
        elif not np.isfinite(one).all():
            yield f"{output} are not finite after init (NaN or infinity)"
        elif output == "values" and np.abs(one).max() > 1:
            yield f"values reach {np.abs(one).max():.3g}; expected [-1, 1], for example by tanh"
        elif not np.array_equal(one, two):
            yield f"{output} of equal parameters and observations differ between two calls; expected a pure function"
        elif np.abs(one[2] - three[2]).max() > _TOLERANCE * max(np.abs(one).max(), 1e-3):
            yield f"{output} of an observation depend on the other observations of the batch"
