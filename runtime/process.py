"""What all classes share that Ray runs as processes of a run."""

from __future__ import annotations

import logging
import sys
import time
from abc import ABC, abstractmethod
from typing import Any

from podzero.runtime.freed_memory import FreedMemory
from podzero.runtime.monitoring.reports import LogReport, MetricsReport, ReportBuffer

log = logging.getLogger(__name__)


class Process(ABC):
    """What all processes share: a buffer of reports that the driver drains, and the error of a failed construction.

    Ray reports an exception of a constructor as a dead process and drops its type. The constructor therefore keeps
    the exception, and `ready` raises it.
    """

    def __init__(self, name: str, **arguments: Any) -> None:
        self._name = name
        self._failure: Exception | None = None
        self._reports = ReportBuffer(name)
        logger = logging.getLogger("podzero")
        logger.setLevel(logging.INFO)
        logger.addHandler(self._reports)
        began = time.monotonic()
        try:
            self._build(**arguments)
        except Exception as failure:
            self._failure = failure
        else:
            log.info("built in %.1f s", time.monotonic() - began)
        self._freed_memory = FreedMemory() if "jax" in sys.modules else None

    @abstractmethod
    def _build(self, *none: Any, **arguments: Any) -> None:
        """Builds the object that this process runs."""

    def ready(self) -> None:
        """Returns once the object of this process is built.

        Raises:
          Exception: whatever kept the object from being built.
        """
        if self._failure is not None:
            raise self._failure

    def drain(self) -> list[MetricsReport | LogReport]:
        """Metrics and log lines since the last call; also gives free memory back."""
        if self._freed_memory is not None:
            self._freed_memory.give_back()
        return self._reports.drain()
