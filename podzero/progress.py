"""How far a run has come towards its end, which the learning rate follows."""

from __future__ import annotations


def share_of_rest(limit: float | None, before: float, done: float) -> float:
    """The share, in [0, 1], of what was left of a limit at `before` that is `done` now; 0 without a limit."""
    if limit is None:
        return 0.0
    return 1.0 if done >= limit else max(0.0, (done - before) / (limit - before))


class Progress:
    """The progress of a run, in [0, 1]: 0 at its beginning, 1 when the first limit of `stop` is reached.

    A run that begins or resumes at the progress p goes on to `p + (1 - p) * s`, where s is the largest share of what
    was then left of any limit. So with unchanged limits the progress is the share of the limit that is reached first;
    with others it neither falls nor jumps, and still ends at 1.

    Args:
      start: the progress at which the run begins or resumes.
      step: the learner step then.
      stop_steps: `stop.steps`.
    """

    def __init__(self, start: float, step: int, stop_steps: int | None) -> None:
        self._start = start
        self._step = step
        self._stop_steps = stop_steps
        self._told = 0.0

    def tell(self, share: float) -> None:
        """Takes note of the share of what was left of the limits of minutes and games; thread-safe."""
        self._told = max(self._told, share)

    def at(self, step: int) -> float:
        """The progress at a learner step."""
        share = max(self._told, share_of_rest(self._stop_steps, self._step, step))
        return self._start + (1.0 - self._start) * share
