"""Exploration of B searches for tests."""

from __future__ import annotations

import numpy as np

from podzero.core.types import Exploration


def full(batch):
    """All noise, and a choice that follows it."""
    return explorations(np.ones(batch), np.ones(batch))


def explorations(noise, temperature):
    """The given noise `[B]` and temperature `[B]`."""
    return Exploration(np.asarray(noise, np.float32), np.asarray(temperature, np.float32))
