"""Classic games of PettingZoo as `Simulator`s (Terry et al. 2021, https://arxiv.org/abs/2009.14471)."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Any

import numpy as np

from podzero.envs.copying import copy_of
from podzero.errors import ConfigError, nearest
from podzero.importing import import_extra

GAMES: Mapping[str, frozenset[str]] = {
    "tictactoe_v3": frozenset(),
    "connect_four_v3": frozenset(),
    "chess_v6": frozenset({"board_history"}),
    "go_v5": frozenset({"board_history", "_go", "_last_obs", "next_legal_moves"}),
}
"""The games of perfect information. For each, the attributes that a step replaces but never changes in place: clones
may share their values."""
_CONSTANT = frozenset({"action_spaces", "observation_spaces", "possible_agents", "_ezpickle_args", "_ezpickle_kwargs"})


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
        self._shared = GAMES[name] | _CONSTANT
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
        twin._env, twin._observed = copy_of(self._env, self._shared), self._observed
        twin._shared, twin.num_actions = self._shared, self.num_actions
        return twin

    def _observe(self) -> None:
        """Stores observation and legal actions, which PettingZoo computes together; they are never changed in place."""
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
