"""Engines as players of matches: a few processes serve all games, and a failure costs the game in which it happens."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol

from podzero.evaluation.engines.process import EngineFailed
from podzero.evaluation.players import GIVES_UP, Turn

log = logging.getLogger(__name__)

PROCESSES = 4
"""The most processes of one player; no more than there are CPU cores."""


class Engine(Protocol):
    """One running process of an engine."""

    def best(self, turn: Turn) -> int:
        """The action that the engine chooses, or `GIVES_UP`; raises `EngineFailed`."""
        ...

    def close(self) -> None:
        """Ends the process."""
        ...


class EngineContestant:
    """A `MovesPlayer` that asks an engine.

    An engine that ends, does not answer in time, or answers what is no legal move forfeits the game. The log says why,
    and a new process plays the other games.
    """

    deterministic = True  # chance in the engine is its own: matches need random openings to be varied

    def __init__(self, name: str, start: Callable[[], Engine], processes: int | None = None) -> None:
        """Starts one process, the others when they are needed.

        Args:
          name: in results.
          start: starts a process.
          processes: the most at a time; by default `PROCESSES`, or the number of cores if it is smaller.

        Raises:
          EngineFailed: the engine cannot be started.
        """
        self._name, self._start = name, start
        count = processes or min(PROCESSES, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=f"{name}-engine")
        self._running: set[Engine] = set()
        self._free: SimpleQueue[Engine | None] = SimpleQueue()
        self._free.put(self._started())
        for _ in range(count - 1):
            self._free.put(None)
        self.close = weakref.finalize(self, _close, self._threads, self._running)
        """Ends all processes; called at the end of the program as well."""

    @property
    def name(self) -> str:
        """See `Player`."""
        return self._name

    def choose_after(self, turns: Sequence[Turn]) -> list[int]:
        """See `MovesPlayer`."""
        return list(self._threads.map(self._choose, turns))

    def _choose(self, turn: Turn) -> int:
        engine = self._free.get()
        try:
            engine = engine or self._started()
            return _legal(engine.best(turn), turn)
        except EngineFailed as error:
            log.warning("%s forfeits a game at ply %d: %s", self._name, len(turn.moves) + 1, error)
            if engine is not None:
                self._running.discard(engine)
                engine.close()
                engine = None
            return GIVES_UP
        finally:
            self._free.put(engine)

    def _started(self) -> Engine:
        engine = self._start()
        self._running.add(engine)
        return engine


def _legal(action: int, turn: Turn) -> int:
    if action != GIVES_UP and not turn.legal[action]:
        raise EngineFailed(f"it played action {action}, which is illegal in that position")
    return action


def _close(threads: ThreadPoolExecutor, running: set[Engine]) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for engine in list(running):
        engine.close()
