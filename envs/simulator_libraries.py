"""Games and environments of other libraries as `Simulator`s.

OpenSpiel: Lanctot et al. 2019, https://arxiv.org/abs/1908.09453. Gymnasium's environments were not written to be
copied; `copy_of` copies them attribute by attribute.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from podzero.core.errors import ConfigError, described, nearest
from podzero.core.importing import import_extra
from podzero.envs.gymnasium_envs.interface import MASK
from podzero.envs.gymnasium_envs.making import (
    REMEDY,
    STEPS_PER_SECOND,
    explained,
    find,
    interface_to,
    picture,
    rendered,
)
from podzero.envs.simulator import CHANCE_ADVICE


class OpenSpielGame:
    """A sequential game of perfect information for one or two players.

    An observation tensor `[planes, rows, columns]` becomes a board `[rows, columns, planes]`, any other tensor becomes
    a vector. Many of OpenSpiel's tensors do not show whose turn it is: one that is the same for both players gets one
    more plane (or number), the player to move, 0 or 1.

    Its parameters are those of `parameters`, or part of the name: `go(board_size=9)`.
    """

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        pyspiel = import_extra("pyspiel", "OpenSpiel")
        self._game = _load(pyspiel, name, parameters)
        _check_kind(pyspiel, self._game, name)
        self.num_actions: int = self._game.num_distinct_actions()
        self.players: int = self._game.num_players()
        self.max_length: int = self._game.max_game_length() + self._game.max_chance_nodes_in_history()
        """Length of the longest possible game in moves, chance moves included."""
        module = import_extra("open_spiel.python.observation", "OpenSpiel")
        self._observer = module.make_observation(self._game)
        self._shape = tuple(self._game.observation_tensor_shape())
        self._adds_player = self.players == 2 and _same_for_both_players(self._game)
        self.reset(0)

    def reset(self, seed: int) -> None:
        """See `Simulator`."""
        self._seed = seed
        self._state = self._game.new_initial_state()
        self._play_chance_moves()
        self._returns = self._state.returns()
        self._rewards = [0.0] * self.players

    def step(self, action: int) -> None:
        """See `Simulator`."""
        state = self._state
        state.apply_action(action)
        self._play_chance_moves()
        before, self._returns = self._returns, state.returns()
        self._rewards = [now - then for now, then in zip(self._returns, before, strict=True)]

    def legal_actions(self) -> list[int]:
        """See `Simulator`."""
        legal: list[int] = self._state.legal_actions()
        return legal

    def action_name(self, action: int) -> str:
        """See `NamedSimulator`; OpenSpiel's own name."""
        name: str = self._state.action_to_string(self.player(), action)
        return name

    def observation(self) -> np.ndarray[Any, Any]:
        """See `Simulator`."""
        player = self.player()
        self._observer.set_from(self._state, player)
        if len(self._shape) != 3:
            vector: np.ndarray[Any, Any] = self._observer.tensor
            return np.append(vector, np.float32(player)) if self._adds_player else vector.copy()
        planes, rows, columns = self._shape
        board = np.empty((rows, columns, planes + self._adds_player), np.float32)
        board[..., :planes] = self._observer.tensor.reshape(self._shape).transpose(1, 2, 0)
        board[..., planes:] = player
        return board

    def player(self) -> int:
        """See `Simulator`."""
        player: int = self._state.current_player()
        return max(0, player)  # OpenSpiel uses negative numbers for no player

    def rewards(self) -> list[float]:
        """See `Simulator`."""
        return self._rewards

    def done(self) -> bool:
        """See `Simulator`."""
        over: bool = self._state.is_terminal()
        return over

    def clone(self) -> OpenSpielGame:
        """See `Simulator`."""
        # Without __init__, which would load the game again; each search clones thousands of positions.
        twin = object.__new__(OpenSpielGame)
        vars(twin).update(vars(self))  # a step replaces the returns and rewards, and changes nothing else in place
        twin._state = self._state.clone()
        return twin

    def _play_chance_moves(self) -> None:
        """Samples the outcomes of chance nodes."""
        # Seeded by the game's seed and the move number, so that clones and replays get the same outcomes.
        while self._state.is_chance_node():
            outcomes, probabilities = zip(*self._state.chance_outcomes(), strict=True)
            generator = random.Random(self._seed << 32 | self._state.move_number())
            self._state.apply_action(generator.choices(outcomes, probabilities)[0])


def _same_for_both_players(game: Any) -> bool:
    """Whether both players' observations are equal in the first eight positions of a game."""
    state = game.new_initial_state()
    for _ in range(8):
        if state.is_terminal():
            break
        if not state.is_chance_node() and state.observation_tensor(0) != state.observation_tensor(1):
            return False
        state.apply_action(state.legal_actions()[0])
    return True


def _load(pyspiel: Any, name: str, parameters: Mapping[str, Any]) -> Any:
    known = pyspiel.registered_names()
    short = name.partition("(")[0]
    if short not in known:
        raise ConfigError(f"OpenSpiel has no game '{short}'{nearest(short, known)}")
    if "(" in name and parameters:
        raise ConfigError(f"both env.id = '{name}' and env.kwargs set parameters: set them in one of the two")
    try:
        return pyspiel.load_game(name, dict(parameters)) if parameters else pyspiel.load_game(name)
    except (pyspiel.SpielError, TypeError) as error:
        raise ConfigError(f"OpenSpiel cannot load '{name}' with the parameters {dict(parameters)}: {error}") from None


