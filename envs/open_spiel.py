"""OpenSpiel games as `Simulator`s (Lanctot et al. 2019, https://arxiv.org/abs/1908.09453)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from podzero.core.errors import ConfigError, nearest
from podzero.core.importing import import_extra
from podzero.envs.simulator import CHANCE_ADVICE


class OpenSpielGame:
    """A sequential game of perfect information for one or two players.

    An observation tensor `[planes, rows, columns]` becomes a board `[rows, columns, planes]`, any other tensor becomes
    a vector. Many of OpenSpiel's tensors do not show whose turn it is: one that is the same for both players gets one
    more plane (or number), the player to move, 0 or 1.

    Args:
      name: the game's name, optionally with its parameters: `go(board_size=9)`.
      parameters: the game's parameters, if they are not in `name`.

    Raises:
      ConfigError: the game is unknown, OpenSpiel rejects a parameter, or tree search cannot play this kind of game.
    """

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        self._rules = _Rules(name, parameters)
        self.num_actions = self._rules.num_actions
        self.players = self._rules.players
        self.reset(0)

    @property
    def max_length(self) -> int:
        """Length of the longest possible game in moves, chance moves included."""
        return self._rules.max_length

    def reset(self, seed: int) -> None:
        """See `Simulator`."""
        self._seed = seed
        self._state = self._rules.game.new_initial_state()
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
        return self._rules.observe(self._state, self.player())

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
        # Without __init__, which would load the game again.
        twin = object.__new__(OpenSpielGame)
        twin._rules, twin.num_actions, twin.players = self._rules, self.num_actions, self.players
        twin._seed, twin._state = self._seed, self._state.clone()
        twin._returns, twin._rewards = self._returns, self._rewards  # replaced by a step, never changed in place
        return twin

    def _play_chance_moves(self) -> None:
        """Samples the outcomes of chance nodes."""
        # Seeded by the game's seed and the move number, so that clones and replays get the same outcomes.
        while self._state.is_chance_node():
            outcomes, probabilities = zip(*self._state.chance_outcomes(), strict=True)
            generator = random.Random(self._seed << 32 | self._state.move_number())
            self._state.apply_action(generator.choices(outcomes, probabilities)[0])


class _Rules:
    """What all positions of a game share."""

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        pyspiel = import_extra("pyspiel", "OpenSpiel")
        self.game = _load(pyspiel, name, parameters)
        _check_kind(pyspiel, self.game, name)
        self.num_actions: int = self.game.num_distinct_actions()
        self.players: int = self.game.num_players()
        self.max_length: int = self.game.max_game_length() + self.game.max_chance_nodes_in_history()
        module = import_extra("open_spiel.python.observation", "OpenSpiel")
        self._observer = module.make_observation(self.game)
        self._shape = tuple(self.game.observation_tensor_shape())
        self._adds_player = self.players == 2 and self._same_for_both_players()

    def observe(self, state: Any, player: int) -> np.ndarray[Any, Any]:
        """The observation of `player`, a board or a vector, float32."""
        self._observer.set_from(state, player)
        if len(self._shape) != 3:
            vector: np.ndarray[Any, Any] = self._observer.tensor
            return np.append(vector, np.float32(player)) if self._adds_player else vector.copy()
        planes, rows, columns = self._shape
        board = np.empty((rows, columns, planes + self._adds_player), np.float32)
        board[..., :planes] = self._observer.tensor.reshape(self._shape).transpose(1, 2, 0)
        board[..., planes:] = player
        return board

    def _same_for_both_players(self) -> bool:
        """Whether both players' observations are equal in the first eight positions of a game."""
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
