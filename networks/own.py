"""Networks of one's own, named by an import path: Flax and Haiku modules, and pairs of functions.

docs/own_network.md is the contract. Each kind has an adapter, which turns what the path names into two functions:
`init(key, observation)`, which returns nested dicts of parameters, and `apply(params, observation)`, which returns
logits and values. They make the module anew each time they are traced, since the dtype is known only then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from podzero.config import OwnNetworkConfig
from podzero.errors import ConfigError
from podzero.networks.layers import compute_dtype
from podzero.own_code import Parameters, own_code, signature_of
from podzero.types import Array, EnvSpec, Network, Params

OFFERED = ("num_actions", "observation_shape", "dtype")
"""The arguments that podzero passes to what takes them: A, the shape of one observation, the dtype to compute in."""

Make = Callable[..., Any]
"""Calls what the path names with its keyword arguments."""


class _Functions(NamedTuple):
    """A network before its inputs and outputs are converted."""

    init: Callable[[jax.Array, jax.Array], Params]
    """Maps a key and observations `[1, ...]` to nested dicts."""
    apply: Callable[[Params, jax.Array], Any]
    """Maps parameters and observations `[B, ...]` to what the user's code returns."""


def own_network(config: OwnNetworkConfig, spec: EnvSpec) -> Network:
    """The network that `config.name` names.

    Observations are converted to the dtype to compute in: float32 for networks that take no argument `dtype`. Outputs
    are converted to float32.

    Raises:
      ConfigError: it cannot be imported, its file is not that of the experiment, or it does not take the arguments of
        the experiment. `init` and `apply` raise it if the user's code fails while they are traced.
    """
    code = own_code(config, "network", OFFERED, _parameters)
    takes_dtype = "dtype" in code.parameters
    if config.compute_dtype == "bfloat16" and not takes_dtype:
        raise ConfigError(
            f"{code.where} has no argument 'dtype', so it computes in float32; give it one, or remove "
            "network.compute_dtype"
        )

    def dtype() -> np.dtype[np.generic]:
        return compute_dtype(config.compute_dtype if takes_dtype else "float32")

    def make(**more: Any) -> Any:
        offered = {"num_actions": spec.num_actions, "observation_shape": spec.observation_shape, "dtype": dtype()}
        return code.make(offered, **more)

    functions = _adapt(code.target, make, code.where)

    def init(key: Array) -> Params:
        with code.running("its initialization"):
            return functions.init(jnp.asarray(key), jnp.zeros((1, *spec.observation_shape), dtype()))

    def apply(params: Params, observation: Array) -> tuple[jax.Array, jax.Array]:
        with code.running("its evaluation"):
            outputs = functions.apply(params, jnp.asarray(observation, dtype()))
        if not (isinstance(outputs, (tuple, list)) and len(outputs) == 2):
            raise ConfigError(f"{code.where}: it returned {_described(outputs)}; expected policy logits and values")
        logits, value = (jnp.asarray(output, jnp.float32) for output in outputs)
        return logits, value

    return Network(init, apply)


def _parameters(target: Any) -> Parameters:
    """The parameters of a function or class, without those that its library passes."""
    if not (inspect.isclass(target) and issubclass(target, (nn.Module, nnx.Module, hk.Module))):
        return signature_of(target)
    # The metaclasses of NNX and Haiku hide the signature of a class.
    found = signature_of(target.__init__)
    return {name: each for name, each in found.items() if name not in ("self", "parent", "name", "rngs")}


def _adapt(target: Any, make: Make, where: str) -> _Functions:
    """The functions of what a path names."""
    if inspect.isclass(target) and issubclass(target, nn.Module):
        return _linen(make, where)
    if inspect.isclass(target) and issubclass(target, nnx.Module):
        return _nnx(make, where)
    if inspect.isclass(target) and issubclass(target, hk.Module):

        def evaluate(observation: jax.Array) -> Any:
            return make()(observation)

        return _haiku(lambda: hk.transform_with_state(evaluate), where)
    return _returned(make, where)


def _linen(make: Make, where: str) -> _Functions:
    def init(key: jax.Array, observation: jax.Array) -> Params:
        variables = make().init(key, observation)
        _refuse_state([name for name in variables if name != "params"], where)
        return variables.get("params", {})

    return _Functions(init, lambda params, observation: make().apply({"params": params}, observation))


def _nnx(make: Make, where: str) -> _Functions:
    def init(key: jax.Array, observation: jax.Array) -> Params:
        del observation
        _, params, *rest = nnx.split(make(rngs=nnx.Rngs(key)), nnx.Param, ...)
        _refuse_state(sorted({type(each).__name__ for _, each in nnx.to_flat_state(rest[0])}), where)
        return _named(nnx.to_pure_dict(params))

    def apply(params: Params, observation: jax.Array) -> Any:
        graph, state = nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, _renamed(params, nnx.to_pure_dict(state)))
        return nnx.merge(graph, state)(observation)

    return _Functions(init, apply)


def _named(tree: Any) -> Any:
    """Nested dicts with strings as keys: NNX numbers the modules of a list."""
    return {str(key): _named(child) for key, child in tree.items()} if isinstance(tree, Mapping) else tree


def _renamed(params: Params, like: Any) -> Any:
    """The inverse of `_named`, with the keys of `like`."""
    return {key: _renamed(params[str(key)], child) for key, child in like.items()} if isinstance(like, dict) else params


def _haiku(transformed: Callable[[], hk.TransformedWithState], where: str) -> _Functions:
    def init(key: jax.Array, observation: jax.Array) -> Params:
        params, state = transformed().init(key, observation)
        _refuse_state(list(state), where)
        return params

    return _Functions(init, lambda params, observation: transformed().apply(params, {}, None, observation)[0])


def _returned(make: Make, where: str) -> _Functions:
    """The functions of what a function returns: a transformed Haiku function, or a pair of functions."""

    def pair() -> _Functions:
        made = make()
        if isinstance(made, hk.TransformedWithState):
            return _haiku(lambda: made, where)
        if isinstance(made, hk.Transformed):
            return _Functions(made.init, lambda params, observation: made.apply(params, None, observation))
        if isinstance(made, tuple) and len(made) == 2 and all(map(callable, made)):
            return _Functions(*made)
        raise ConfigError(
            f"{where} is {_described(made)}; expected a Flax or Haiku module class, or a function that returns the two "
            "functions init(key, observation) and apply(params, observation), or a transformed Haiku function"
        )

    return _Functions(
        lambda key, observation: pair().init(key, observation),
        lambda params, observation: pair().apply(params, observation),
    )


def _refuse_state(kinds: list[str], where: str) -> None:
    """Refuses variables other than parameters, such as running means or the state of dropout."""
    if kinds:
        raise ConfigError(
            f"{where} holds state besides its parameters ({', '.join(kinds)}), which podzero does not support; replace "
            "batch normalization by layer, group or weight normalization, and remove dropout"
        )


def _described(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"an array of shape {list(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
