"""The error of this package."""

from __future__ import annotations

from podzero.errors import PodzeroError


class ExportError(PodzeroError, RuntimeError):
    """A network cannot be exported, or the written file computes something else; the message says what and where."""
