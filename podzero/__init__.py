"""Distributed AlphaZero and MuZero for TPU pods.

For programs and notebooks: `load` returns an agent, which evaluates and searches positions and plays games; `board`
draws a position; `train` starts a run; `metrics` reads what a run reported. They are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from podzero.core.errors import PodzeroError as PodzeroError

if TYPE_CHECKING:
    from podzero.tools.api.acting import EnvironmentAgent as EnvironmentAgent
    from podzero.tools.api.agent import Agent as Agent
    from podzero.tools.api.agent import board as board
    from podzero.tools.api.agent import load as load
    from podzero.tools.api.training import metrics as metrics
    from podzero.tools.api.training import train as train

__all__ = ["Agent", "EnvironmentAgent", "PodzeroError", "board", "load", "metrics", "train"]
_MODULES = {
    "Agent": "podzero.tools.api.agent",
    "EnvironmentAgent": "podzero.tools.api.acting",
    "board": "podzero.tools.api.agent",
    "load": "podzero.tools.api.agent",
    "metrics": "podzero.tools.api.training",
    "train": "podzero.tools.api.training",
}
"""The module of each name, imported on first use because most of them import JAX."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'podzero' has no attribute '{name}'")
    from podzero.core.machine import choose_platform

    choose_platform()
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
