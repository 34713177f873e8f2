"""The one error of an experiment that cannot be run, and the words in which names are corrected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """An experiment that cannot be run as written; the message is for the person who wrote it."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` for the closest of `known`, or nothing when none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""
