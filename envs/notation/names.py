"""The protocol of names of actions, and names that do not depend on the position."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from podzero.core.errors import ConfigError
from podzero.core.types import EnvState


class NotationError(ConfigError):
    """A text does not name a move or position of the game."""


@contextmanager
def notation_errors(kind: Callable[[str], Exception], what: str) -> Iterator[None]:
    """Turns a `NotationError` into an error of this kind, which says what failed."""
    try:
        yield
    except NotationError as error:
        raise kind(f"{what}: {error}") from None


class Notation(Protocol):
    """The names of a game's actions. States have no batch axis and are host or device arrays."""

    def name(self, state: EnvState, action: int) -> str:
        """The name of a legal action."""
        ...

    def action(self, state: EnvState, name: str) -> int:
        """The action with this name, in upper or lower case; it need not be legal.

        Raises:
          NotationError: no action has this name in that position.
        """
        ...


class LineNotation(Notation, Protocol):
    """A notation that needs no rules to follow a game."""

    def names(self, actions: Sequence[int]) -> list[str]:
        """The names of the moves of a game from its initial position."""
        ...


def names_in_text(text: str) -> list[str]:
    """Splits what a person typed into names of moves, at spaces and commas outside parentheses."""
    return re.findall(r"(?:[^\s,(]|\([^)]*\)|\()+", text)


class FixedNames:
    """One name for each action in all positions, or one for each player, who see the board differently."""

    def __init__(
        self,
        game: str,
        names: Sequence[str],
        form: str,
        also: Mapping[str, int] | None = None,
        second: Sequence[str] | None = None,
    ) -> None:
        """`names` of actions 0, 1, ..., `also` others that are accepted; `form`: how they look, such as `a to g`.

        `second`: those of the second player, if they differ; states then have `board.plies`.
        """
        self._game, self._names, self._form = game, (names, second or names), form
        self._differ = second is not None
        self._actions = [{name.lower(): i for i, name in enumerate(side)} | dict(also or {}) for side in self._names]

    def name(self, state: EnvState, action: int) -> str:
        """See `Notation`."""
        return self._names[self._side(state)][action]

    def action(self, state: EnvState, name: str) -> int:
        """See `Notation`."""
        try:
            return self._actions[self._side(state)][name.lower()]
        except KeyError:
            raise NotationError(f"'{name}' is not a move of {self._game}; moves are named {self._form}") from None

    def names(self, actions: Sequence[int]) -> list[str]:
        """See `LineNotation`."""
        return [self._names[ply % 2][action] for ply, action in enumerate(actions)]

    def _side(self, state: EnvState) -> int:
        return int(state.board.plies) % 2 if self._differ else 0
