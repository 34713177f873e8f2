"""Ends a learner whose devices hang: no call can interrupt the wait for a device, so another thread has to notice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread

from podzero.errors import PodzeroError

DISPATCH_TIMEOUT_S = 1800.0
"""Longest time that the devices may execute one dispatch: far more than any that a checkpoint can wait for."""
_POLL_S = 1.0


class DevicesHang(PodzeroError, RuntimeError):
    """The devices of a learner have executed one dispatch for so long that they must hang; the message names it."""


def run_watched(
    run: Callable[[], None], dispatch_s: Callable[[], float], name: str, limit_s: float = DISPATCH_TIMEOUT_S
) -> None:
    """Calls `run` in a thread, and returns or raises what it does.

    Args:
      run: trains.
      dispatch_s: how long the devices have executed the present dispatch, in seconds; 0 while there is none.
      name: of the learner's process.
      limit_s: longest time of one dispatch.

    Raises:
      DevicesHang: a dispatch has lasted longer. `run` still waits for it then: the process has to be ended.
    """
    ended: Future[None] = Future()

    def work() -> None:
        try:
            run()
        except BaseException as failure:
            ended.set_exception(failure)
        else:
            ended.set_result(None)

    Thread(target=work, name="learner", daemon=True).start()
    while not wait([ended], _POLL_S).done:
        if (lasted_s := dispatch_s()) > limit_s:
            raise DevicesHang(
                f"the devices of {name} have executed one dispatch for {lasted_s:.0f} s (limit {limit_s:.0f} s): they "
                "hang, or those of another host with which they exchange gradients do. Look for device errors in the "
                "log, and restart the hosts if they do not answer. If a dispatch takes that long, lower "
                "learner.steps_per_dispatch"
            )
    ended.result()
