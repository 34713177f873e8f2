"""An actor's clients of parameters, replay and metrics."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from podzero.protocols import ParamSource, ReplayWriter, Report
from podzero.types import Sample, StoredState, Window

Positions = tuple[Sample, StoredState | None]
"""Training samples, and the same positions as stored for reanalysis."""


class ActorClients(NamedTuple):
    """The clients of one actor."""

    source: ParamSource
    writer: ReplayWriter
    report: Report
    states: ReplayWriter | None = None
    """Writes to the `states` table; None without reanalysis."""

    def write(
        self,
        samples: Sample | Window,
        states: StoredState | Window | None,
        priorities: np.ndarray[Any, Any] | None = None,
    ) -> None:
        """Writes states, then samples. The `states` table never blocks a write, so reanalysers have their input even
        while the `samples` table blocks.

        Args:
          samples: `[T, ...]` on every field.
          states: `[T, ...]` of the same positions; None, or no writer for them, writes none.
          priorities: `[T]`, or None.
        """
        if self.states is not None and states is not None:
            self.states.write(states)
        self.writer.write(samples, priorities)
