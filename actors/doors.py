"""What an actor exchanges with the rest of the system."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from podzero.protocols import ParamSource, ReplayWriter, Report
from podzero.types import PastPosition, Sample, Window


class Doors(NamedTuple):
    """The doors of one actor to parameters, replay and the figures."""

    source: ParamSource
    writer: ReplayWriter
    report: Report
    past: ReplayWriter | None = None
    """Where goes what shall be searched again; None where nothing is."""

    def write(
        self,
        samples: Sample | Window,
        past: PastPosition | Window | None,
        priorities: np.ndarray[Any, Any] | None = None,
    ) -> None:
        """Writes samples, and the same as `past`: that first, since it is never held back and must not wait for those
        who need it.

        Args:
          samples: `[T, ...]` on every field.
          past: `[T, ...]`, if there is a door for it.
          priorities: `[T]`, or None.
        """
        if self.past is not None and past is not None:
            self.past.write(past)
        self.writer.write(samples, priorities)
