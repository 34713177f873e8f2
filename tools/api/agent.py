"""Agents that evaluate and search positions and play games."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from podzero.config import GymnasiumConfig
from podzero.core.errors import ConfigError
from podzero.core.protocols import Env
from podzero.core.types import EnvSpec
from podzero.envs import make_env, simulator_errors
from podzero.evaluation.players import GIVES_UP, MovesPlayer, Player, SearchPlayer, Turn
from podzero.evaluation.resolve import resolve
from podzero.files.players import PREFIX, TrainedPlayer, game_to_play, parse_player
from podzero.tools.api.results import Evaluation, FinishedGame, Search
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import (
    PositionSearch,
    Searched,
    batch_of_one,
    make_player,
    usual_simulations,
    with_simulations,
)


def load(who: str | Path, game: str | None = None, simulations: int | None = None) -> Agent:
    """Loads an agent.

    Args:
      who: a working directory (its newest snapshot), `DIR@STEP`, `zoo:go_9x9` or a named player such as `mcts:200`; see
        `podzero.files.players`.
      game: a game, or an experiment whose environment is played; required for named players, which play any game.
      simulations: a trained agent's simulations per move; None for the number used in training.

    Raises:
      ConfigError: there is no such agent, it does not play this game, or `jax_enable_x64` is on.
      WorkdirError, SnapshotError: the agent's files cannot be read.
    """
    if jax.config.jax_enable_x64:
        raise ConfigError("jax_enable_x64 is on (or JAX_ENABLE_X64 is set): agents compute in 32 bits; switch it off")
    name = str(who)
    trained = isinstance(parse_player(name), TrainedPlayer)
    if game is None and not trained:
        raise ConfigError(f"'{name}' can play any game: name one, as in load('{name}', game='connect_four')")
    if simulations is not None and not trained:
        raise ConfigError(f"'{name}' takes no number of simulations; mcts:{simulations} has it in its name")
    where = game_to_play(game, name)
    if isinstance(where, GymnasiumConfig):
        raise ConfigError(
            f"{where.title} is not played in turns: `podzero evaluate {name}` lets the agent act in it, and "
            "podzero.metrics reads the metrics of its run"
        )
    return Agent(name, make_env(where), simulations, where.discount)


class Agent:
    """A player of one game, trained or not; made by `load`.

    Positions are given as a `PlayableGame` (see `new_game`) or as the names of the moves from the initial state, such
    as "E5 C3". The first use of a number of simulations compiles, which takes seconds.

    Args:
      who: the player, see `load`.
      env: the game.
      simulations: default simulations per search; None for the player's usual number.
      discount: discount per move for `mcts:N`.
    """

    def __init__(self, who: str, env: Env, simulations: int | None = None, discount: float = 1.0) -> None:
        self._who, self._env, self._discount = who, env, discount
        self._parsed = parse_player(who)
        self.simulations = _positive(usual_simulations(self._parsed) if simulations is None else simulations)
        """Default simulations per search."""
        self._player = resolve(who, env, self.simulations, discount)
        self._search = PositionSearch(self._made)
        self._new_game = PlayableGame(env)

    @property
    def name(self) -> str:
        """The name given to `load`; a working directory is completed to DIR@STEP."""
        newest = isinstance(self._parsed, TrainedPlayer) and self._parsed.step is None
        if not newest or self._who.startswith(PREFIX):
            return self._who
        return f"{self._who}@{self._player.name.rpartition('@')[2]}"

    @property
    def plays(self) -> str:
        """The game's name."""
        return self._env.spec.name

    def new_game(self, moves: str = "") -> PlayableGame:
        """A game after the given moves, such as "E5 C3".

        Raises:
          NotationError: a move is unknown or illegal.
        """
        game = self._new_game.copy()
        game.restart(game.read(moves))
        return game

    @simulator_errors()
    def evaluate(self, position: PlayableGame | str = "") -> Evaluation:
        """Evaluates a position by the network alone, without a search.

        Raises:
          ConfigError: the agent has no network, the game is over, or the position is of another game.
          NotationError: see `new_game`.
        """
        game = self._unfinished(position)
        policy, value = jax.device_get(self._search_player().evaluate(batch_of_one(game.state)))
        return Evaluation(game, policy[0], float(value[0]))

    @simulator_errors()
    def search(self, position: PlayableGame | str = "", simulations: int | None = None) -> Search:
        """Searches a position as the agent does when it plays.

        Raises:
          ConfigError: the agent does not search, the game is over, or the position is of another game.
          NotationError: see `new_game`.
        """
        game = self._unfinished(position)
        simulations = _positive(self.simulations if simulations is None else simulations)
        # Refuses agents that do not search.
        self._search_player()
        found = self._search(game.state, simulations)
        assert found.policy is not None
        assert found.value is not None
        assert found.visits is not None
        return Search(game, found.policy, found.value, found.action, found.visits, simulations)

    @simulator_errors()
    def play(
        self, opponent: Agent | None = None, position: PlayableGame | str = "", second: bool = False
    ) -> FinishedGame:
        """Plays a game to its end.

        Args:
          opponent: the player of the other side; None lets the agent play both.
          position: the position to start from; a given game is not changed.
          second: whether the opponent plays first.

        Raises:
          ConfigError: the opponent or the position is of another game, or the game has more than two players.
          NotationError: see `new_game`.
        """
        if self._env.spec.players > 2:
            raise ConfigError(f"{self.plays} has {self._env.spec.players} players: match agents with `evaluate`")
        game, other = self._copy(position), opponent or self
        if opponent is not None and self._env.spec.players == 1:
            raise ConfigError(f"{self.plays} has a single agent: play it without an opponent")
        self._check_same(other._env.spec)
        players = (other, self) if second else (self, other)
        values = [np.nan] * game.ply
        resigned = False
        while not game.over and not resigned:
            found = players[game.turn]._choice(game)
            if found is None:
                resigned = True
                continue
            # Values are for the player to move; negate those of the second player.
            values.append(np.nan if found.value is None else (1 - 2 * game.turn) * found.value)
            game.play(found.action)
        names = players[0].name, players[1].name
        return FinishedGame(game, names, np.array(values, np.float32), resigned)

    def __repr__(self) -> str:
        return f"<{self.name}, an agent of {self.plays}>"

    def _search_player(self) -> SearchPlayer:
        if not isinstance(self._player, SearchPlayer):
            raise ConfigError(f"'{self.name}' does not search: play against it, or load a working directory or mcts:N")
        return self._player

    def _choice(self, game: PlayableGame) -> Searched | None:
        """The agent's move; None if it resigns."""
        if not isinstance(self._player, MovesPlayer):
            return self._search(game.state, self.simulations)
        if not game.from_beginning:
            raise ConfigError(f"'{self.name}' needs all moves of a game: the game must start from the initial state")
        (action,) = self._player.choose_after([Turn(tuple(game.moves), game.state, game.legal_mask)])
        return None if action == GIVES_UP else Searched(action)

    def _made(self, simulations: int) -> Player:
        if simulations == self.simulations:
            assert not isinstance(self._player, MovesPlayer)
            return self._player
        return make_player(with_simulations(self._who, simulations), self._env, simulations, self._discount)

    def _copy(self, position: PlayableGame | str) -> PlayableGame:
        if isinstance(position, str):
            return self.new_game(position)
        self._check_same(position.env.spec)
        return position.copy()

    def _unfinished(self, position: PlayableGame | str) -> PlayableGame:
        game = self._copy(position)
        if game.over:
            raise ConfigError(f"the game is over ({game.result}), so there is no move to choose; take_back goes back")
        return game

    def _check_same(self, other: EnvSpec) -> None:
        if other != self._env.spec:
            raise ConfigError(f"'{self.name}' plays {self.plays}, not {other.name}")


def _positive(simulations: int) -> int:
    if simulations < 1:
        raise ConfigError(f"expected at least one simulation, not {simulations}")
    return simulations
