"""Groups of games of one actor, each searched in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from podzero.actors.selfplay import SelfPlayActor


class ActorGroups:
    """Actors that run at the same time in one process: while one waits for evaluations, the others search.

    Args:
      actors: each with its own games.
      interrupt: ends what they wait for; is called when they shall stop.
    """

    def __init__(self, actors: Sequence[SelfPlayActor], interrupt: Callable[[], None]) -> None:
        self._actors = actors
        self._interrupt = interrupt
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
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def stop(self) -> None:
        """Ends `run` after the current moves; thread-safe, returns at once."""
        for actor in self._actors:
            actor.stop()

    def _run(self, actor: SelfPlayActor) -> None:
        try:
            actor.run()
        except Exception as failure:
            self._failures.append(failure)
            self.stop()
            self._interrupt()
