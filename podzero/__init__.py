"""Distributed AlphaZero and MuZero for TPU pods.

For programs and notebooks: `load` an agent, which evaluates and searches positions and plays games; `board`, to draw a
position; and `metrics`, what a run reported. They are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from podzero.errors import PodzeroError as PodzeroError

if TYPE_CHECKING:
    from podzero.tools.api.agent import Agent as Agent
    from podzero.tools.api.agent import load as load
    from podzero.tools.api.metrics import metrics as metrics
    from podzero.tools.api.results import board as board

_MODULES = {
    "Agent": "podzero.tools.api.agent",
    "board": "podzero.tools.api.results",
    "load": "podzero.tools.api.agent",
    "metrics": "podzero.tools.api.metrics",
}
"""Where each name is found, since most of these modules import JAX."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'podzero' has no attribute '{name}'")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
