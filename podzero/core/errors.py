"""Errors that users can act on, and suggestions of similar names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

TRY_AGAIN = 4
"""Exit status after an error that may pass by itself: the same command may succeed later."""


class PodzeroError(Exception):
    """The base of all errors that a user can act on.

    The message says what was wrong, where, and what to do. The command line prints it without a traceback.
    """

    exit_code: ClassVar[int] = 2
    """Exit status of the command line."""


class ConfigError(PodzeroError, ValueError):
    """An experiment or an argument that cannot be used as written."""


class ClusterError(PodzeroError, RuntimeError):
    """The cluster cannot be reached, has no room, or did not answer; the message says what podzero waited for."""

    exit_code = TRY_AGAIN


def described(error: BaseException) -> str:
    """The message of an error, after its type unless podzero wrote it: a `KeyError` says the key alone."""
    return str(error) if isinstance(error, PodzeroError) else f"{type(error).__name__}: {error}"


@contextmanager
def os_errors(kind: type[PodzeroError], what: str, remedy: str = "") -> Iterator[None]:
    """Turns an `OSError` into an error of this kind, which says what failed, the system's reason, and the remedy."""
    try:
        yield
    except OSError as error:
        raise kind("; ".join(filter(None, [f"{what}: {error.strerror or error}", remedy]))) from None


def nearest(word: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` for the most similar of `known`; empty if none is similar."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f" (did you mean '{close[0]}'?)" if close else ""
