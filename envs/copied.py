"""Gymnasium's environments and PettingZoo's classic games as `Simulator`s, which tree search copies.

These environments were not written to be copied; `copy_of` copies them attribute by attribute. PettingZoo: Terry et al.
2021, https://arxiv.org/abs/2009.14471.
"""

from __future__ import annotations

import copy
import pkgutil
import warnings
from collections.abc import Collection, Hashable, Iterable, Mapping
from functools import cache
from typing import Any

import gymnasium
import numpy as np

from podzero.core.errors import ConfigError, described, nearest
from podzero.core.importing import import_extra
from podzero.envs.gymnasium_envs.making import REMEDY, explained, find, interface_to
from podzero.envs.gymnasium_envs.masks import MASK
from podzero.envs.gymnasium_envs.rendering import STEPS_PER_SECOND, picture, rendered

_IMMUTABLE = frozenset({type(None), bool, int, float, str, bytes, type, np.float32, np.float64, np.int64, np.bool_})


def copy_of[T](original: T, shared: Collection[str]) -> T:
    """Copies an object attribute by attribute, as `copy.deepcopy` does but without calling `__getstate__`.

    In many environments (those with EzPickle) that method drops the state.

    Args:
      original: an object whose whole state is in its attributes.
      shared: names of attributes that are never changed in place; both objects refer to the same value.

    Raises:
      TypeError: an attribute cannot be copied.
    """
    return _copy_attributes(original, shared, {})


def _copy_attributes[T](original: T, shared: Collection[str], memo: dict[int, Any]) -> T:
    twin = object.__new__(type(original))
    memo[id(original)] = twin
    attributes = vars(twin)
    for name, value in vars(original).items():
        attributes[name] = value if type(value) in _IMMUTABLE or name in shared else _deepcopy(value, memo)
    return twin


def _deepcopy(value: Any, memo: dict[int, Any]) -> Any:
    """`copy.deepcopy(value, memo)`, with faster copies of plain containers and of objects of plain classes."""
    kind: Any = type(value)
    if id(value) not in memo:
        if kind in (list, dict) and all(type(item) in _IMMUTABLE for item in _items(value)):
            memo[id(value)] = value.copy()
        elif _is_plain(kind):
            _copy_attributes(value, (), memo)
    return copy.deepcopy(value, memo)


def _items(container: list[Any] | dict[Any, Any]) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


@cache
def _is_plain(kind: Hashable) -> bool:
    """Whether an object of this class has no state besides its attributes and no copying methods of its own."""
    assert isinstance(kind, type)
    special = ("__new__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__slots__")
    defined_in_python = kind.__flags__ & _HEAP_TYPE != 0
    return defined_in_python and not any(name in vars(base) for base in kind.__mro__[:-1] for name in special)


_HEAP_TYPE = 1 << 9
"""CPython's `Py_TPFLAGS_HEAPTYPE`: set for classes defined by a `class` statement."""


_CHANCE_GAMES, _CHANCE_STEPS = 4, 32
"""Episodes, and steps per episode, that are played to detect chance events."""
_GYMNASIUM_CONSTANT = frozenset({"action_space", "observation_space", "metadata", "spec", "reward_range", "_np_random"})


