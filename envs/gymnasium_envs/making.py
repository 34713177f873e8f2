"""Makes gymnasium environments from an `env` section, and explains in a `ConfigError` what cannot be made."""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode

from podzero.config import GymnasiumConfig, WrapperConfig
from podzero.errors import ConfigError, nearest
from podzero.importing import how_to_install, import_class, import_place

REGISTERED_BY = {"ALE": "ale_py", "MinAtar": "minatar"}
"""Namespaces of ids, and the module that registers each; the extra `envs` installs both."""


@dataclass(frozen=True)
class Factory:
    """Makes one environment with its wrappers. It can be pickled and called in another process."""

    config: GymnasiumConfig

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """A new environment.

        Raises:
          ConfigError: it cannot be made.
        """
        config = self.config
        find(config.id, config.module)
        with explained(f"env: '{config.id}'", config.kwargs):
            # `Guard` checks every step itself; gymnasium's checker would only add warnings and a call per step.
            env = gymnasium.make(config.id, **{"disable_env_checker": True, **config.kwargs})
        for wrapper in config.wrappers:
            env = _wrap(env, wrapper)
        return env


def make_own(config: GymnasiumConfig, count: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """The vector environment that is registered for the id, with the autoreset mode `NEXT_STEP`.

    Raises:
      ConfigError: there is none, it cannot be made, or it has another autoreset mode.
    """
    entry_point = find(config.id, config.module).vector_entry_point
    if entry_point is None:
        raise ConfigError(
            f"env.vectorization: no vector environment is registered for '{config.id}'; use 'sync' or 'async'"
        )
    with explained(f"env: '{config.id}'", config.kwargs):
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        asked = {"autoreset_mode": AutoresetMode.NEXT_STEP} if _takes_mode(creator) else {}
        own = gymnasium.make_vec(config.id, count, "vector_entry_point", **{**asked, **config.kwargs})
    mode = own.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP:
        own.close()
        raise ConfigError(
            f"env.vectorization: the vector environment of '{config.id}' has the autoreset mode {mode}, but podzero "
            f"supports only {AutoresetMode.NEXT_STEP}; use 'sync' or 'async'"
        )
    return own


def find(identifier: str, module: str | None) -> EnvSpec:
    """The registration of an id.

    Imports `module` first, if given. If that does not register the id, calls the functions that the module's
    distribution lists under the entry point `gymnasium.envs`, which is how MinAtar registers its ids.

    Raises:
      ConfigError: the module cannot be imported, or the id is not registered.
    """
    # Not imported by name: this function is pickled by value, which would pickle the whole registry with it.
    known = registration.registry
    if module is not None:
        _import(module)
        if identifier not in known:
            _call_plugins(module)
    if identifier not in known:
        advice = _advice(identifier, module)
        raise ConfigError(f"env.id: unknown gymnasium id '{identifier}'{nearest(identifier, known)}{advice}")
    return known[identifier]


def _import(module: str) -> None:
    try:
        import_place(module, "env.module")
    except ConfigError as error:
        advice = f"; {how_to_install('envs')}" if _top(module) in REGISTERED_BY.values() else ""
        raise ConfigError(f"{error}{advice}") from error


def _call_plugins(module: str) -> None:
    for plugin in importlib.metadata.entry_points(group="gymnasium.envs"):
        if _top(plugin.module) == _top(module):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an earlier call for another id may have registered the same ids
                plugin.load()()


def _top(module: str) -> str:
    return module.partition(".")[0]


def _advice(identifier: str, module: str | None) -> str:
    if module is not None:
        return f"; importing '{module}' did not register it"
    known = REGISTERED_BY.get(identifier.partition("/")[0])
    return f"; set env.module: {known}" if known else "; if a module registers it, name that module in env.module"


@contextlib.contextmanager
def explained(what: str, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Turns any exception raised while `what` is made with `kwargs` into a `ConfigError`."""
    try:
        yield
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"{what} needs a package that is not installed: {error}; {how_to_install('envs')}") from error
    except Exception as error:
        raise ConfigError(f"{what} cannot be made with kwargs {kwargs}: {type(error).__name__}: {error}") from error


def _takes_mode(creator: Any) -> bool:
    return "autoreset_mode" in inspect.signature(creator).parameters


def _wrap(env: gymnasium.Env[Any, Any], wrapper: WrapperConfig) -> gymnasium.Env[Any, Any]:
    kind = _wrapper_class(wrapper.name)
    with explained(f"env.wrappers: '{wrapper.name}'", wrapper.kwargs):
        return kind(env, **wrapper.kwargs)


def _wrapper_class(name: str) -> type[gymnasium.Wrapper[Any, Any, Any, Any]]:
    """The wrapper of this name in `gymnasium.wrappers`, or the class named by `module:Class` or `file.py:Class`."""
    module_name = name.rpartition(":")[0]
    known = [known for known in gymnasium.wrappers.__all__ if known not in {"vector", "Autoreset"}]
    if name == "Autoreset":
        raise ConfigError("env.wrappers: leave out 'Autoreset': podzero starts the episodes itself")
    if not module_name and name not in known:
        raise ConfigError(
            f"env.wrappers: gymnasium.wrappers has no '{name}'{nearest(name, known)}; write others as module:Class"
        )
    kind = getattr(gymnasium.wrappers, name) if not module_name else import_class(name, "env.wrappers")
    if not (isinstance(kind, type) and issubclass(kind, gymnasium.Wrapper)):
        raise ConfigError(f"env.wrappers: '{name}' is not a gymnasium.Wrapper")
    return kind
