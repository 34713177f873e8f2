"""What environments and replay cost an actor beside its search."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import jax

from podzero.config import Experiment, GymnasiumConfig
from podzero.errors import ConfigError
from podzero.launch.bench.material import FixedSource, open_to_inserts
from podzero.launch.bench.serving import served
from podzero.launch.build import learner_parts, make_actor

_STEP_S = 600.0
"""Longest wait for the actor to compile, or to end."""


def bench_acting(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures where the time of a complete actor goes that acts in gymnasium environments.

    It writes its windows to a Reverb server in another process, whose limiter holds nobody back. Its parameters are
    untrained, so that episodes are short, and end and begin as often as they ever will.

    Args:
      experiment: its environment, network, search and `actors` are measured.
      seconds: how long to measure after compilation.

    Returns:
      `ratio`, the share of the actor's time that is search; the shares of all stages (`environment`: stepping;
      `assemble`: cutting windows; `write`: sending them); steps/s and windows/s.

    Raises:
      ConfigError: the experiment is about a game.
    """
    if not isinstance(experiment.env, GymnasiumConfig):
        raise ConfigError(f"{experiment.env.title} is played, not acted in: see podzero bench selfplay")
    network, spec, _ = learner_parts(experiment)
    params = network.init(jax.random.key(experiment.seed))
    tally = _Tally()
    with served(open_to_inserts(experiment), spec) as address:
        from podzero.replay import make_writer  # imports TensorFlow

        writer = make_writer([address], spec, experiment)
        actor = make_actor(experiment, "actor-0", experiment.seed, FixedSource(params), writer, tally)
        thread = threading.Thread(target=actor.run, name="bench-actor")
        thread.start()
        try:
            tally.wait()  # the first report is of compilation
            tally.begin()
            time.sleep(seconds)
        finally:
            actor.stop()
            thread.join(_STEP_S)
            writer.close()
    return tally.result() | {"environments": experiment.actors.games, "simulations": experiment.search.simulations}


class _Tally:
    """Adds up what the actor reports; a `Report`."""

    def __init__(self) -> None:
        self._heard = threading.Event()
        self._seconds: dict[str, float] = defaultdict(float)
        self._counts: dict[str, float] = defaultdict(float)
        self._since = self._last = time.perf_counter()

    def __call__(self, role: str, figures: Mapping[str, float]) -> None:
        now = time.perf_counter()
        for name, value in figures.items():
            kind, _, what = name.partition("/")
            if kind == "time":
                self._seconds[what] += value * (now - self._last)
            elif kind == "count":
                self._counts[what] += value
        self._last = now
        self._heard.set()

    def wait(self) -> None:
        """Waits for a report.

        Raises:
          TimeoutError: there was none.
        """
        if not self._heard.wait(_STEP_S):
            raise TimeoutError(f"the actor has not made a step in {_STEP_S:g} s")

    def begin(self) -> None:
        """Forgets what was reported so far."""
        self._seconds.clear()
        self._counts.clear()
        self._since = self._last

    def result(self) -> dict[str, Any]:
        """Shares of time, and rates, from `begin` to the last report."""
        elapsed = self._last - self._since
        shares = {stage: seconds / elapsed for stage, seconds in self._seconds.items()}
        return {
            "ratio": shares["search"],
            **{f"{stage}_share": share for stage, share in sorted(shares.items())},
            "steps_per_s": self._counts["moves"] / elapsed,
            "windows_per_s": self._counts["samples"] / elapsed,
            "seconds": elapsed,
        }
