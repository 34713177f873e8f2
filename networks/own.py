"""Networks of one's own, named by an import path: Flax and Haiku modules, and pairs of functions.

docs/own_network.md is the contract. An adapter for each library turns what the path names into two functions, `init`
and `apply`. They make the module anew each time they are traced, since the dtype is known only then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, traverse_util

from podzero.config import OwnModelConfig, OwnNetworkConfig
from podzero.config.section import Parameters, own_code, signature_of
from podzero.core.errors import ConfigError
from podzero.core.types import Array, EnvSpec, ModelNetwork, Network, Params
from podzero.networks.layers import compute_dtype
from podzero.networks.muzero import LOG_STD_BOUNDS, MEAN_BOUND, action_features, decode, encode, projected, unit_range

Make = Callable[..., Any]
"""Calls what the path names with its keyword arguments."""


METRICS = "metrics"
"""The collection into which a Flax module sows what becomes a metric."""


class _Functions(NamedTuple):
    """What a path names, as pure functions."""

    init: Callable[..., tuple[Params, Iterable[str]]]
    """`(key, *inputs)` to nested dicts of parameters, and the names of other state of the module, which is refused."""
    apply: Callable[..., Any]
    """`(params, method, *inputs)` to what the method of the module returns."""
    sown: Callable[..., Mapping[str, Any]] | None = None
    """`(params, *inputs)` to the nested collection `METRICS` of the module; None if its library has no collections."""


def _linen(make: Make, every: Callable[..., Any]) -> _Functions:
    """`every(module, *inputs)` calls all methods, so that each creates its parameters."""

    def init(key: jax.Array, *inputs: jax.Array) -> tuple[Params, Iterable[str]]:
        variables = dict(make().init(key, *inputs, method=every))
        return variables.pop("params", {}), variables

    def apply(params: Params, method: str, *inputs: jax.Array) -> Any:
        return make().apply({"params": params}, *inputs, method=method)

    def sown(params: Params, *inputs: jax.Array) -> Mapping[str, Any]:
        collections = make().apply({"params": params}, *inputs, mutable=[METRICS])[1]
        found: Mapping[str, Any] = collections.get(METRICS, {})
        return found

    return _Functions(init, apply, sown)


def _nnx(make: Make, every: Callable[..., Any]) -> _Functions:
    del every  # modules of NNX create their parameters when they are made

    def init(key: jax.Array, *inputs: jax.Array) -> tuple[Params, Iterable[str]]:
        del inputs
        params, others = nnx.state(make(rngs=nnx.Rngs(key)), nnx.Param, ...)
        # The modules of a list have numbers, which become strings here; `replace_by_pure_dict` takes them as numbers.
        leaves = {tuple(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(params)}
        kinds = {type(leaf).__name__ for _, leaf in nnx.to_flat_state(others)}
        return nnx.traversals.unflatten_mapping(leaves), sorted(kinds)

    def apply(params: Params, method: str, *inputs: jax.Array) -> Any:
        graph, state = nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, dict(params))
        return getattr(nnx.merge(graph, state), method)(*inputs)

    return _Functions(init, apply)


def _haiku(make: Make, every: Callable[..., Any]) -> _Functions:
    def functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
        module = make()
        return partial(every, module), lambda method, *inputs: getattr(module, method)(*inputs)

    transformed = hk.multi_transform_with_state(functions)

    def apply(params: Params, method: str, *inputs: jax.Array) -> Any:
        return transformed.apply(params, {}, None, method, *inputs)[0]

    return _Functions(transformed.init, apply)


ADAPTERS: dict[type, Callable[[Make, Callable[..., Any]], _Functions]] = {
    nn.Module: _linen,
    nnx.Module: _nnx,
    hk.Module: _haiku,
}
"""The adapter for modules of each library."""


def _pair(make: Make, where: str) -> _Functions:
    """The functions of what a function returns: a pair of functions, or a transformed Haiku function."""

    def pair() -> Any:
        made = make()
        if isinstance(made, hk.TransformedWithState):
            made = hk.without_state(made)
        if isinstance(made, hk.Transformed):
            return hk.without_apply_rng(made)
        if isinstance(made, tuple) and len(made) == 2 and all(map(callable, made)):
            return hk.Transformed(*made)
        raise ConfigError(
            f"{where} is {_described(made)}; expected a Flax or Haiku module class, or a function that returns the two "
            "functions init(key, observation) and apply(params, observation), or hk.transform(...)"
        )

    return _Functions(
        lambda key, observation: (pair().init(key, observation), ()),
        lambda params, method, observation: pair().apply(params, observation),
    )


class _Own:
    """A user's network, whose exceptions become errors that name the line of the user's code."""

    def __init__(
        self,
        config: OwnNetworkConfig | OwnModelConfig,
        spec: EnvSpec,
        more: Mapping[str, Any],
        every: Callable[..., Any],
        methods: tuple[str, ...] = (),
    ) -> None:
        """Imports what `config.name` names.

        It is given those of the shapes of `spec`, the dtype to compute in and `more` that it has parameters for.
        `every` calls all methods of a module. If `methods` are given, it must be a module with these.
        """
        offered = {"num_actions": spec.num_actions, "observation_shape": spec.observation_shape, **more}
        self.code = own_code(config, "network", (*offered, "dtype"), _parameters)
        self._offered, self._config = offered, config
        if config.compute_dtype == "bfloat16" and "dtype" not in self.code.parameters:
            raise ConfigError(
                f"{self.code.where} has no argument 'dtype', so it computes in float32; give it one, or remove "
                "network.compute_dtype"
            )
        target = self.code.target
        bases = inspect.getmro(target) if inspect.isclass(target) else ()
        adapter = next((adapter for base, adapter in ADAPTERS.items() if base in bases), None)
        if methods and not (adapter and all(hasattr(target, name) for name in methods)):
            raise ConfigError(
                f"{self.code.where} is no Flax or Haiku module class with the methods {', '.join(methods)}, which a "
                "network that learns a model needs"
            )
        self._reported = () if methods else (METRICS,)
        """The state that becomes metrics."""
        self._functions = adapter(self._make, every) if adapter else _pair(self._make, self.code.where)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype to compute in, see `compute_dtype`."""
        return compute_dtype(self._config.compute_dtype if "dtype" in self.code.parameters else "float32")

    def _make(self, **more: Any) -> Any:
        return self.code.make({**self._offered, "dtype": self.dtype}, **more)

    def init(self, key: Array, *inputs: jax.Array) -> Params:
        """The parameters, without other state of the module."""
        with self.code.running("its initialization"):
            params, state = self._functions.init(jnp.asarray(key), *inputs)
        if found := ", ".join(name for name in state if name not in self._reported):
            raise ConfigError(
                f"{self.code.where} holds state besides its parameters ({found}), which podzero does not support; "
                "replace batch normalization by layer, group or weight normalization, and remove dropout"
            )
        return params

    def run(self, params: Params, method: str, *inputs: jax.Array, returns: tuple[str, ...]) -> list[jax.Array]:
        """The outputs of a method, of which there must be as many as `returns` has names."""
        what = "its evaluation" if method == "__call__" else f"{method}()"
        with self.code.running(what):
            found = self._functions.apply(params, method, *inputs)
        outputs = found if isinstance(found, (tuple, list)) else [found]
        if len(outputs) != len(returns):
            raise ConfigError(f"{self.code.where}: {what} gave {_described(found)}; expected {' and '.join(returns)}")
        return [jnp.asarray(output) for output in outputs]

    def metrics(self, params: Params, *inputs: jax.Array) -> dict[str, jax.Array]:
        """The means of what a Flax module sows as `METRICS` in its evaluation, by the path of each."""
        if self._functions.sown is None:
            return {}
        with self.code.running("its evaluation"):
            sown = traverse_util.flatten_dict(self._functions.sown(params, *inputs), sep="/")  # type: ignore[no-untyped-call]
        # A module that is called several times sows a value each time.
        return {f"network/{path}": jnp.mean(jnp.stack([*map(jnp.mean, values)])) for path, values in sown.items()}


