"""The training loop: it trains on batches from replay and publishes parameters. Each host of a learner runs one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from podzero.config import Experiment
from podzero.core.clock import REPORT_EVERY_S, Progress, StageClock
from podzero.core.protocols import ParamSink, ReplayReader, Report
from podzero.core.types import EnvSpec, Keys, ModelNetwork, Network, PackedBatch, Symmetry, Versioned
from podzero.learner.build import Training, make_training
from podzero.learner.checkpoints import LearnerCheckpoints
from podzero.learner.devices import DeviceClock, memory_metrics
from podzero.learner.hosts import Command, HostSync
from podzero.learner.metrics import LearnerMetrics, PolicyAges, chip_metrics
from podzero.learner.publishing import Prefetcher, Publisher
from podzero.learner.sharding import local_part
from podzero.learner.step import StepSums, TrainState, with_progress
from podzero.learner.trained_agents import read_warm_start, warm_started

log = logging.getLogger(__name__)

CHECKPOINT_TIMEOUT_S = 600.0
REMEMBERED_SAVES = 8
"""Ended saves that a learner can still be asked for."""
_POLL_S = 0.1
"""How often the loop, while it waits for replay, checks whether to stop, checkpoint or report."""


class _InFlight(NamedTuple):
    """A dispatch that the devices may still be executing."""

    sums: StepSums
    errors: Sequence[jax.Array]
    keys: Keys | None


class Learner:
    """Trains a network on batches from replay. `run` is the loop; any thread may call the other methods."""

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
        host_sync: HostSync | None = None,
        local_sink: ParamSink | None = None,
        training: Training | None = None,
    ) -> None:
        """Creates the train state, or restores it from the complete checkpoint in the folder `restore_from`.

        `symmetries` (without the identity) are used if `learner.augment` is set. `reader` reads this host's part of the
        batches, `[steps_per_dispatch, batch_size / hosts, ...]`. The acting parameters go to `sink` on host 0 (None on
        other hosts), and as device arrays to `local_sink` on every host. `host_sync` is the result of `join`; the other
        arguments must be equal on all hosts. `training` is what `make_training` gives, which is called by default.

        Raises:
          ConfigError, SnapshotError: as `make_training`; or `init_from` cannot be read, or does not fit the network.
          CheckpointMismatch, CheckpointDamaged: `restore_from` cannot be used.
        """
        self._config, self._stop_steps = experiment.learner, experiment.stop.steps
        self._steps = self._config.dispatch_steps()
        self._training = training or make_training(experiment, network, spec, symmetries)
        self._chip_metrics = chip_metrics(experiment, network, spec, symmetries, self._training.mesh)
        self.device_clock = DeviceClock(self._training.step, self._steps)
        """What the devices execute; an actor that uses them too tells it."""
        self._checkpoints = LearnerCheckpoints(self._training.mesh)
        self.state: TrainState = (
            self._started(experiment.init_from)
            if restore_from is None
            else self._training.with_teacher(self._checkpoints.restore(restore_from, self._training.like))
        )
        """The train state on the devices, which `run` replaces with every dispatch."""
        self.step = int(self.state.step)
        """The number of steps made, including those before a resumption."""
        self.progress = Progress(float(self.state.progress), self.step, experiment.stop.steps, self._steps)
        """The progress of the run. Only host 0's counts: its commands carry it to the others."""
        self._reader = reader
        self._prefetcher = Prefetcher(reader)
        self._publisher = Publisher(sink, self._training.mesh, local_sink)
        self._host_sync = host_sync
        self._leads = jax.process_index() == 0
        self._name = "learner" if self._leads else f"learner-{jax.process_index()}"
        self._report = report
        self._metrics = LearnerMetrics(self._config.batch_size, self.step)
        self._ages = PolicyAges()
        self._clock = StageClock()
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._ended = False
        self._published: int | None = None
        self._saves: dict[Path, Future[int]] = {}
        self._lock = threading.Lock()

    def _started(self, init_from: str | None) -> TrainState:
        """The state before the first step, with the parameters of `init_from` that fit."""
        state = self._training.init()
        if init_from is None:
            return state
        taken, summary = read_warm_start(init_from, state.params)
        if jax.process_index() == 0:
            log.info(summary)
        # The optimizer and the step stay as they are.
        return replace(state, params=warm_started(state.params, taken), ema=warm_started(state.ema, taken))

    def run(self) -> None:
        """Trains in whole dispatches until `stop` is called or `stop.steps` are reached, earlier runs included.

        Publishes the acting parameters before the first step, every `publish_every` steps, and at the end.
        """
        self._clock.flush()  # what came before the loop is not its time
        try:
            with self._prefetcher, jax.transfer_guard_host_to_device("disallow"):
                self._publish()
                batch: PackedBatch | None = None
                in_flight: _InFlight | None = None
                while True:
                    self._fail_or_report()
                    if batch is None:
                        with self._clock("wait_replay"):
                            batch = self._prefetcher.poll(_POLL_S)
                    with self._clock("wait_hosts"):
                        command = self._proposal(has_batch=batch is not None)
                        # A learner of one host has nobody to agree with.
                        if self._host_sync is not None:
                            command = self._host_sync.next(command, 0.0 if batch is None else _POLL_S)
                    match command:
                        case Command("step", progress=progress):
                            # A step is commanded only once every host has proposed it, with its part of the batch.
                            assert batch is not None
                            in_flight = self._dispatch(batch, progress, in_flight)
                            batch = None
                            # A multiple of `publish_every` lies among the steps of this dispatch.
                            if self.step % self._config.publish_every < self._steps:
                                self._publish()
                        case Command("save", folder):
                            self._save(Path(folder))
                        case Command("stop"):
                            break
                        case None:
                            pass  # some host has no batch yet
                self._complete(in_flight)
                self._publish()
        except BaseException as failure:
            self._end(failure)
            raise
        self._end(None)

    def stop(self) -> None:
        """Ends `run` after the current dispatch, on all hosts; call it on host 0. Returns at once."""
        self._stopping.set()

    def fail(self, failure: Exception) -> None:
        """Makes `run` raise `failure` on this host after the current dispatch; returns at once."""
        self._failure = failure

    def request_checkpoint(self, folder: Path) -> Future[int]:
        """Saves the state into `folder/learner` after the current dispatch.

        Call it on all hosts: each saves its shards. The future of the saved step resolves when they are complete.
        """
        with self._lock:
            future = self._saves.setdefault(folder, Future())
            ended = self._ended
            # Ended saves are forgotten, but not the newest: this host may have made one before it was asked here.
            for old in [old for old, save in self._saves.items() if save.done()][:-REMEMBERED_SAVES]:
                del self._saves[old]
        if ended and _waiting(future):
            self._save(folder)
        return future

    def acting_params(self) -> Versioned | None:
        """The newest parameters that were published or about to be, as host arrays; None before the first."""
        return self._publisher.newest

    def close(self) -> None:
        """Ends the background threads; call it after `run` has returned."""
        self._publisher.close()
        self._checkpoints.close()
        self.device_clock.close()

    def _fail_or_report(self) -> None:
        """Raises the failure that `fail` was given, and reports when it is time."""
        if self._failure is not None:
            raise self._failure
        if self._clock.elapsed_s >= REPORT_EVERY_S:
            self._report_metrics()

    def _proposal(self, has_batch: bool) -> Command | None:
        """What this host proposes to do next; only host 0 proposes to save or stop."""
        if self._leads:
            with self._lock:
                requested = self._requested_saves()
            if requested:
                return Command("save", str(requested[0]))
            if self._stopping.is_set() or (self._stop_steps is not None and self.step >= self._stop_steps):
                return Command("stop")
        return Command("step", progress=self.progress.at(self.step)) if has_batch else None

    def _requested_saves(self) -> list[Path]:
        """The folders of saves that have not started; call it with the lock held."""
        return [folder for folder, future in self._saves.items() if _waiting(future)]

    def _dispatch(self, host_batch: PackedBatch, progress: float, in_flight: _InFlight | None) -> _InFlight:
        """Starts the next dispatch, then waits for the one before it."""
        with self._clock("host_to_device"):
            # The keys of replay items stay on the host.
            batch = self._training.put(host_batch._replace(keys=None))
        # The first call returns once the step is compiled.
        with self._clock("step" if in_flight else "compile"):
            self.state, sums, errors = self.device_clock(with_progress(self.state, progress), batch)
        with self._clock("step"):
            self._ages.add(self.step, self._training.packing.versions(np.asarray(host_batch.rows)))
            # The device has the next dispatch queued while the loop waits for this one.
            self._complete(in_flight)
        self.step += self._steps
        return _InFlight(sums, errors, host_batch.keys)

    def _complete(self, dispatch: _InFlight | None) -> None:
        """Waits for a dispatch, adds up its metrics and updates priorities."""
        if dispatch is None:
            return
        self._metrics.add(dispatch.sums)
        if dispatch.keys is not None:
            with self._clock("update_priorities"):
                errors = np.concatenate([local_part(errors) for errors in dispatch.errors])
                self._reader.update_priorities(dispatch.keys, errors)

    def _publish(self) -> None:
        """Publishes the averaged weights, in the background of the next dispatches."""
        if self.step != self._published:
            with self._clock("publish"):
                self._publisher.publish(self.step, self.state.ema)
            self._published = self.step

    def _save(self, folder: Path) -> None:
        """Starts to save; the future of `folder` resolves when the files are complete."""
        step = self.step
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
                self._checkpoints.save(folder, self.state).add_done_callback(resolve)
        except Exception as error:
            # Training continues; the future reports the error.
            future.set_exception(error)

    def _report_metrics(self) -> None:
        """Reports this host's time and memory; host 0 also reports the metrics of training."""
        metrics = self._clock.flush() | self._ages.flush() | memory_metrics(jax.local_devices())
        if self._leads:
            metrics |= self._metrics.flush(self.step) | self._publisher.flush()
            metrics["learner/publish_steps"] = float(max(self._config.publish_every, self._steps))
            metrics |= self._chip_metrics(metrics["learner/samples_per_s"]) | self.device_clock.flush()
        self._report(self._name, metrics)

    def _end(self, failure: BaseException | None) -> None:
        """Executes or fails requested saves, reports, and waits for the background threads."""
        with self._lock:
            # From here on `request_checkpoint` starts the save itself.
            self._ended = True
            requested = self._requested_saves()
        for folder in requested:
            if failure is None:
                self._save(folder)
            else:
                self._saves[folder].set_exception(failure)
        self._report_metrics()
        if failure is None:
            # Only wait: errors of saves are raised where their futures are read.
            saves = list(self._saves.values())
            if wait(saves, CHECKPOINT_TIMEOUT_S).not_done:
                raise TimeoutError(f"the learner's checkpoint was not written within {CHECKPOINT_TIMEOUT_S:g} s")
            self._publisher.finish()


def _waiting(future: Future[int]) -> bool:
    """Whether a requested save has not started."""
    return not future.running() and not future.done()
