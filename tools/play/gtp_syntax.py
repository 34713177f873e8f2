"""The lines of the Go Text Protocol, and their arguments."""

from __future__ import annotations

import re
from typing import NamedTuple

COLOURS = {"b": True, "black": True, "w": False, "white": False}
"""Whether a colour is that of the player who moves first."""
_GREATEST = 1e6
"""The greatest number that is believed."""


class GtpError(Exception):
    """A command that fails, with the message for the controller."""


class Command(NamedTuple):
    """A line of the controller."""

    number: str
    name: str
    arguments: list[str]


def parse(line: str) -> Command | None:
    """The command of a line, without comments and control characters; None if there is none."""
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", line.partition("#")[0].replace("\t", " "))
    words = text.split()
    number = words.pop(0) if words and words[0].isdecimal() else ""
    return Command(number, words[0], words[1:]) if words else None


def word_at(words: list[str], place: int, expected: str) -> str:
    """The argument at a place; raises `GtpError` if it is missing."""
    if place >= len(words):
        raise GtpError(f"syntax error: expected {expected}")
    return words[place]


def number_at(words: list[str], place: int, expected: str) -> float:
    """The number at a place; raises `GtpError` if there is none."""
    try:
        number = float(word_at(words, place, expected))
    except ValueError:
        raise GtpError(f"syntax error: expected {expected}, not '{words[place][:80]}'") from None
    if not abs(number) <= _GREATEST:
        raise GtpError(f"syntax error: expected {expected}, not '{words[place][:80]}'")
    return number


def colour_of(words: list[str]) -> bool:
    """Whether the first argument is the colour of the player who moves first; raises `GtpError` if it is no colour."""
    try:
        return COLOURS[word_at(words, 0, "a colour").lower()]
    except KeyError:
        raise GtpError("syntax error: expected a colour, black or white") from None
