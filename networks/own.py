"""Networks of one's own, named by an import path: Flax and Haiku modules, and pairs of functions.

docs/own_network.md is the contract. Each kind has an adapter, which turns what the path names into two functions:
`init(key, observation)`, which returns nested dicts of parameters, and `apply(params, observation)`, which returns
logits and values. They make the module anew each time they are traced, since the dtype is known only then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from podzero.config import OwnModelConfig, OwnNetworkConfig
from podzero.config.own_code import OwnCode, Parameters, own_code, signature_of
from podzero.core.errors import ConfigError
from podzero.core.types import Array, EnvSpec, ModelNetwork, Network, Params
from podzero.networks.layers import compute_dtype
from podzero.networks.muzero import LOG_STD_BOUNDS, MEAN_BOUND, Projection, action_features, decode, encode, unit_range

OFFERED = ("num_actions", "observation_shape", "dtype")
"""The arguments that podzero passes to what takes them: A, the shape of one observation, the dtype to compute in."""
NETWORK_OFFERED = (*OFFERED, "num_values")
"""The arguments offered to networks of games: also the number of values of a position, `EnvSpec.values`."""

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
    code = own_code(config, "network", NETWORK_OFFERED, _parameters)
    known = {"num_actions": spec.num_actions, "observation_shape": spec.observation_shape, "num_values": spec.values}
    dtype, make = _making(code, config, known)
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


def _making(
    code: OwnCode, config: OwnNetworkConfig | OwnModelConfig, offered: Mapping[str, Any]
) -> tuple[Callable[[], np.dtype[np.generic]], Make]:
    """The dtype to compute in, known only while tracing, and what makes the network with the arguments `offered`.

    Raises:
      ConfigError: bfloat16 is asked for, and the network takes no dtype.
    """
    takes_dtype = "dtype" in code.parameters
    if config.compute_dtype == "bfloat16" and not takes_dtype:
        raise ConfigError(
            f"{code.where} has no argument 'dtype', so it computes in float32; give it one, or remove "
            "network.compute_dtype"
        )

    def dtype() -> np.dtype[np.generic]:
        return compute_dtype(config.compute_dtype if takes_dtype else "float32")

    def make(**more: Any) -> Any:
        return code.make({**offered, "dtype": dtype()}, **more)

    return dtype, make


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

    return _Functions(init, lambda params, observation: _nnx_module(make, params)(observation))


def _nnx_module(make: Make, params: Params) -> Any:
    graph, state = nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))
    nnx.replace_by_pure_dict(state, _renamed(params, nnx.to_pure_dict(state)))
    return nnx.merge(graph, state)


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


MODEL_OFFERED = (*OFFERED, "action_shape", "bins")
"""The arguments offered to networks that learn a model: also the shape of one action (empty for discrete actions), and
the number of logits of a value or a reward."""
METHODS = ("represent", "predict", "dynamics")
"""The methods of a module that learns a model."""


class _Methods(NamedTuple):
    """A network that learns a model before its inputs and outputs are converted."""

    init: Callable[[jax.Array, jax.Array, jax.Array], Params]
    """Maps a key, observations and actions, each with a batch of one, to nested dicts."""
    call: Callable[..., Any]
    """Maps parameters, the name of a method and its arguments to what the user's code returns."""


def own_model(config: OwnModelConfig, spec: EnvSpec) -> ModelNetwork:
    """The network that `config.name` names, for an environment of which it learns a model.

    podzero adds the projection of the consistency loss, encodes actions as `[B, A]` or `[B, D]` float32, rescales
    latent states to [0, 1], and bounds the policies of continuous actions.

    Raises:
      ConfigError: see `own_network`.
    """
    code = own_code(config, "network", MODEL_OFFERED, _parameters)
    known = {"num_actions": spec.num_actions, "observation_shape": spec.observation_shape}
    dtype, make = _making(code, config, {**known, "action_shape": spec.action_shape, "bins": config.bins})
    model = _OwnModel(code, spec, dtype, _adapt_model(code.target, make, code.where), config.projection)
    return ModelNetwork(
        init=model.init,
        represent=model.represent,
        predict=model.predict,
        dynamics=model.dynamics,
        project=model.project,
        encode=partial(encode, support=config.support),
        decode=partial(decode, support=config.support),
        observe=lambda params, observations: params,
    )


