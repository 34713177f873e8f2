"""Makes gymnasium environments from an `env` section, reads their spaces, and renders them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs import registration
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode

from podzero.config import GymnasiumConfig
from podzero.config.section import check_digest
from podzero.core.errors import ConfigError, described, nearest
from podzero.core.importing import how_to_install, import_class, import_place
from podzero.core.types import EnvSpec
from podzero.envs.gymnasium_envs.interface import Interface, find_masks, parts_of
from podzero.envs.gymnasium_envs.spaces import Actions, HostArray, Observations, mismatch

REMEDY = "Fix the environment, or convert what it returns with a wrapper"
REGISTERED_BY = {"ALE": "ale_py", "MinAtar": "minatar"}
"""The module that registers each namespace of ids; the extra `envs` installs both."""
_EXTRAS = {"box2d": "envs", "classic": "envs", "toy": "envs", "mujoco": "mujoco"}
"""podzero's extra with the packages of gymnasium's extras whose names begin with this word."""
MODE = "rgb_array"
"""Gymnasium's render mode whose frames are arrays of pixels."""
STEPS_PER_SECOND = 15.0
"""Speed of environments that declare none, and of Atari games at four frames per step."""
_MOST_PIXELS = 4_000_000
_COLOURS = 3


def make_one(config: GymnasiumConfig) -> gymnasium.Env[Any, Any]:
    """One environment with its wrappers."""
    find_registered(config)
    with explained(f"env: '{config.id}'", config.kwargs):
        # `GuardedEnv` checks every step itself; gymnasium's checker would only add warnings and a call per step.
        env = gymnasium.make(config.id, **{"disable_env_checker": True, **config.kwargs})
    for wrapper in config.wrappers:
        kind = _wrapper_class(wrapper.name)
        with explained(f"env.wrappers: '{wrapper.name}'", wrapper.kwargs):
            env = kind(env, **wrapper.kwargs)
    return env


