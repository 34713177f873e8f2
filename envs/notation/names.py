"""The protocol of names of actions, and names that do not depend on the position."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from podzero.core.errors import ConfigError
from podzero.core.types import EnvState


class NotationError(ConfigError):
    """A text does not name a move or position of the game."""


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
    """One name for each action in all positions."""

    def __init__(self, game: str, names: Sequence[str], form: str, also: Mapping[str, int] | None = None) -> None:
        """`names` of actions 0, 1, ..., `also` others that are accepted; `form`: how they look, such as `a to g`."""
        self._game, self._names, self._form = game, tuple(names), form
        self._actions = {name.lower(): action for action, name in enumerate(names)} | dict(also or {})

    def name(self, state: EnvState, action: int) -> str:
        """See `Notation`."""
        del state
        return self._names[action]

    def action(self, state: EnvState, name: str) -> int:
        """See `Notation`."""
        del state
        try:
            return self._actions[name.lower()]
        except KeyError:
            raise NotationError(f"'{name}' is not a move of {self._game}; moves are named {self._form}") from None

    def names(self, actions: Sequence[int]) -> list[str]:
        """See `LineNotation`."""
        return [self._names[action] for action in actions]
