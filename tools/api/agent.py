"""An agent that is asked for positions and games."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from podzero.config import GymnasiumConfig
from podzero.envs import make_env, simulator_errors
from podzero.errors import ConfigError
from podzero.evaluation.evaluate import discount_of
from podzero.evaluation.players import GIVES_UP, MovesPlayer, Player, SearchPlayer, Turn
from podzero.evaluation.resolve import resolve
from podzero.player_names import PREFIX, TrainedPlayer, game_to_play, parse_player
from podzero.protocols import Env
from podzero.tools.api.results import Evaluation, FinishedGame, Search
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import PositionSearch, Searched, batch_of_one, usual_simulations, with_simulations
from podzero.types import EnvSpec


def load(who: str | Path, game: str | None = None, simulations: int | None = None) -> Agent:
    """Loads an agent.

    Args:
      who: a working directory (its newest snapshot), `DIR@STEP`, `zoo:go_9x9` or a named player such as `mcts:200`; see
        `podzero.player_names`.
      game: the name of a game, or an experiment whose environment is played; required for named players, which can play
        any game.
      simulations: per move of a trained agent; None takes as many as in training.

    Raises:
      ConfigError: there is no such agent, or it does not play this game.
      WorkdirError, SnapshotError: the files of the agent cannot be read.
    """
    name = str(who)
    trained = isinstance(parse_player(name), TrainedPlayer)
    if game is None and not trained:
        raise ConfigError(f"'{name}' can play any game: name one, as load('{name}', game='connect_four')")
    if simulations is not None and not trained:
        raise ConfigError(f"'{name}' takes no number of simulations; mcts:N has it in its name, as mcts:{simulations}")
    where = game_to_play(game, name)
    if isinstance(where, GymnasiumConfig):
        raise ConfigError(
            f"{where.title} is not played in turns: `podzero evaluate {name}` lets the agent act in it, and "
            "podzero.metrics reads what its run reported"
        )
    return Agent(name, make_env(where), simulations, discount_of(where))


class Agent:
    """A player of one game, trained or not.

    A position is a `PlayableGame`, as `new_game` makes it, or the names of the moves that lead there from the
    beginning, as "E5 C3". Each number of simulations is compiled when it is used first, which takes some seconds.
    """

    def __init__(self, who: str, env: Env, simulations: int | None = None, discount: float = 1.0) -> None:
        """See `load`; `discount` per move is that of `mcts:N`."""
        self._who, self._env, self._discount = who, env, discount
        self._parsed = parse_player(who)
        self.simulations = _positive(usual_simulations(self._parsed) if simulations is None else simulations)
        """Of each search, unless another number is given there."""
        self._player = resolve(who, env, self.simulations, discount)
        self._search = PositionSearch(self._made)
        self._new_game = PlayableGame(env)

    @property
    def name(self) -> str:
        """As it was loaded; of a working directory with the learner step of its snapshot."""
        newest = isinstance(self._parsed, TrainedPlayer) and self._parsed.step is None
        if not newest or self._who.startswith(PREFIX):
            return self._who
        return f"{self._who}@{self._player.name.rpartition('@')[2]}"

    @property
    def plays(self) -> str:
        """The name of its game."""
        return self._env.spec.name

    def new_game(self, moves: str = "") -> PlayableGame:
        """A game at its beginning, or after moves that are named in order, as "E5 C3".

        Raises:
          NotationError: there is no such move, or it is illegal.
        """
        game = self._new_game.copy()
        game.restart(game.read(moves))
        return game

    @simulator_errors()
    def evaluate(self, position: PlayableGame | str = "") -> Evaluation:
        """What the network alone says of a position, without a search.

        Raises:
          ConfigError: the agent has no network, or the game is over or another one.
          NotationError: as `new_game`.
        """
        game = self._going_on(position)
        policy, value = jax.device_get(self._search_player().evaluate(batch_of_one(game.state)))
        return Evaluation(game, policy[0], float(value[0]))

    @simulator_errors()
    def search(self, position: PlayableGame | str = "", simulations: int | None = None) -> Search:
        """Searches a position as the agent does when it plays.

        Raises:
          ConfigError: the agent does not search, or the game is over or another one.
          NotationError: as `new_game`.
        """
        game, simulations = (
            self._going_on(position),
            _positive(self.simulations if simulations is None else simulations),
        )
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
          opponent: who plays the other side; None lets the agent play both.
          position: where they begin to play; given games are not changed.
          second: whether the opponent is the player who begins the game.

        Raises:
          ConfigError: the opponent, or the position, is of another game.
          NotationError: as `new_game`.
        """
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
            values.append(np.nan if found.value is None else (1 - 2 * game.turn) * found.value)
            game.play(found.action)
        names = players[0].name, players[1].name
        return FinishedGame(game, names, np.array(values, np.float32), resigned)

    def __repr__(self) -> str:
        return f"<{self.name}, an agent of {self.plays}>"

    def _search_player(self) -> SearchPlayer:
        if not isinstance(self._player, SearchPlayer):
            raise ConfigError(
                f"'{self.name}' gives moves alone: play against it, or load a working directory or mcts:N, which search"
            )
        return self._player

    def _choice(self, game: PlayableGame) -> Searched | None:
        """The move in a position; None if the agent gives up."""
        if not isinstance(self._player, MovesPlayer):
            return self._search(game.state, self.simulations)
        if not game.from_beginning:
            raise ConfigError(f"'{self.name}' knows positions by their moves: the game must start at the beginning")
        (action,) = self._player.choose_after([Turn(tuple(game.moves), game.state, game.legal_mask)])
        return None if action == GIVES_UP else Searched(action)

    def _made(self, simulations: int) -> Player:
        """The player with a number of simulations."""
        if simulations == self.simulations:
            player = self._player
        else:
            player = resolve(with_simulations(self._who, simulations), self._env, simulations, self._discount)
        assert not isinstance(player, MovesPlayer)
        return player

    def _copy(self, position: PlayableGame | str) -> PlayableGame:
        if isinstance(position, str):
            return self.new_game(position)
        self._check_same(position.env.spec)
        return position.copy()

    def _going_on(self, position: PlayableGame | str) -> PlayableGame:
        game = self._copy(position)
        if game.over:
            raise ConfigError(
                f"the game is over ({game.result}): there is no move to choose; take_back shows an earlier one"
            )
        return game

    def _check_same(self, other: EnvSpec) -> None:
        if other != self._env.spec:
            raise ConfigError(f"'{self.name}' plays {self.plays}, and this is {other.name}")


def _positive(simulations: int) -> int:
    if simulations < 1:
        raise ConfigError(f"expected at least one simulation, not {simulations}")
    return simulations