def make_own(config: GymnasiumConfig, count: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """The vector environment that is registered for the id, with the autoreset mode `NEXT_STEP`."""
    entry_point = find_registered(config).vector_entry_point
    if entry_point is None:
        raise ConfigError(f"env.vectorization: '{config.id}' registers no vector environment; use 'sync' or 'async'")
    with explained(f"env: '{config.id}'", config.kwargs):
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        takes_mode = "autoreset_mode" in inspect.signature(creator).parameters
        asked = {"autoreset_mode": AutoresetMode.NEXT_STEP} if takes_mode else {}
        own = gymnasium.make_vec(config.id, count, "vector_entry_point", **{**asked, **config.kwargs})
    mode = own.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP:
        own.close()
        raise ConfigError(
            f"env.vectorization: the vector environment of '{config.id}' has the autoreset mode {mode}, but podzero "
            f"supports only {AutoresetMode.NEXT_STEP}; use 'sync' or 'async'"
        )
    return own


def find_registered(config: GymnasiumConfig) -> registration.EnvSpec:
    """The registration of an experiment's id, by the run's copy of `env.module` if that is a file."""
    check_digest(config, "env.module")
    return find(config.id, config.place or None)


def find(identifier: str, module: str | None) -> registration.EnvSpec:
    """The registration of an id, after importing `module`, if given."""
    # Not imported by name: this function is pickled by value, which would pickle the whole registry with it.
    known = registration.registry
    if module is not None:
        try:
            import_place(module, "env.module")
        except ConfigError as error:
            advice = f"; {how_to_install('envs')}" if _top(module) in REGISTERED_BY.values() else ""
            raise ConfigError(f"{error}{advice}") from error
        # MinAtar registers its ids in a function that its distribution lists under the entry point `gymnasium.envs`.
        if identifier not in known:
            _call_plugins(module)
    if identifier not in known:
        advice = _advice(identifier, module)
        raise ConfigError(f"env.id: unknown gymnasium id '{identifier}'{nearest(identifier, known)}{advice}")
    return known[identifier]


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
        raise ConfigError(f"{what} {lacks(error)}") from error
    except Exception as error:
        raise ConfigError(f"{what} cannot be made with kwargs {kwargs}: {described(error)}") from error


def lacks(error: gymnasium.error.DependencyNotInstalled) -> str:
    """Which package is missing and how to install it, in gymnasium's words and by podzero's extra if one has it."""
    named = re.search(r"gymnasium\[([a-z0-9]+)", str(error))
    extra = _EXTRAS.get(named[1]) if named else None
    advice = f"; {how_to_install(extra)}" if extra else ""
    return f"needs a package that is not installed: {error}{advice}"


def _wrapper_class(name: str) -> type[gymnasium.Wrapper[Any, Any, Any, Any]]:
    """The wrapper of this name in `gymnasium.wrappers`, or the class named by `module:Class` or `file.py:Class`."""
    module_name = name.rpartition(":")[0]
    known = [known for known in gymnasium.wrappers.__all__ if known not in {"vector", "Autoreset"}]
    if name == "Autoreset":
        raise ConfigError("env.wrappers: leave out 'Autoreset': podzero starts the episodes itself")
    if not module_name and name not in known:
        close = nearest(name, known)
        raise ConfigError(f"env.wrappers: gymnasium.wrappers has no '{name}'{close}; write others as module:Class")
    kind = import_class(name if module_name else f"gymnasium.wrappers:{name}", "env.wrappers")
    if not (isinstance(kind, type) and issubclass(kind, gymnasium.Wrapper)):
        raise ConfigError(f"env.wrappers: '{name}' is not a gymnasium.Wrapper")
    return kind


def _made(config: GymnasiumConfig) -> Any:
    """One environment, or the registered vector of one."""
    return make_own(config, 1) if config.vectorization == "own" else make_one(config)


def interface_of(config: GymnasiumConfig, seed: int = 0) -> Interface:
    """Makes an environment, reads its spaces, checks what its first reset returns, and closes it."""
    with closing(_made(config)) as env:
        return interface_to(env, config.title, seed)


def interface_to(env: Any, name: str, seed: int = 0) -> Interface:
    """The interface to an environment, or to a vector of one, which is reset."""
    is_vector = isinstance(env, gymnasium.vector.VectorEnv)
    observation_space = env.single_observation_space if is_vector else env.observation_space
    observations = Observations(observation_space, name)
    actions = Actions(env.single_action_space if is_vector else env.action_space, name)
    try:
        returned = env.reset(seed=seed)
    except Exception as error:
        raise ConfigError(f"{name}: its first reset failed: {described(error)}") from error
    try:
        observation, info = parts_of(returned, "reset")
        first = observation
        if is_vector:
            (first,) = gymnasium.vector.utils.iterate(env.observation_space, observation)
        if (wrong := mismatch(observation_space, first, bounds=True)) is not None:
            raise ValueError(f"its first observation is not in its observation space {observation_space}: {wrong}")
        masks = find_masks(env, observation, info, observation_space, actions)
        interface = Interface(name, observations, actions, masks)
        interface.after_reset(env, returned)
    except Exception as error:
        raise ConfigError(f"{name}: after its first reset: {error}. {REMEDY}") from error
    return interface


def spec_to(interface: Interface) -> EnvSpec:
    """Shapes and dtypes of an environment."""
    return EnvSpec(
        name=interface.name,
        observation_shape=interface.observations.shape,
        observation_dtype=interface.observations.dtype.name,
        num_actions=interface.actions.count,
        players=1,
        action_bounds=interface.actions.bounds,
        masked=interface.masks.place is not None,
    )


class Rendering(NamedTuple):
    """How to render an environment."""

    config: GymnasiumConfig
    """The config for environments that render; they run in this process."""
    steps_per_second: float
    """The environment's own speed."""
    renders: bool
    """Whether the environments render frames; otherwise their observation is an image and is shown instead."""


def rendering_of(config: GymnasiumConfig) -> Rendering:
    """Makes an environment, reads how it renders, and closes it."""
    if config.vectorization != "own":
        config = config.model_copy(update={"vectorization": "sync"})  # frames of other processes cannot be fetched
    with closing(_made(config)) as env:
        modes = env.metadata.get("render_modes") or ()
        renders = MODE in modes
        if not renders and not (config.vectorization == "own" and _is_image(env.single_observation_space)):
            raise ConfigError(
                f"{config.title} cannot be shown: it has no render mode '{MODE}' (its modes: "
                f"{', '.join(map(str, modes)) or 'none'}). Give the environment one, or look at its returns with "
                "`podzero evaluate`"
            )
        speed = float(env.metadata.get("render_fps") or STEPS_PER_SECOND)
    kwargs = {**config.kwargs, "render_mode": MODE} if renders else config.kwargs
    return Rendering(config.model_copy(update={"kwargs": kwargs}), speed, renders)


def rendered(env: Any, title: str) -> Any:
    """What `env.render()` returns."""
    try:
        return env.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"{title}: rendering {lacks(error)}") from error
    except Exception as error:
        raise ConfigError(f"{title} cannot be rendered: {described(error)}") from error


def picture(frame: Any, title: str) -> HostArray:
    """A rendered frame as `[H, W, 3]` uint8; floats must be colours in [0, 1]."""
    pixels = np.asarray(frame)
    if pixels.ndim != 3 or pixels.shape[2] != _COLOURS or not 0 < pixels[..., 0].size <= _MOST_PIXELS:
        raise ConfigError(
            f"{title} cannot be shown: render() returned {type(frame).__name__} of shape {list(pixels.shape)}; "
            f"expected pixels [height, width, {_COLOURS}], {_MOST_PIXELS:,} at most"
        )
    if pixels.dtype.kind == "f":
        pixels = np.rint(np.clip(pixels, 0.0, 1.0) * 255)
    return pixels.astype(np.uint8)


def observed_picture(observation: HostArray) -> HostArray:
    """Converts an image observation to `[H, W, 3]` uint8; a stack `[frames, H, W]` gives its newest frame."""
    newest = observation if observation.shape[-1] == _COLOURS else observation[-1]
    return newest if newest.ndim == _COLOURS else np.repeat(newest[..., None], _COLOURS, axis=-1)


def _is_image(space: Any) -> bool:
    """Whether the space holds gray frames `[frames, H, W]`, or colours `[H, W, 3]` or `[frames, H, W, 3]`."""
    shape: tuple[int, ...] = getattr(space, "shape", None) or ()
    coloured = len(shape) in (3, 4) and shape[-1] == _COLOURS
    return getattr(space, "dtype", None) == np.uint8 and (coloured or len(shape) == 3)
