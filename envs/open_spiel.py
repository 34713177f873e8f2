"""Games of OpenSpiel behind the `Simulator` protocol (Lanctot et al. 2019, https://arxiv.org/abs/1908.09453)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from podzero.errors import ConfigError, nearest
from podzero.importing import import_extra


class OpenSpielGame:
    """A game for one or two players, who move in turn and see everything.

    A tensor `[planes, rows, columns]` becomes a board `[rows, columns, planes]`, any other one a vector. Many of
    OpenSpiel's tensors do not say who is to move: those that look the same to both players get one more plane, or
    number, which is 0 or 1.

    Args:
      name: of the game, with its parameters if wanted: `go(board_size=9)`.
      parameters: of the game, if not in `name`.

    Raises:
      ConfigError: there is no such game, it refuses a parameter, or it is of a kind that search cannot play.
    """

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        self._rules = _Rules(name, parameters)
        self.num_actions = self._rules.num_actions
        self.players = self._rules.players
        self.reset(0)

    @property
    def longest(self) -> int:
        """Moves, those of chance included, after which every game is over."""
        return self._rules.longest

    def reset(self, seed: int) -> None:
        """See `Simulator`."""
        self._seed = seed
        self._state = self._rules.game.new_initial_state()
        self._let_chance_move()
        self._returns = self._state.returns()
        self._rewards = [0.0] * self.players

    def step(self, action: int) -> None:
        """See `Simulator`."""
        state = self._state
        state.apply_action(action)
        self._let_chance_move()
        before, self._returns = self._returns, state.returns()
        self._rewards = [now - then for now, then in zip(self._returns, before, strict=True)]

    def legal_actions(self) -> list[int]:
        """See `Simulator`."""
        legal: list[int] = self._state.legal_actions()
        return legal

    def observation(self) -> np.ndarray[Any, Any]:
        """See `Simulator`."""
        return self._rules.observe(self._state, self.player())

    def player(self) -> int:
        """See `Simulator`."""
        player: int = self._state.current_player()
        return max(0, player)  # negative numbers are OpenSpiel's signs for nobody

    def rewards(self) -> list[float]:
        """See `Simulator`."""
        return self._rewards

    def done(self) -> bool:
        """See `Simulator`."""
        over: bool = self._state.is_terminal()
        return over

    def clone(self) -> OpenSpielGame:
        """See `Simulator`."""
        twin = object.__new__(OpenSpielGame)
        twin._rules, twin.num_actions, twin.players = self._rules, self.num_actions, self.players
        twin._seed, twin._state = self._seed, self._state.clone()
        twin._returns, twin._rewards = self._returns, self._rewards  # replaced by each step, never changed
        return twin

    def _let_chance_move(self) -> None:
        """Draws what chance does, from the seed and the number of moves before it."""
        while self._state.is_chance_node():
            outcomes, chances = zip(*self._state.chance_outcomes(), strict=True)
            dice = random.Random(self._seed << 32 | self._state.move_number())
            self._state.apply_action(dice.choices(outcomes, chances)[0])


class _Rules:
    """What all positions of a game share."""

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        pyspiel = import_extra("pyspiel", "OpenSpiel")
        self.game = _load(pyspiel, name, parameters)
        _check_kind(pyspiel, self.game, name)
        self.num_actions: int = self.game.num_distinct_actions()
        self.players: int = self.game.num_players()
        self.longest: int = self.game.max_game_length() + self.game.max_chance_nodes_in_history()
        module = import_extra("open_spiel.python.observation", "OpenSpiel")
        self._observer = module.make_observation(self.game)
        self._shape = tuple(self.game.observation_tensor_shape())
        self._names_mover = self.players == 2 and self._looks_the_same_to_both()

    def observe(self, state: Any, player: int) -> np.ndarray[Any, Any]:
        """What `player` sees, as a board or a vector, float32."""
        self._observer.set_from(state, player)
        if len(self._shape) != 3:
            vector: np.ndarray[Any, Any] = self._observer.tensor
            return np.append(vector, np.float32(player)) if self._names_mover else vector.copy()
        planes, rows, columns = self._shape
        board = np.empty((rows, columns, planes + self._names_mover), np.float32)
        board[..., :planes] = self._observer.tensor.reshape(self._shape).transpose(1, 2, 0)
        board[..., planes:] = player
        return board

    def _looks_the_same_to_both(self) -> bool:
        """Judged by the first positions of a game."""
        state = self.game.new_initial_state()
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
        raise ConfigError(f"env.id = '{name}' has parameters, and so has env.kwargs: write them in one place")
    try:
        return pyspiel.load_game(name, dict(parameters)) if parameters else pyspiel.load_game(name)
    except (pyspiel.SpielError, TypeError) as error:
        raise ConfigError(f"OpenSpiel refuses '{name}' with the parameters {dict(parameters)}: {error}") from None


def _check_kind(pyspiel: Any, game: Any, name: str) -> None:
    kind, players = game.get_type(), game.num_players()
    faults = {
        f"it has {players} players (1 or 2 are supported)": players > 2,
        "its players move at the same time": kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL,
        "its players do not see everything": kind.information != pyspiel.GameType.Information.PERFECT_INFORMATION,
        "its chance cannot be drawn from a seed": kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC,
        "what one player wins the other does not lose": players == 2
        and kind.utility != pyspiel.GameType.Utility.ZERO_SUM,
        "it has no observation tensor": not kind.provides_observation_tensor,
    }
    if found := [fault for fault, present in faults.items() if present]:
        raise ConfigError(f"OpenSpiel's {name} cannot be searched: {'; '.join(found)}")
