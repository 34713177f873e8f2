"""Agents that evaluate and search positions and play games, and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from podzero.config import GymnasiumConfig
from podzero.core.errors import ConfigError
from podzero.core.protocols import Env
from podzero.core.types import EnvSpec
from podzero.envs import make_env, simulator_errors
from podzero.evaluation.games import End, PlayedGame
from podzero.evaluation.players import GIVES_UP, MovesPlayer, Player, SearchPlayer, Turn
from podzero.evaluation.records import record_text, write_records
from podzero.evaluation.resolve import resolve, usual_simulations, with_simulations
from podzero.files.players import TrainedPlayer, game_to_play, is_packed, parse_player
from podzero.tools.api.acting import EnvironmentAgent
from podzero.tools.play.drawing import Drawing, drawing_of
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.picture import heat_of
from podzero.tools.play.searching import PositionSearch, Searched, batch_of_one, make_player

Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int32]]


def load(who: str | Path, game: str | None = None, simulations: int | None = None) -> Agent | EnvironmentAgent:
    """Loads an agent: of a game, or of a gymnasium environment.

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
    name, simulations = str(who), None if simulations is None else _positive(simulations)
    trained = isinstance(parse_player(name), TrainedPlayer)
    if game is None and not trained:
        raise ConfigError(f"'{name}' can play any game: name one, as in load('{name}', game='connect_four')")
    if simulations is not None and not trained:
        raise ConfigError(f"'{name}' takes no number of simulations; mcts:{simulations} has it in its name")
    where = game_to_play(game, name)
    if isinstance(where, GymnasiumConfig):
        if not trained:
            raise ConfigError(
                f"'{name}' is no trained agent of {where.title}; `podzero evaluate {name}` lets it act there"
            )
        return EnvironmentAgent(name, where, simulations)
    return Agent(name, make_env(where), simulations, where.discount)


