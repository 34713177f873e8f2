"""Networks of one's own, named by an import path: Flax and Haiku modules, and pairs of functions.

docs/own_network.md is the contract. Each kind has an adapter, which turns what the path names into two functions:
`init(key, observation)`, which returns nested dicts of parameters, and `apply(params, observation)`, which returns
logits and values. They make the module anew each time they are traced, since the dtype is known only then.
"""

from __future__ import annotations

import hashlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from podzero.config import OwnNetworkConfig
from podzero.errors import ConfigError, nearest
from podzero.importing import import_named
from podzero.networks.layers import compute_dtype
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
    where = f"network.name = '{config.name}'"
    target, digest = _imported(config.name)
    if config.sha256 not in (None, digest):
        raise ConfigError(
            f"{where}: the file is not the one that this experiment was started with: its SHA-256 is {digest}, the "
            f"experiment has network.sha256 = {config.sha256}; restore the file, or train the changed one in a new run "
            "(leave network.sha256 out)"
        )
    parameters = _parameters(target)
    _check_arguments(config, parameters, where)
    takes_dtype = "dtype" in parameters

    def dtype() -> np.dtype[np.generic]:
        return compute_dtype(config.compute_dtype if takes_dtype else "float32")

    def make(**more: Any) -> Any:
        offered = {"num_actions": spec.num_actions, "observation_shape": spec.observation_shape, "dtype": dtype()}
        taken = {name: value for name, value in offered.items() if name in parameters}
        return target(**config.arguments, **taken, **more)

    functions = _adapt(target, make, where)

    def init(key: Array) -> Params:
        with _user_code(config.name, "its initialization"):
            return functions.init(jnp.asarray(key), jnp.zeros((1, *spec.observation_shape), dtype()))

    def apply(params: Params, observation: Array) -> tuple[jax.Array, jax.Array]:
        with _user_code(config.name, "its evaluation"):
            outputs = functions.apply(params, jnp.asarray(observation, dtype()))
        if not (isinstance(outputs, (tuple, list)) and len(outputs) == 2):
            raise ConfigError(f"{where}: it returned {_described(outputs)}; expected policy logits and values")
        logits, value = (jnp.asarray(output, jnp.float32) for output in outputs)
        return logits, value

    return Network(init, apply)


@cache
def _imported(name: str) -> tuple[Any, str | None]:
    """What a path names, and the SHA-256 of its file as it was imported; None for a module."""
    file = Path(name.rpartition(":")[0]).expanduser()
    # Read first: a process imports a file once, and later changes of it do not matter.
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.suffix == ".py" and file.is_file() else None
    return import_named(name, "network.name"), digest


def _parameters(target: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function or class by name, without those that its library passes."""
    if not callable(target):
        return {}
    # The metaclasses of NNX and Haiku hide the signature of a class.
    is_module = inspect.isclass(target) and issubclass(target, (nn.Module, nnx.Module, hk.Module))
    found = dict(inspect.signature(target.__init__ if is_module else target).parameters)
    if is_module:
        for own in ("self", "parent", "name", "rngs"):
            found.pop(own, None)
    return found


def _check_arguments(config: OwnNetworkConfig, parameters: Mapping[str, inspect.Parameter], where: str) -> None:
    """Checks the experiment's arguments against the parameters of what the path names."""
    given = config.arguments
    kinds = [parameter.kind for parameter in parameters.values()]
    own = [name for name, each in parameters.items() if each.kind not in _REST and name not in OFFERED]
    for name in given:
        if name in OFFERED:
            raise ConfigError(f"network.{name}: podzero passes {name} to '{config.name}' itself; remove it")
        if name not in own and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise ConfigError(
                f"network.{name}: '{config.name}' has no argument '{name}'{nearest(name, own)}; its arguments: "
                f"{', '.join(own) or 'none'}"
            )
    for name in own:
        if parameters[name].default is inspect.Parameter.empty and name not in given:
            raise ConfigError(f"network.{name}: required by '{config.name}', but missing")
    if config.compute_dtype == "bfloat16" and "dtype" not in parameters:
        raise ConfigError(
            f"{where} has no argument 'dtype', so it computes in float32; give it one, or remove network.compute_dtype"
        )


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""The kinds of `*args` and `**kwargs`."""


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
    if not callable(target):
        return _returned(lambda: target, where)
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


@contextmanager
def _user_code(name: str, what: str) -> Iterator[None]:
    """Turns exceptions of the code that `name` names into a `ConfigError` with the innermost line of its file."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        file = name.rpartition(":")[0]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        at = f" at line {lines[-1]} of {Path(file).name}" if lines else ""
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"network.name = '{name}': {what} failed{at}: {type(error).__name__}: {reason}") from error