def _check_kind(pyspiel: Any, game: Any, name: str) -> None:
    kind, players = game.get_type(), game.num_players()
    faults = {
        f"it has {players} players (1 or 2 are supported)": players > 2,
        "its players move at the same time": kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL,
        "it has hidden information": kind.information != pyspiel.GameType.Information.PERFECT_INFORMATION,
        "its chance outcomes cannot be seeded": kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC,
        "it is not zero-sum": players == 2 and kind.utility != pyspiel.GameType.Utility.ZERO_SUM,
        "it has no observation tensor": not kind.provides_observation_tensor,
        f"it has chance events after the first move, which search would foresee; {CHANCE_ADVICE}": (
            kind.chance_mode == pyspiel.GameType.ChanceMode.EXPLICIT_STOCHASTIC
            and kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL
            and _chance_later(game)
        ),
    }
    if found := [fault for fault, present in faults.items() if present]:
        raise ConfigError(f"tree search cannot play OpenSpiel's {name}: {'; '.join(found)}")


def _chance_later(game: Any) -> bool:
    """Whether a random game meets chance nodes after its first move."""
    generator, moved = random.Random(0), False
    state = game.new_initial_state()
    while not state.is_terminal():
        if state.is_chance_node():
            if moved:
                return True
            state.apply_action(state.chance_outcomes()[0][0])
        else:
            moved = True
            state.apply_action(generator.choice(state.legal_actions()))
    return False


_IMMUTABLE = frozenset({type(None), bool, int, float, str, bytes, type, np.float32, np.float64, np.int64, np.bool_})
_CONSTANT = frozenset({"action_space", "observation_space", "metadata", "spec", "reward_range", "_np_random"})
"""Attributes of environments that nobody changes in place."""


def copy_of[T](original: T) -> T:
    """Copies an object attribute by attribute, as `copy.deepcopy` does but without calling `__getstate__`.

    In many environments (with EzPickle) that drops the state. Both objects refer to the same `_CONSTANT` attributes.
    """
    twin = object.__new__(type(original))
    memo = {id(original): twin}
    for name, value in vars(original).items():
        # Each simulation of a search copies, and most attributes are numbers.
        same = name in _CONSTANT or type(value) in _IMMUTABLE
        vars(twin)[name] = value if same else copy.deepcopy(value, memo)
    return twin


_CHANCE_GAMES, _CHANCE_STEPS = 4, 32
"""Episodes, and steps per episode, that are played to detect chance events."""


class GymnasiumSimulator:
    """An environment with discrete actions; `Interface` checks its steps and reads its action masks.

    Wrappers from the registration, such as time limits, are not applied: `env.max_plies` truncates episodes.

    `module`, if given, is imported first: it registers the id. `kwargs` are arguments for `gymnasium.make`.
    """

    players = 1

    def __init__(self, name: str, kwargs: Mapping[str, Any], module: str | None = None) -> None:
        find(name, module)
        with explained(f"env: '{name}'", kwargs), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gymnasium warns about every id that has a newer version
            self._env: Any = gymnasium.make(name, **kwargs).unwrapped
        actions, observations = self._env.action_space, self._env.observation_space
        if not isinstance(actions, gymnasium.spaces.Discrete) or actions.start != 0:
            raise ConfigError(f"{name} has the action space {actions}; tree search needs a Discrete space from 0")
        if not isinstance(observations, gymnasium.spaces.Box):
            raise ConfigError(f"{name} has the observation space {observations}; expected a Box")
        self._interface = interface_to(self._env, name)
        self.num_actions = self._interface.actions.count
        self._all = list(range(self.num_actions))
        self.reset(0)
        advice = "learn a model of it instead, with env.name: gymnasium and network.name: muzero_mlp or muzero_resnet"
        try:
            self.clone()
        except Exception as error:
            raise ConfigError(f"{name} cannot be copied ({error}), so a search cannot simulate it; {advice}") from error
        try:
            has_chance = self._has_chance_events()
        except Exception as error:
            raise ConfigError(f"{name} cannot be played: {described(error)}. {REMEDY}") from error
        if has_chance:
            raise ConfigError(
                f"{name} has chance events: the same actions lead to different observations. Tree search plays copies, "
                f"so it would foresee them; {advice}"
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
        self._reward, self._terminated, self._truncated = 0.0, False, False

    def step(self, action: int) -> None:
        """See `Simulator`."""
        # Clones share one generator; its state, which each clone stores, is faster to copy than the generator.
        if self._random_state is not None:
            self._env.np_random.bit_generator.state = self._random_state
        seen = self._interface.after_step(self._env, self._env.step(action))
        self._store(seen.observation, seen.info)
        self._reward = float(seen.reward)
        self._terminated, self._truncated = bool(seen.terminated), bool(seen.truncated)

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
        """Whether a limit of the environment ended the episode."""
        return self._truncated and not self._terminated

    @property
    def steps_per_second(self) -> float:
        """The environment's own speed."""
        return float(self._env.metadata.get("render_fps") or STEPS_PER_SECOND)

    def render(self) -> np.ndarray[Any, Any]:
        """See `RenderedSimulator`."""
        return picture(rendered(self._env, self._env.spec.id), self._env.spec.id)

    def clone(self) -> GymnasiumSimulator:
        """See `Simulator`."""
        # Without __init__, which would make a new environment.
        twin = object.__new__(GymnasiumSimulator)
        vars(twin).update(vars(self))
        twin._env = copy_of(self._env)
        return twin

    def _store(self, observation: np.ndarray[Any, Any], info: Mapping[str, Any]) -> None:
        self._observation = np.array(observation)  # some environments reuse the array they returned
        self._legal = np.flatnonzero(info[MASK]).tolist() if MASK in info else self._all
        generator = getattr(self._env, "_np_random", None)
        self._random_state = None if generator is None else generator.bit_generator.state