class Agent:
    """A player of one game, trained or not; made by `load`.

    Positions are given as a `PlayableGame` (see `new_game`) or as the names of the moves from the initial state, such
    as "E5 C3"; one of another game raises `ConfigError`, a move that is unknown or illegal `NotationError`. The first
    use of a number of simulations compiles, which takes seconds.
    """

    def __init__(self, who: str, env: Env, simulations: int | None = None, discount: float = 1.0) -> None:
        self._who, self._env, self._discount = who, env, discount
        self._parsed = parse_player(who)
        self.simulations = usual_simulations(self._parsed) if simulations is None else simulations
        """Default simulations per search."""
        self._player = resolve(who, env, self.simulations, discount)
        self._search = PositionSearch(self._made)
        self._new_game = PlayableGame(env)

    @property
    def name(self) -> str:
        """The name given to `load`; a working directory is completed to `DIR@STEP`."""
        newest = isinstance(self._parsed, TrainedPlayer) and self._parsed.step is None
        if not newest or is_packed(self._who):
            return self._who
        return f"{self._who}@{self._player.name.rpartition('@')[2]}"

    @property
    def plays(self) -> str:
        """The game's name."""
        return self._env.spec.name

    def move(self, position: PlayableGame | str = "", simulations: int | None = None) -> str:
        """The name of the move that the agent plays in a position; arguments and errors are those of `search`."""
        return self.search(position, simulations).best

    def new_game(self, moves: str = "") -> PlayableGame:
        """A game after the given moves, such as "E5 C3"."""
        game = self._new_game.copy()
        game.restart(game.read(moves))
        return game

    @simulator_errors()
    def evaluate(self, position: PlayableGame | str = "") -> Evaluation:
        """Evaluates a position by the network alone; `ConfigError` if the agent has none, or the game is over."""
        game = self._unfinished(position)
        policy, value = jax.device_get(self._search_player().evaluate(batch_of_one(game.state)))
        return Evaluation(game, policy[0], float(value[0]))

    @simulator_errors()
    def search(self, position: PlayableGame | str = "", simulations: int | None = None) -> Search:
        """Searches a position as the agent does when it plays; `ConfigError` if it does not, or the game is over."""
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
        self, opponent: Agent | str | None = None, position: PlayableGame | str = "", second: bool = False
    ) -> FinishedGame:
        """Plays a game to its end.

        Args:
          opponent: the player of the other side, or its name as in `load`; None lets the agent play both.
          position: the position to start from; a given game is not changed.
          second: whether the opponent plays first.

        Raises:
          ConfigError: the opponent is of another game, or the game has more than two players.
        """
        if self._env.spec.players > 2:
            raise ConfigError(f"{self.plays} has {self._env.spec.players} players: match agents with `evaluate`")
        other = load(opponent, self.plays) if isinstance(opponent, str) else opponent or self
        assert isinstance(other, Agent)
        game = self._copy(position)
        if opponent is not None and self._env.spec.players == 1:
            raise ConfigError(f"{self.plays} has a single agent: play it without an opponent")
        self._check_same(other._env.spec)
        players = (other, self) if second else (self, other)
        values = [np.nan] * game.ply
        while not game.over and (found := players[game.turn]._choice(game)) is not None:
            # Values are for the player to move; negate those of the second player.
            values.append(np.nan if found.value is None else (1 - 2 * game.turn) * found.value)
            game.play(found.action)
        names = players[0].name, players[1].name
        return FinishedGame(game, names, np.array(values, np.float32), resigned=not game.over)

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


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The policy and value of a position."""

    game: PlayableGame
    """A copy of the game that shows the position."""
    policy: Floats
    """`[A]` float32, the probability of each action; 0 for illegal ones."""
    value: float
    """The value for the player to move, in [-1, 1]."""

    @property
    def action(self) -> int:
        """The most probable action."""
        return int(self.policy.argmax())

    @property
    def best(self) -> str:
        """The name of `action`."""
        return self.game.name(self.action)

    @property
    def probabilities(self) -> dict[str, float]:
        """The probability of each legal move by name, descending."""
        likely_first = sorted(self.game.legal, key=lambda action: -self.policy[action])
        return {self.game.name(action): float(self.policy[action]) for action in likely_first}

    @property
    def heat_map(self) -> Floats:
        """`[H, W]` float32, the policy by square: the probability that a stone or piece moves there; see `board`."""
        drawing = board(self.game)
        heat = np.zeros(drawing.size, np.float32)
        policy = {action: float(self.policy[action]) for action in self.game.legal}
        for square, share in heat_of(drawing, policy).items():
            heat[square] = share
        return heat

    def __repr__(self) -> str:
        return f"{type(self).__name__}(best={self.best!r}, value={self.value:+.3f})"


@dataclass(frozen=True, eq=False, repr=False)
class Search(Evaluation):
    """The result of a search; `policy` is the improved policy."""

    chosen: int
    """The selected action."""
    visits: Integers
    """`[A]` int32, the visit counts at the root."""
    simulations: int

    @property
    def action(self) -> int:
        """The selected action, which need not be the most probable one."""
        return self.chosen

    @property
    def visit_counts(self) -> dict[str, int]:
        """The visit count of each legal move by name, descending; ties by probability."""
        visited_first = sorted(self.game.legal, key=lambda action: (-self.visits[action], -self.policy[action]))
        return {self.game.name(action): int(self.visits[action]) for action in visited_first}


@dataclass(frozen=True, eq=False, repr=False)
class FinishedGame:
    """A game between two agents."""

    game: PlayableGame
    """The game at its end; `game.show(ply)` steps through it."""
    players: tuple[str, str]
    """The players' names; the first one began."""
    values: Floats
    """`[plies]` float32, the mover's value before each move, for the player who began; NaN without a search."""
    resigned: bool = False
    """Whether the player to move at the end resigned or forfeited."""

    @property
    def moves(self) -> Sequence[str]:
        """The names of all moves."""
        return self.game.names

    @property
    def result(self) -> str:
        """The result in words."""
        if self.resigned:
            return f"{('second', 'first')[self.game.turn]} player wins, the other one resigned"
        return self.game.result

    @property
    def points(self) -> float:
        """The points of the player who began: 1 for a win, 0.5 for a draw, 0 for a loss."""
        # With `turn` 1 the second player resigned.
        return float(self.game.turn) if self.resigned else 0.5 + 0.5 * float(np.sign(self.game.points))

    def record(self, date: str | None = None) -> str:
        """The game as SGF (Go, Othello and Hex) or PGN (others), with a date such as 2026-01-31.

        Raises:
          ConfigError: the game did not start from the initial state, or has one player.
        """
        return record_text(self.game.env, self._played, date)

    def save(self, path: str | Path, date: str | None = None) -> None:
        """Writes `record` to a file and creates its folder; `ConfigError` also if it cannot be written."""
        write_records(Path(path), self.game.env, [self._played], date)

    @property
    def _played(self) -> PlayedGame:
        if not self.game.from_beginning or self.game.env.spec.players != 2:
            raise ConfigError("only two-player games from the initial state can be recorded; see `moves` for others")
        end: End = "given up" if self.resigned else "cut off" if self.game.position.view.truncated else "over"
        return PlayedGame(*self.players, tuple(self.game.moves), self.points, end=end)

    def __repr__(self) -> str:
        first, second = self.players
        return f"<{first} against {second}: {self.result} after {len(self.game.moves)} moves>"


def board(game: PlayableGame) -> Drawing:
    """The board of the position that a game shows.

    Returns:
      `owner` (`[H, W]`: 0 for stones or pieces of the player who began, 1 for the other player's, -1 for none), `text`
      (in each square), `rows` and `columns` (labels, from the top and from the left); raises `ConfigError` without a
      board.
    """
    drawing = drawing_of(game)
    if drawing is None:
        raise ConfigError(f"{game.env.spec.name} has no board to draw: its observations are not planes of a board")
    return drawing


def _positive(simulations: int) -> int:
    if simulations < 1:
        raise ConfigError(f"expected at least one simulation, not {simulations}")
    return simulations
