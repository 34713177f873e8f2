"""What the learner's devices are, whether they are all there, what of their memory is in use, how long they work."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax

from podzero.chips import Slice, chip_of_kind
from podzero.errors import ConfigError, PodzeroError
from podzero.learner.state import TrainState
from podzero.learner.step import Stepped, StepSums, TrainStep
from podzero.types import Batch

_MEMORY = {
    "bytes_in_use": "learner/hbm_bytes",
    "peak_bytes_in_use": "learner/hbm_peak_bytes",
    "bytes_limit": "learner/hbm_limit_bytes",
}


class DoesNotFit(PodzeroError, RuntimeError):
    """Training takes more memory than a device has; the message says which switches take less."""


class Machine(NamedTuple):
    """The devices that train together."""

    chips: int
    """Devices of the mesh, over all hosts."""
    hosts: int
    """Processes that hold them."""
    peak_flops: float | None
    """bfloat16 operations per second of all chips together; None where no peak is known."""


def machine_of(devices: Sequence[jax.Device]) -> Machine:
    """What `devices`, all of one kind, are together."""
    chip = chip_of_kind(devices[0].device_kind)
    hosts = len({device.process_index for device in devices})
    return Machine(len(devices), hosts, chip.flops * len(devices) if chip else None)


def check_chips(where: Slice) -> None:
    """Makes sure that JAX finds all chips of this host of a slice.

    Devices that stand in for chips pass, where JAX_PLATFORMS asks for them by name.

    Raises:
      ConfigError: it finds other devices, or not all chips.
    """
    devices = jax.local_devices()
    platform, chips = devices[0].platform, where.chips // where.hosts
    here = f"{socket.gethostname()} is a host of {where.short_name}"
    if platform != "tpu":
        if os.environ.get("JAX_PLATFORMS") != platform:
            raise ConfigError(
                f"{here}, but JAX finds only {platform} devices there: install libtpu (`uv sync --extra tpu`), and see "
                "that no other process holds the chips"
            )
    elif len(devices) != chips:
        raise ConfigError(
            f"{here} with {chips} chips, but JAX finds {len(devices)} of them: another process may hold the others"
        )


def explained(failure: Exception) -> Exception:
    """The failure itself, or what it means for whoever wrote the experiment."""
    if isinstance(failure, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(failure):
        return DoesNotFit(
            "training does not fit into the memory of a device: try learner.mesh.fsdp=true (with several devices), "
            "network.remat=true or more learner.microbatches; `podzero compile` says beforehand what fits a slice. "
            f"JAX said: {failure}"
        )
    return failure


def memory_figures(devices: Sequence[jax.Device]) -> dict[str, float]:
    """Bytes in use, their peak so far and their limit, of the fullest of some local devices.

    Devices that do not tell, as CPUs, give no figures.
    """
    told = [stats for device in devices if (stats := device.memory_stats())]
    return {
        name: float(max(stats[key] for stats in told))
        for key, name in _MEMORY.items()
        if told and all(key in stats for stats in told)
    }


class Pace(NamedTuple):
    """What a `DeviceClock` has seen since it was asked last."""

    busy_s: float
    """Seconds of device work in the dispatches that ended."""
    busy: float
    """The same as a share of wall time, in [0, 1]."""
    dispatch_s: float | None
    """The same by dispatches; None when none ended."""


class DeviceClock:
    """A train step that notes how long the devices work on each dispatch.

    The loop's own clock cannot tell: it asks for a dispatch and goes on, and may wait for replay, publish or save while
    the devices work. So a thread waits for each dispatch to end. A dispatch begins when it is asked for or, if that is
    later, when the one before ends. The first one, which compiles, is not counted.
    """

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        self._lock = threading.Lock()
        self._free_at: float | None = None
        self._flushed = time.perf_counter()
        self._busy_s = 0.0
        self._dispatches = 0
        self._asked: queue.SimpleQueue[tuple[float, StepSums] | None] = queue.SimpleQueue()
        threading.Thread(target=self._watch, name="learner-devices", daemon=True).start()

    def __call__(self, state: TrainState, batches: Batch) -> Stepped:
        """Asks for a dispatch, as the train step itself."""
        asked = time.perf_counter()
        stepped = self._step(state, batches)
        self._asked.put((asked, stepped.sums))
        return stepped

    def flush(self) -> Pace:
        """The pace since the last flush; starts anew."""
        with self._lock:
            now = time.perf_counter()
            busy = min(1.0, self._busy_s / max(now - self._flushed, 1e-9))
            pace = Pace(self._busy_s, busy, self._busy_s / self._dispatches if self._dispatches else None)
            self._flushed, self._busy_s, self._dispatches = now, 0.0, 0
        return pace

    def close(self) -> None:
        """Ends the thread once the dispatches under way have ended."""
        self._asked.put(None)

    def _watch(self) -> None:
        while (asked := self._asked.get()) is not None:
            began, sums = asked
            try:
                jax.block_until_ready(sums)  # type: ignore[no-untyped-call]
            except Exception:
                return  # the loop, which needs these sums, meets the same error and tells it
            with self._lock:
                now = time.perf_counter()
                if self._free_at is not None:
                    self._busy_s += now - max(began, self._free_at)
                    self._dispatches += 1
                self._free_at = now
