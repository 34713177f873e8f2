"""Groups of games of one actor, each searched in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from podzero.actors.selfplay import SelfPlayActor

log = logging.getLogger(__name__)

GRACE_S = 3.0
"""Time that moves have to end when the actor is asked to stop; then their waits are interrupted."""


class ActorGroups:
    """Actors that run at the same time in one process: while one waits for evaluations, the others search.

    Args:
      actors: each with its own games.
      interrupt: ends what they wait for.
      cause: the error behind a failed actor, if it is known: JAX keeps only the text of an error in a callback.
    """

    def __init__(
        self, actors: Sequence[SelfPlayActor], interrupt: Callable[[], None], cause: Callable[[], Exception | None]
    ) -> None:
        self._actors = actors
        self._interrupt = interrupt
        self._cause = cause
        self._stopping = threading.Event()
        self._failures: list[Exception] = []

    def run(self) -> None:
        """Plays until `stop` is called.

        Raises:
          Exception: why the first actor failed; the others are stopped then.
        """
        threads = [
            threading.Thread(target=self._run, args=(actor,), name=f"games-{number}", daemon=True)
            for number, actor in enumerate(self._actors)
        ]
        for thread in threads:
            thread.start()
        self._stopping.wait()
        for thread in threads:
            thread.join(GRACE_S)
        self._interrupt()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def stop(self) -> None:
        """Ends `run` after the current moves, or without them after `GRACE_S`; thread-safe, returns at once."""
        for actor in self._actors:
            actor.stop()
        self._stopping.set()

    def _run(self, actor: SelfPlayActor) -> None:
        try:
            actor.run()
        except Exception as failure:
            if self._stopping.is_set():
                log.info("games that waited for an inference server at the end are lost")
            else:
                self._failures.append(self._cause() or failure)
        finally:
            self.stop()