class GymnasiumSimulator:
    """An environment with discrete actions; `Interface` checks its steps and reads its action masks.

    Wrappers from the registration, such as time limits, are not applied: `env.max_plies` truncates episodes.

    Args:
      name: the environment's id.
      kwargs: arguments for `gymnasium.make`.
      module: a module to import first, which registers the id.

    Raises:
      ConfigError: the id is unknown, the environment's spaces are not supported, or it cannot be copied.
    """

    players = 1

    def __init__(self, name: str, kwargs: Mapping[str, Any], module: str | None = None) -> None:
        find(name, module)
        self._env = _make(name, kwargs)
        _check_spaces(self._env, name)
        self._interface = interface_to(self._env, name, self._env.observation_space, self._env.action_space)
        self.num_actions = self._interface.actions.count
        self._all = list(range(self.num_actions))
        self.reset(0)
        try:
            self.clone()
        except Exception as error:
            raise ConfigError(
                f"{name} cannot be copied ({error}), so tree search cannot simulate it; learn a model of it instead, "
                "with env.name: gymnasium and network.name: muzero_mlp or muzero_resnet"
            ) from error
        try:
            has_chance = self._has_chance_events()
        except Exception as error:
            raise ConfigError(f"{name} cannot be played: {described(error)}. {REMEDY}") from error
        if has_chance:
            raise ConfigError(
                f"{name} has chance events: the same actions lead to different observations. Tree search plays copies, "
                "so it would foresee them; learn a model of it instead, with env.name: gymnasium and network.name: "
                "muzero_mlp or muzero_resnet"
            )

    def _has_chance_events(self) -> bool:
        """Whether equal copies of the environment with other random generators differ after the same actions."""
        choose = np.random.default_rng(0)
        for seed in range(_CHANCE_GAMES):
            self.reset(seed)
            one, other = self.clone(), self.clone()
            other._random_state = np.random.default_rng(seed + 1).bit_generator.state
            for _ in range(_CHANCE_STEPS):
                action = int(choose.choice(one.legal_actions()))
                one.step(action)
                other.step(action)
                if not np.array_equal(one.observation(), other.observation()) or one.rewards() != other.rewards():
                    return True
                if one.done() or other.done():
                    break
        return False

    def reset(self, seed: int) -> None:
        """See `Simulator`."""
        observation, info = self._interface.after_reset(self._env, self._env.reset(seed=seed))
        self._store(observation, info)

    def step(self, action: int) -> None:
        """See `Simulator`."""
        # Clones share one generator; its state, which each clone stores, is faster to copy than the generator.
        if self._random_state is not None:
            self._env.np_random.bit_generator.state = self._random_state
        seen = self._interface.after_step(self._env, self._env.step(action))
        self._store(seen.observation, seen.info, float(seen.reward), bool(seen.terminated), bool(seen.truncated))

    def legal_actions(self) -> list[int]:
        """See `Simulator`."""
        return self._legal

    def observation(self) -> np.ndarray[Any, Any]:
        """See `Simulator`."""
        return self._observation

    def player(self) -> int:
        """See `Simulator`."""
        return 0

    def rewards(self) -> tuple[float]:
        """See `Simulator`."""
        return (self._reward,)

    def done(self) -> bool:
        """See `Simulator`."""
        return self._terminated or self._truncated

    def truncated(self) -> bool:
        """See `LimitedSimulator`."""
        return self._truncated and not self._terminated

    @property
    def steps_per_second(self) -> float:
        """The environment's own speed."""
        return float(self._env.metadata.get("render_fps") or STEPS_PER_SECOND)

    def render(self) -> np.ndarray[Any, Any]:
        """See `RenderedSimulator`.

        Raises:
          ConfigError: it was not made with the render mode `rgb_array`, or rendering failed.
        """
        return picture(rendered(self._env, self._env.spec.id), self._env.spec.id)

    def clone(self) -> GymnasiumSimulator:
        """See `Simulator`."""
        # Without __init__, which would make a new environment.
        twin = object.__new__(GymnasiumSimulator)
        vars(twin).update(vars(self))
        twin._env = copy_of(self._env, _GYMNASIUM_CONSTANT)
        return twin

    def _store(
        self,
        observation: np.ndarray[Any, Any],
        info: Mapping[str, Any],
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
    ) -> None:
        self._observation = np.array(observation)  # some environments reuse the array they returned
        self._legal = np.flatnonzero(info[MASK]).tolist() if MASK in info else self._all
        self._reward, self._terminated, self._truncated = reward, terminated, truncated
        generator = getattr(self._env, "_np_random", None)
        self._random_state = None if generator is None else generator.bit_generator.state


def _make(name: str, kwargs: Mapping[str, Any]) -> Any:
    with explained(f"env: '{name}'", kwargs), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium warns about every id that has a newer version
        return gymnasium.make(name, **kwargs).unwrapped