class _OwnModel:
    """The functions of a `ModelNetwork`, which call the user's methods."""

    def __init__(
        self, code: OwnCode, spec: EnvSpec, dtype: Callable[[], np.dtype[np.generic]], methods: _Methods, width: int
    ) -> None:
        """`width` is that of the projection."""
        self._code, self._spec, self._dtype, self._methods = code, spec, dtype, methods

        def projected(latent: jax.Array, predicted: bool) -> jax.Array:
            return Projection(width)(latent, predicted)

        self._projection = hk.transform(projected)

    def init(self, key: Array) -> Params:
        spec = self._spec
        own_key, projection_key = jax.random.split(jnp.asarray(key))
        observation = jnp.zeros((1, *spec.observation_shape), self._dtype())
        action = self._features(jnp.zeros((1, *spec.action_shape), jnp.float32 if spec.action_shape else jnp.int32))
        with self._code.running("its initialization"):
            params = {"network": self._methods.init(own_key, observation, action)}
        latent = self.represent(params, observation)
        return params | {"projection": self._projection.init(projection_key, latent, True)}

    def represent(self, params: Params, observation: Array) -> jax.Array:
        return unit_range(jnp.asarray(self._run(params, "represent", jnp.asarray(observation, self._dtype()))))

    def predict(self, params: Params, latent: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = self._run(params, "predict", latent.astype(self._dtype()), outputs=2)
        policy, value = (jnp.asarray(output, jnp.float32) for output in found)
        return _bounded(policy) if self._spec.action_shape else policy, value

    def dynamics(self, params: Params, latent: jax.Array, action: Array) -> tuple[jax.Array, jax.Array]:
        found = self._run(params, "dynamics", latent.astype(self._dtype()), self._features(action), outputs=2)
        after, reward = (jnp.asarray(output, jnp.float32) for output in found)
        if after.shape != latent.shape:
            shapes = f"{list(after.shape)}; expected {list(latent.shape)}"
            raise ConfigError(f"{self._code.where}: dynamics() returned latent states of shape {shapes}")
        return unit_range(after), reward

    def project(self, params: Params, latent: jax.Array, predicted: bool) -> jax.Array:
        projected: jax.Array = self._projection.apply(params["projection"], None, latent, predicted)
        return projected

    def _features(self, action: Array) -> jax.Array:
        return action_features(action, self._spec).astype(self._dtype())

    def _run(self, params: Params, method: str, *inputs: jax.Array, outputs: int = 1) -> Any:
        with self._code.running(f"{method}()"):
            found = self._methods.call(params["network"], method, *inputs)
        if outputs != (len(found) if isinstance(found, (tuple, list)) else 1):
            where = self._code.where
            raise ConfigError(f"{where}: {method}() returned {_described(found)}; expected {outputs} array(s)")
        return found


def _bounded(policy: jax.Array) -> jax.Array:
    """Bounds means and log standard deviations `[B, 2, D]` as those of the built-in networks."""
    mean = MEAN_BOUND * jnp.tanh(policy[:, 0] / MEAN_BOUND)
    return jnp.stack([mean, jnp.clip(policy[:, 1], *LOG_STD_BOUNDS)], axis=1)


def _each_method(module: Any, observation: jax.Array, action: jax.Array) -> Any:
    """Calls all methods, so that each creates its parameters."""
    latent = module.represent(observation)
    return module.predict(latent), module.dynamics(latent, action)


def _adapt_model(target: Any, make: Make, where: str) -> _Methods:
    """The methods of what a path names."""
    kinds = (nn.Module, nnx.Module, hk.Module)
    if not (inspect.isclass(target) and issubclass(target, kinds) and all(hasattr(target, name) for name in METHODS)):
        raise ConfigError(
            f"{where} is no Flax or Haiku module class with the methods {', '.join(METHODS)}, which a network that "
            "learns a model needs"
        )
    if issubclass(target, nn.Module):
        return _linen_methods(make, where)
    return _nnx_methods(make, where) if issubclass(target, nnx.Module) else _haiku_methods(make, where)


def _linen_methods(make: Make, where: str) -> _Methods:
    def init(key: jax.Array, observation: jax.Array, action: jax.Array) -> Params:
        variables = make().init(key, observation, action, method=_each_method)
        _refuse_state([name for name in variables if name != "params"], where)
        return variables.get("params", {})

    def call(params: Params, method: str, *inputs: jax.Array) -> Any:
        return make().apply({"params": params}, *inputs, method=method)

    return _Methods(init, call)


def _nnx_methods(make: Make, where: str) -> _Methods:
    def init(key: jax.Array, observation: jax.Array, action: jax.Array) -> Params:
        del action
        return _nnx(make, where).init(key, observation)

    return _Methods(init, lambda params, method, *inputs: getattr(_nnx_module(make, params), method)(*inputs))


def _haiku_methods(make: Make, where: str) -> _Methods:
    def functions() -> tuple[Callable[..., Any], dict[str, Callable[..., Any]]]:
        module = make()
        return partial(_each_method, module), {name: getattr(module, name) for name in METHODS}

    transformed = hk.multi_transform_with_state(functions)

    def init(key: jax.Array, observation: jax.Array, action: jax.Array) -> Params:
        params, state = transformed.init(key, observation, action)
        _refuse_state(list(state), where)
        return params

    return _Methods(init, lambda params, method, *inputs: transformed.apply[method](params, {}, None, *inputs)[0])