def _parameters(target: Any) -> Parameters:
    """The parameters of a function or class, without those that its library passes."""
    if not (inspect.isclass(target) and issubclass(target, tuple(ADAPTERS))):
        return signature_of(target)
    # The metaclasses of NNX and Haiku hide the signature of a class.
    found = signature_of(target.__init__)
    return {name: each for name, each in found.items() if name not in ("self", "parent", "name", "rngs")}


def _described(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"an array of shape {list(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"


def own_network(config: OwnNetworkConfig, spec: EnvSpec) -> Network:
    """The network that `config.name` names.

    Observations get the dtype to compute in, float32 for networks without an argument `dtype`; outputs get float32.
    """
    own = _Own(config, spec, {"num_values": spec.values}, every=lambda module, observation: module(observation))

    def init(key: Array) -> Params:
        return own.init(key, jnp.zeros((1, *spec.observation_shape), own.dtype))

    def apply(params: Params, observation: Array) -> tuple[jax.Array, jax.Array]:
        observed = jnp.asarray(observation, own.dtype)
        logits, value = own.run(params, "__call__", observed, returns=("policy logits", "values"))
        return logits.astype(jnp.float32), value.astype(jnp.float32)

    def metrics(params: Params, observation: Array) -> dict[str, jax.Array]:
        return own.metrics(params, jnp.asarray(observation, own.dtype))

    return Network(init, apply, metrics=metrics)


def own_model(config: OwnModelConfig, spec: EnvSpec) -> ModelNetwork:
    """The network that `config.name` names, for an environment of which it learns a model.

    podzero adds the projection of the consistency loss, encodes actions as `[B, A]` or `[B, D]` float32, rescales
    latent states to [0, 1], and bounds the policies of continuous actions.
    """
    offered = {"action_shape": spec.action_shape, "bins": config.bins}
    own = _Own(config, spec, offered, _every_method, ("represent", "predict", "dynamics"))

    projection = hk.transform(partial(projected, width=config.projection))

    def features(action: Array) -> jax.Array:
        return action_features(action, spec).astype(own.dtype)

    def init(key: Array) -> Params:
        own_key, projection_key = jax.random.split(jnp.asarray(key))
        observation = jnp.zeros((1, *spec.observation_shape), own.dtype)
        action = features(jnp.zeros((1, *spec.action_shape), jnp.float32 if spec.action_shape else jnp.int32))
        params = {"network": own.init(own_key, observation, action)}
        return params | {"projection": projection.init(projection_key, represent(params, observation), True)}

    def represent(params: Params, observation: Array) -> jax.Array:
        observed = jnp.asarray(observation, own.dtype)
        (latent,) = own.run(params["network"], "represent", observed, returns=("latent states",))
        return unit_range(latent)

    def predict(params: Params, latent: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = own.run(params["network"], "predict", latent.astype(own.dtype), returns=("policies", "value logits"))
        policy, value = (output.astype(jnp.float32) for output in found)
        return _bounded(policy) if spec.action_shape else policy, value

    def dynamics(params: Params, latent: jax.Array, action: Array) -> tuple[jax.Array, jax.Array]:
        inputs, returns = (latent.astype(own.dtype), features(action)), ("latent states", "reward logits")
        after, reward = own.run(params["network"], "dynamics", *inputs, returns=returns)
        if after.shape != latent.shape:
            shapes = f"{list(after.shape)}; expected {list(latent.shape)}"
            raise ConfigError(f"{own.code.where}: dynamics() returned latent states of shape {shapes}")
        return unit_range(after), reward.astype(jnp.float32)

    return ModelNetwork(
        init=init,
        represent=represent,
        predict=predict,
        dynamics=dynamics,
        project=lambda params, latent, predicted: projection.apply(params["projection"], None, latent, predicted),
        encode=partial(encode, support=config.support),
        decode=partial(decode, support=config.support),
        observe=lambda params, observations: params,
    )


def _bounded(policy: jax.Array) -> jax.Array:
    """Bounds means and log standard deviations `[B, 2, D]` as those of the built-in networks."""
    mean = MEAN_BOUND * jnp.tanh(policy[:, 0] / MEAN_BOUND)
    return jnp.stack([mean, jnp.clip(policy[:, 1], *LOG_STD_BOUNDS)], axis=1)


def _every_method(module: Any, observation: jax.Array, action: jax.Array) -> Any:
    """Calls all methods, so that each creates its parameters."""
    latent = module.represent(observation)
    return module.predict(latent), module.dynamics(latent, action)
