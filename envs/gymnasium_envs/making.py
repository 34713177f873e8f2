"""From an `env` section to gymnasium's own objects; whatever cannot be made is told to the person who wrote it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode

from podzero.config import GymnasiumConfig, WrapperConfig
from podzero.errors import ConfigError, nearest
from podzero.importing import INSTALL_ENVS, import_class, import_place

REGISTERED_BY = {"ALE": "ale_py", "MinAtar": "minatar"}
"""The module that registers the ids of a namespace; both come with the extra `envs`."""


@dataclass(frozen=True)
class Factory:
    """Makes one environment with its wrappers, in whatever process it is called."""

    config: GymnasiumConfig

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """A new environment.

        Raises:
          ConfigError: it cannot be made.
        """
        config = self.config
        find(config.id, config.module)
        with _telling(f"env: '{config.id}'", config.kwargs):
            # The layer's own checks stand for gymnasium's checker, which would warn, and cost a call a step.
            env = gymnasium.make(config.id, **{"disable_env_checker": True, **config.kwargs})
        for wrapper in config.wrappers:
            env = _wrap(env, wrapper)
        return env


def make_own(config: GymnasiumConfig, count: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """The vector environment that comes with the id, with the autoreset mode `NEXT_STEP`.

    Raises:
      ConfigError: there is none, it cannot be made, or it has another autoreset mode.
    """
    entry_point = find(config.id, config.module).vector_entry_point
    if entry_point is None:
        raise ConfigError(
            f"env.vectorization: '{config.id}' has no vector environment of its own; use 'sync' or 'async'"
        )
    with _telling(f"env: '{config.id}'", config.kwargs):
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        asked = {"autoreset_mode": AutoresetMode.NEXT_STEP} if _takes_mode(creator) else {}
        own = gymnasium.make_vec(config.id, count, "vector_entry_point", **{**asked, **config.kwargs})
    mode = own.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP:
        own.close()
        raise ConfigError(
            f"env.vectorization: the vector environment of '{config.id}' has the autoreset mode {mode}, and podzero "
            f"knows {AutoresetMode.NEXT_STEP} only; use 'sync' or 'async'"
        )
    return own


def find(identifier: str, module: str | None) -> EnvSpec:
    """The registration of an id, after importing what registers it.

    Besides what a module registers when it is imported, the functions count that its distribution names under the
    entry points `gymnasium.envs` (MinAtar's way): they are called if the id is not there yet.

    Raises:
      ConfigError: the module cannot be imported, or no such id is registered.
    """
    # Looked up in its module: what travels to other processes by value must not take the registry along.
    known = registration.registry
    if module is not None:
        _import(module)
        if identifier not in known:
            _call_plugins(module)
    if identifier not in known:
        advice = _advice(identifier, module)
        raise ConfigError(f"env.id: gymnasium knows no '{identifier}'{nearest(identifier, known)}{advice}")
    return known[identifier]


def _import(module: str) -> None:
    try:
        import_place(module, "env.module")
    except ConfigError as error:
        advice = f"; {INSTALL_ENVS}" if _top(module) in REGISTERED_BY.values() else ""
        raise ConfigError(f"{error}{advice}") from error


def _call_plugins(module: str) -> None:
    for plugin in importlib.metadata.entry_points(group="gymnasium.envs"):
        if _top(plugin.module) == _top(module):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it may have been called before, for another id
                plugin.load()()


def _top(module: str) -> str:
    return module.partition(".")[0]


def _advice(identifier: str, module: str | None) -> str:
    if module is not None:
        return f"; importing '{module}' did not register it"
    known = REGISTERED_BY.get(identifier.partition("/")[0])
    return f"; set env.module: {known}" if known else "; if a module of its own registers it, name it in env.module"


@contextlib.contextmanager
def _telling(what: str, kwargs: dict[str, Any]) -> Iterator[None]:
    """Turns whatever is raised while `what` is made with `kwargs` into a `ConfigError`."""
    try:
        yield
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"{what} needs what is not installed: {error}; {INSTALL_ENVS}") from error
    except Exception as error:
        raise ConfigError(f"{what} cannot be made with kwargs {kwargs}: {type(error).__name__}: {error}") from error


def _takes_mode(creator: Any) -> bool:
    return "autoreset_mode" in inspect.signature(creator).parameters


def _wrap(env: gymnasium.Env[Any, Any], wrapper: WrapperConfig) -> gymnasium.Env[Any, Any]:
    kind = _wrapper_class(wrapper.name)
    with _telling(f"env.wrappers: '{wrapper.name}'", wrapper.kwargs):
        return kind(env, **wrapper.kwargs)


def _wrapper_class(name: str) -> type[gymnasium.Wrapper[Any, Any, Any, Any]]:
    """A wrapper of gymnasium's by its name, or any other as `module:Class` or `file.py:Class`."""
    module_name = name.rpartition(":")[0]
    known = [known for known in gymnasium.wrappers.__all__ if known not in {"vector", "Autoreset"}]
    if name == "Autoreset":
        raise ConfigError("env.wrappers: leave out 'Autoreset': podzero begins the episodes itself")
    if not module_name and name not in known:
        raise ConfigError(
            f"env.wrappers: gymnasium.wrappers has no '{name}'{nearest(name, known)}; write module:Class for any other"
        )
    kind = getattr(gymnasium.wrappers, name) if not module_name else import_class(name, "env.wrappers")
    if not (isinstance(kind, type) and issubclass(kind, gymnasium.Wrapper)):
        raise ConfigError(f"env.wrappers: '{name}' is no gymnasium.Wrapper")
    return kind
