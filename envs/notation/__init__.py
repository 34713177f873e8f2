"""Names of actions, as people and other programs write moves, and FEN for chess positions.

`notation_for` gives the notation of an environment; simulators may name their own actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np

from podzero.core.protocols import Env
from podzero.core.types import EnvSpec, EnvState
from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.boards.go import GO_GAMES
from podzero.envs.boards.hex import HEX_GAMES
from podzero.envs.faults import SimulatorError
from podzero.envs.host import HostEnv
from podzero.envs.notation.chess import ChessNames
from podzero.envs.notation.chess import fen_of as fen_of
from podzero.envs.notation.chess import pieces_of as pieces_of
from podzero.envs.notation.chess import state_of as state_of
from podzero.envs.notation.chess import white_to_move as white_to_move
from podzero.envs.notation.names import FixedNames
from podzero.envs.notation.names import LineNotation as LineNotation
from podzero.envs.notation.names import Notation as Notation
from podzero.envs.notation.names import NotationError as NotationError
from podzero.envs.notation.names import names_in_text as names_in_text
from podzero.envs.notation.names import notation_errors as notation_errors
from podzero.envs.notation.shogi import SHOGI_GAMES as SHOGI_GAMES
from podzero.envs.notation.shogi import ShogiGame as ShogiGame
from podzero.envs.notation.shogi import ShogiNames
from podzero.envs.notation.shogi import square_seen_first as square_seen_first
from podzero.envs.simulator import NamedSimulator

_SHOWN = 5
"""Number of names that a message lists."""


class SimulatorNames:
    """The names that a simulator gives its actions (`podzero.envs.NamedSimulator`)."""

    def __init__(self, env: HostEnv) -> None:
        """`env` must name its actions."""
        self._env = env

    def name(self, state: EnvState, action: int) -> str:
        """See `Notation`."""
        (name,) = self._names(state, [action])
        return name

    def action(self, state: EnvState, name: str) -> int:
        """See `Notation`. Only legal actions have names; an exact match is preferred to one in another case."""
        legal: list[int] = np.flatnonzero(state.view.legal).tolist()
        names = self._names(state, legal)
        wanted = "".join(name.split())
        for form in (str, str.casefold):
            if found := [action for action, one in zip(legal, names, strict=True) if form(one) == form(wanted)]:
                return found[0]
        more = ", ..." if len(names) > _SHOWN else ""
        raise NotationError(f"'{name}' is not a legal move of {self._env.spec.name}: {', '.join(names[:_SHOWN])}{more}")

    def _names(self, state: EnvState, actions: Sequence[int]) -> list[str]:
        """The names without white space, which separates moves."""

        def ask(simulator: NamedSimulator) -> list[str]:
            try:
                return ["".join(simulator.action_name(action).split()) for action in actions]
            except Exception as error:
                game = self._env.spec.name
                raise SimulatorError(f"{game}: action_name raised {type(error).__name__}: {error}") from error

        return self._env.ask(state, ask)


def notation_for(env: Env) -> Notation:
    """The names of actions in an environment: those of its simulator, or those of its rules."""
    return SimulatorNames(env) if isinstance(env, HostEnv) and env.names_actions else notation_of(env.spec)


_LETTERS = "abcdefghijk"
_GO_LETTERS = "ABCDEFGHJKLMNOPQRST"
"""Column letters of Go, which has no I."""


def _squares(size: int) -> list[str]:
    return [f"{_LETTERS[column]}{row + 1}" for row in range(size) for column in range(size)]


def _hex(size: int) -> FixedNames:
    first = _squares(size)
    second = [first[row * size + column] for column in range(size) for row in range(size)]
    return FixedNames("hex", [*first, "swap"], "as e4, or swap", second=[*second, "swap"])


def _vertices(size: int) -> list[str]:
    """The first action is the top left corner; GTP numbers rows from the bottom."""
    return [*(f"{_GO_LETTERS[column]}{size - row}" for row in range(size) for column in range(size)), "pass"]


def _backgammon() -> list[str]:
    """Points are numbered from 24 down to 1 in the direction of play; a turn without a move ends by any pass."""
    names = ["pass", *(f"pass{number}" for number in range(2, 7))]
    for place in range(25, 0, -1):
        origin = "bar" if place == 25 else str(place)
        names += [f"{origin}/{place - die}" for die in range(1, min(place, 7))]
        # A checker may be borne off by more than its distance.
        names += [f"{origin}/off" if die == place else f"{origin}/off({die})" for die in range(place, 7)]
    return names


_NOTATIONS: dict[str, Callable[[], LineNotation]] = {
    **{name: partial(ChessNames, name, size) for name, size in CHESS_SIZES.items()},
    **{name: partial(ShogiNames, name) for name in SHOGI_GAMES},
    "connect_four": partial(
        FixedNames, "connect_four", _LETTERS[:7], "a to g", {str(column + 1): column for column in range(7)}
    ),
    **{name: partial(FixedNames, name, _vertices(size), "as E5, or pass") for name, size in GO_GAMES.items()},
    "othello": partial(FixedNames, "othello", [*_squares(8), "pass"], "as e6, or pass"),
    **{name: partial(_hex, size) for name, size in HEX_GAMES.items()},
    "tic_tac_toe": partial(FixedNames, "tic_tac_toe", _squares(3), "a1 to c3"),
    "2048": partial(FixedNames, "2048", ["left", "up", "right", "down"], "left, up, right or down"),
    "backgammon": partial(FixedNames, "backgammon", _backgammon(), "as 13/8, bar/20, 3/off or 3/off(5), or pass"),
}


@cache
def notation_of(spec: EnvSpec) -> LineNotation:
    """The names of a game's actions.

    Go: vertices of GTP, as D4 and pass. Chess: moves of UCI, as e2e4. Shogi: moves of USI, as 7g7f, 8h2b+ and P*5e.
    Connect four: the column, a to g (1 to 7 are understood). Othello, Hex and tic-tac-toe: column and row, from a1 at
    the top left; pass, and swap in Hex. Backgammon: a checker's points, as 13/8, bar/20 and 3/off, or 3/off(5) by a
    larger die. 2048: left, up, right and down. Actions of other games have their number, as a17.
    """
    if spec.name in _NOTATIONS:
        return _NOTATIONS[spec.name]()
    return FixedNames(spec.name, [f"a{action}" for action in range(spec.num_actions)], f"a0 to a{spec.num_actions - 1}")
