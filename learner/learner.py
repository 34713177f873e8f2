"""The learner: replay in, parameters out. One on each host; together they train one network."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from podzero.clock import StageClock
from podzero.config import Experiment
from podzero.learner.calibration import chip_figures
from podzero.learner.checkpoints import LearnerCheckpoints
from podzero.learner.devices import DeviceClock, memory_figures
from podzero.learner.hosts import Agreement, Alone, Order
from podzero.learner.metrics import Figures
from podzero.learner.prefetching import Prefetcher
from podzero.learner.publishing import Publisher
from podzero.learner.sharding import local_part
from podzero.learner.state import TrainState
from podzero.learner.step import StepSums
from podzero.learner.training import make_training
from podzero.protocols import ParamSink, ReplayReader, Report
from podzero.types import Batch, EnvSpec, Keys, ModelNetwork, Network, Symmetry, Versioned

ROLE = "learner"
REPORT_EVERY_S = 2.0
CHECKPOINT_TIMEOUT_S = 600.0
_ANSWERS = 8
"""Saves whose result is remembered for a host that asks late."""
_LOOK_UP_S = 0.1
"""While it waits for replay the loop looks up this often for requests to stop, checkpoint or report."""


class _InFlight(NamedTuple):
    """A dispatch that the devices may still be working on."""

    sums: StepSums
    errors: Sequence[jax.Array]
    keys: Keys | None


class Learner:
    """Trains one network on what replay holds; `run` is the loop, everything else may be called from any thread."""

    def __init__(
        self,
        experiment: Experiment,
        network: Network | ModelNetwork,
        spec: EnvSpec,
        symmetries: Sequence[Symmetry],
        *,
        reader: ReplayReader,
        sink: ParamSink | None,
        report: Report,
        restore_from: Path | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        """Builds the state, or restores it from `restore_from`, the folder of a step.

        Args:
          experiment: what to train and how.
          network: the network of the experiment.
          spec: the game's shapes.
          symmetries: the game's symmetries besides the identity, used when `learner.augment` says so.
          reader: gives this host's part of the batches, `[steps_per_dispatch, batch_size / hosts, ...]`.
          sink: where acting parameters go; only host 0 has one.
          report: where figures go.
          restore_from: the folder of a complete checkpoint.
          agreement: what `join` gave, where several hosts train; all build their learners with equal arguments.

        Raises:
          ConfigError: the devices or the batch do not fit the mesh.
          CheckpointMismatch, CheckpointDamaged: `restore_from` cannot be used.
        """
        config = experiment.learner
        self._stop_steps = experiment.stop.steps
        self._steps_per_dispatch = config.steps_per_dispatch
        self._publish_every = config.publish_every
        self._training = make_training(experiment, network, spec, symmetries)
        self._chips = chip_figures(experiment, network, spec, symmetries, self._training.mesh)
        self._device_clock = DeviceClock(self._training.step)
        self._checkpoints = LearnerCheckpoints(self._training.mesh)
        self._state: TrainState = (
            self._training.init()
            if restore_from is None
            else self._checkpoints.restore(restore_from, self._training.like)
        )
        self._step = int(self._state.step)
        self._reader = reader
        self._prefetcher = Prefetcher(reader)
        self._publisher = Publisher(sink, self._training.mesh)
        self._agreement = agreement or Alone()
        self._leads = jax.process_index() == 0
        self._role = ROLE if self._leads else f"{ROLE}-{jax.process_index()}"
        self._report = report
        self._metrics = Figures(config.batch_size)
        self._clock = StageClock()
        self._stopping = threading.Event()
        self._ended = False
        self._published: int | None = None
        self._saves: dict[Path, Future[int]] = {}
        self._reported = time.perf_counter()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Trains until `stop.steps` steps are done (counted over resumes, rounded up to whole dispatches) or `stop`.

        Acting parameters are published at once, then every `publish_every` steps, and when training ends.

        Raises:
          HostLost: another host is gone or silent.
        """
        try:
            with self._prefetcher, jax.transfer_guard_host_to_device("disallow"):
                self._publish()
                in_flight: _InFlight | None = None
                while (host := self._next_batch()) is not None:
                    with self._clock("host_to_device"):
                        batch = self._training.put(host._replace(keys=None))
                    with self._clock("step"):
                        self._state, sums, errors = self._device_clock(self._state, batch)
                        # With this dispatch queued, waiting for the one before it leaves no gap on the device.
                        self._settle(in_flight)
                    in_flight = _InFlight(sums, errors, host.keys)
                    self._step += self._steps_per_dispatch
                    if self._step % self._publish_every < self._steps_per_dispatch:
                        self._publish()
                self._settle(in_flight)
                self._publish()
        except BaseException as failure:
            self._end(failure)
            raise
        self._end(None)

    def stop(self) -> None:
        """Asks `run` to end after the dispatch under way, all hosts' if this is host 0; returns at once."""
        self._stopping.set()

    def request_checkpoint(self, folder: Path) -> Future[int]:
        """Asks for the state of the next dispatch boundary to be saved; on all hosts, each of which writes its part.

        Args:
          folder: for this save alone; the files go into its `learner/`.

        Returns:
          a future of the step that was saved, resolved when this host's files are complete.
        """
        with self._lock:
            for old in [folder for folder, future in self._saves.items() if future.done()][:-_ANSWERS]:
                del self._saves[old]
            future = self._saves.setdefault(folder, Future())
            ended = self._ended
        if ended and _waiting(future):
            self._save(folder)
        return future

    def acting_params(self) -> Versioned | None:
        """The parameters published last, as host arrays; None before the first publication."""
        return self._publisher.newest

    def close(self) -> None:
        """Ends the threads of publication, checkpoints and clock, after `run` has returned."""
        self._publisher.close()
        self._checkpoints.close()
        self._device_clock.close()

    def _next_batch(self) -> Batch | None:
        """This host's next batch once all hosts have theirs, serving requests meanwhile; None when all shall stop."""
        batch: Batch | None = None
        while True:
            self._report_when_due()
            if batch is None:
                with self._clock("wait_replay"):
                    batch = self._prefetcher.poll(_LOOK_UP_S)
            with self._clock("wait_hosts"):
                order = self._agreement.next(self._wish(batch is not None), 0.0 if batch is None else _LOOK_UP_S)
            match order:
                case Order("step"):
                    return batch
                case Order("save", folder):
                    self._save(Path(folder))
                case Order("stop"):
                    return None

    def _wish(self, ready: bool) -> Order | None:
        """What this host would do next; all but the first follow in everything but their batches."""
        if self._leads:
            with self._lock:
                asked = self._asked()
            if asked:
                return Order("save", str(asked[0]))
            if self._stopping.is_set() or (self._stop_steps is not None and self._step >= self._stop_steps):
                return Order("stop")
        return Order("step") if ready else None

    def _asked(self) -> list[Path]:
        """The folders of saves that were asked for and have not begun; call it with the lock held."""
        return [folder for folder, future in self._saves.items() if _waiting(future)]

    def _settle(self, dispatch: _InFlight | None) -> None:
        """Waits for a dispatch, and takes in what there is to say of it."""
        if dispatch is None:
            return
        self._metrics.add(dispatch.sums)
        if dispatch.keys is not None:
            with self._clock("update_priorities"):
                self._reader.update_priorities(
                    dispatch.keys, np.concatenate([local_part(errors) for errors in dispatch.errors])
                )

    def _publish(self) -> None:
        """Publishes the averaged weights; the transfer and the sink run beside the next dispatch."""
        if self._step != self._published:
            with self._clock("publish"):
                self._publisher.publish(self._step, self._state.ema)
            self._published = self._step

    def _save(self, folder: Path) -> None:
        """Begins to save; the future of `folder` resolves when the files are complete."""
        step = self._step
        with self._lock:
            future = self._saves.setdefault(folder, Future())
            future.set_running_or_notify_cancel()

        def resolve(saved: Future[None]) -> None:
            error = saved.exception()
            if error is None:
                future.set_result(step)
            else:
                future.set_exception(error)

        try:
            with self._clock("checkpoint"):
                self._checkpoints.save(folder, self._state).add_done_callback(resolve)
        except Exception as error:  # whoever asked shall hear it; training goes on
            future.set_exception(error)

    def _report_when_due(self) -> None:
        if time.perf_counter() - self._reported >= REPORT_EVERY_S:
            self._report_figures()

    def _report_figures(self) -> None:
        """Host 0 speaks for all of what was learned, each host for its own time and memory."""
        metrics = self._clock.flush() | memory_figures(jax.local_devices())
        if self._leads:
            metrics |= self._metrics.flush(self._step)
            metrics |= self._chips.of(metrics["learner/samples_per_s"], self._device_clock.flush())
        self._report(self._role, metrics)
        self._reported = time.perf_counter()

    def _end(self, failure: BaseException | None) -> None:
        """Answers what is still asked for and waits for what is under way."""
        with self._lock:
            self._ended = True  # whoever asks from here on is answered by `request_checkpoint`
            asked = self._asked()
        for folder in asked:
            if failure is None:
                self._save(folder)
            else:
                self._saves[folder].set_exception(failure)
        self._report_figures()
        if failure is None:
            self._checkpoints.wait(CHECKPOINT_TIMEOUT_S)
            self._publisher.wait()


def _waiting(future: Future[int]) -> bool:
    """Whether a save was asked for and has not begun."""
    return not future.running() and not future.done()