def _check_spaces(env: Any, name: str) -> None:
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, gymnasium.spaces.Discrete) or actions.start != 0:
        raise ConfigError(f"{name} has the action space {actions}; tree search needs a Discrete space that starts at 0")
    if not isinstance(observations, gymnasium.spaces.Box):
        raise ConfigError(f"{name} has the observation space {observations}; expected a Box")


GAMES: Mapping[str, frozenset[str]] = {
    "tictactoe_v3": frozenset(),
    "connect_four_v3": frozenset(),
    "chess_v6": frozenset({"board_history"}),
    "go_v5": frozenset({"board_history", "_go", "_last_obs", "next_legal_moves"}),
}
"""The games of perfect information. For each, the attributes that a step replaces but never changes in place: clones
may share their values."""
_PETTINGZOO_CONSTANT = frozenset(
    {"action_spaces", "observation_spaces", "possible_agents", "_ezpickle_args", "_ezpickle_kwargs"}
)


class PettingZooGame:
    """A two-player game of perfect information.

    Boards have PettingZoo's planes, as bool.

    Args:
      name: the module in `pettingzoo.classic`, such as `connect_four_v3`.
      kwargs: arguments of the environment.

    Raises:
      ConfigError: the game is unknown, has hidden information, or rejects `kwargs`.
    """

    players = 2

    def __init__(self, name: str, kwargs: Mapping[str, Any]) -> None:
        module = _module(name)
        try:
            self._env = module.raw_env(**kwargs)
            self.reset(0)
        except Exception as error:
            raise ConfigError(f"PettingZoo cannot make {name} with the arguments {dict(kwargs)}: {error}") from None
        self._shared = GAMES[name] | _PETTINGZOO_CONSTANT
        self.num_actions = int(self._env.action_space(self._env.possible_agents[0]).n)

    def reset(self, seed: int) -> None:
        """See `Simulator`."""
        self._env.reset(seed)
        self._observe()

    def step(self, action: int) -> None:
        """See `Simulator`."""
        self._env.step(action)
        self._observe()

    def legal_actions(self) -> np.ndarray[Any, Any]:
        """See `Simulator`."""
        return np.flatnonzero(self._observed["action_mask"])

    def observation(self) -> np.ndarray[Any, Any]:
        """See `Simulator`."""
        return np.asarray(self._observed["observation"], np.bool_)

    def player(self) -> int:
        """See `Simulator`."""
        player: int = self._env.possible_agents.index(self._env.agent_selection)
        return player

    def rewards(self) -> list[float]:
        """See `Simulator`."""
        return [float(self._env.rewards[agent]) for agent in self._env.possible_agents]

    def done(self) -> bool:
        """See `Simulator`."""
        env = self._env
        return bool(env.terminations[env.agent_selection] or env.truncations[env.agent_selection])

    def truncated(self) -> bool:
        """See `LimitedSimulator`."""
        env = self._env
        return bool(env.truncations[env.agent_selection] and not env.terminations[env.agent_selection])

    def clone(self) -> PettingZooGame:
        """See `Simulator`."""
        twin = object.__new__(PettingZooGame)
        # Clones share `_observed`, which is replaced but never changed in place.
        twin._env, twin._observed = copy_of(self._env, self._shared), self._observed
        twin._shared, twin.num_actions = self._shared, self.num_actions
        return twin

    def _observe(self) -> None:
        """Stores the observation and the legal actions, which PettingZoo computes together."""
        self._observed = self._env.observe(self._env.agent_selection)


def _module(name: str) -> Any:
    classic = import_extra("pettingzoo.classic", "PettingZoo")
    if name in GAMES:
        return import_extra(f"pettingzoo.classic.{name}", "PettingZoo")
    known = ", ".join(GAMES)
    if any(module.name == name for module in pkgutil.iter_modules(classic.__path__)):
        raise ConfigError(
            f"tree search cannot play PettingZoo's {name}, which has hidden information; supported: {known}"
        )
    raise ConfigError(f"PettingZoo has no classic game '{name}'{nearest(name, GAMES)}; supported: {known}")
