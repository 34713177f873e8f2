"""The learner's devices: number, memory and busy time, and the check that all chips are found."""

from __future__ import annotations

import math
import os
import queue
import socket
import threading
import time
from collections.abc import Sequence

import jax

from podzero.core.chips import Slice
from podzero.core.errors import ConfigError, PodzeroError
from podzero.core.types import PackedBatch
from podzero.learner.step import StepOutput, StepSums, TrainState, TrainStep

_MEMORY = {
    "bytes_in_use": "learner/hbm_bytes",
    "peak_bytes_in_use": "learner/hbm_peak_bytes",
    "bytes_limit": "learner/hbm_limit_bytes",
}
_TRAIN = "device"
"""The name of the train step among the programs that `DeviceClock` measures."""


class DoesNotFit(PodzeroError, RuntimeError):
    """Training needs more memory than a device has."""


def check_chips(tpu_slice: Slice, slices: int = 1) -> None:
    """Checks that JAX finds all of this host's chips of a TPU slice, and all `slices` that train together."""
    devices = jax.local_devices()
    platform, expected = devices[0].platform, tpu_slice.devices // tpu_slice.hosts
    host = f"{socket.gethostname()} is a host of {tpu_slice.short_name}"
    if platform != "tpu":
        # JAX_PLATFORMS may ask for another platform, as tests do.
        if os.environ.get("JAX_PLATFORMS") != platform:
            raise ConfigError(
                f"{host}, but JAX finds only {platform} devices there: install libtpu "
                "(`uv sync --inexact --extra tpu`), and check that no other process uses the chips"
            )
    elif len(devices) != expected:
        raise ConfigError(
            f"{host} with {expected} devices, but JAX finds {len(devices)} of them: another process may use the others"
        )
    elif (found := len({getattr(device, "slice_index", 0) for device in jax.devices()})) != slices:
        raise ConfigError(
            f"{host}, of which cluster.slices={slices} train together, but JAX finds the devices of {found}: check "
            "that the hosts of all slices reach each other at all ports"
        )


def explained(failure: Exception) -> Exception:
    """Turns an out-of-memory error of JAX into `DoesNotFit`; returns other exceptions unchanged."""
    if isinstance(failure, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(failure):
        return DoesNotFit(
            "training does not fit into the memory of a device: try learner.mesh.fsdp=true (with several devices), "
            "network.remat=true or more learner.microbatches; `podzero compile` predicts what fits a slice. "
            f"JAX reported: {failure}"
        )
    return failure


def memory_metrics(devices: Sequence[jax.Device]) -> dict[str, float]:
    """Bytes in use, their peak so far and their limit: the maximum over local devices.

    Empty for devices without memory statistics, such as CPUs.
    """
    known = [stats for device in devices if (stats := device.memory_stats())]
    return {
        name: float(max(stats[key] for stats in known))
        for key, name in _MEMORY.items()
        if known and all(key in stats for stats in known)
    }


class DeviceClock:
    """A train step that measures how long the devices execute each dispatch; the first, which compiles, is not counted.

    Dispatch is asynchronous: the loop may wait for replay, publish or save meanwhile, so a thread waits for each
    dispatch to end. Others who use the devices call `ended`, so that their time does not count as that of training.
    """

    def __init__(self, step: TrainStep, steps_per_dispatch: int) -> None:
        self._step, self._steps_per_dispatch = step, steps_per_dispatch
        self._lock = threading.Lock()
        self._free_at = -math.inf
        self._flushed = time.perf_counter()
        self._busy_s: dict[str, float] = {}
        """By program, once its first dispatch has ended."""
        self._dispatches = 0
        self._in_flight: queue.SimpleQueue[tuple[float, StepSums] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name="learner-devices", daemon=True)
        self._thread.start()

    def __call__(self, state: TrainState, batches: PackedBatch) -> StepOutput:
        """Dispatches the train step."""
        start = time.perf_counter()
        output = self._step(state, batches)
        self._in_flight.put((start, output.sums))
        return output

    def flush(self) -> dict[str, float]:
        """Metrics of what the devices executed since the last flush; resets the clock.

        `count/device_s` are the seconds of the train step, `count/play_s` those of a program `play` of others.
        """
        with self._lock:
            now = time.perf_counter()
            seconds, steps = {_TRAIN: 0.0} | self._busy_s, self._dispatches * self._steps_per_dispatch
            busy = min(1.0, seconds[_TRAIN] / max(now - self._flushed, 1e-9))
            self._flushed, self._busy_s, self._dispatches = now, dict.fromkeys(self._busy_s, 0.0), 0
        metrics = {"learner/device_busy": busy} | {f"count/{program}_s": each for program, each in seconds.items()}
        return metrics | ({"learner/device_s_per_step": seconds[_TRAIN] / steps} if steps else {})

    def ended(self, program: str, start: float) -> None:
        """Counts a program that was dispatched at `start` (`time.perf_counter`) and has just ended; thread-safe.

        Devices execute one program after the other: it began when it was dispatched or, if later, when the one before
        had ended. Of two whose kernels take turns, as with loops that the host steers, the first to end gets the time.
        """
        with self._lock:
            now = time.perf_counter()
            if program in self._busy_s:
                self._busy_s[program] += now - max(start, self._free_at)
                self._dispatches += program == _TRAIN
            else:
                self._busy_s[program] = 0.0
            self._free_at = now

    def close(self) -> None:
        """Ends the thread after the dispatches in flight."""
        self._in_flight.put(None)

    def _watch(self) -> None:
        while (dispatch := self._in_flight.get()) is not None:
            # The sums are the output that nobody donates, so they can be waited for.
            start, sums = dispatch
            try:
                jax.block_until_ready(sums)  # type: ignore[no-untyped-call]
            except Exception:
                # The loop reads the same sums and raises the error.
                return
            self.ended(_TRAIN, start)
