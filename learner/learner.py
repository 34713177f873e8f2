"""The learner: replay in, parameters out."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import jax

from podzero.clock import StageClock
from podzero.config import Experiment
from podzero.learner.checkpoints import LearnerCheckpoints
from podzero.learner.feeding import Feed
from podzero.learner.figures import Figures
from podzero.learner.publishing import Publisher
from podzero.learner.state import TrainState
from podzero.learner.step import StepSums
from podzero.learner.training import make_training
from podzero.protocols import ParamSink, ReplayReader, Report
from podzero.types import EnvSpec, Network, Sample, Symmetry, Versioned

ROLE = "learner"
REPORT_EVERY_S = 2.0
CHECKPOINT_TIMEOUT_S = 600.0
_LOOK_UP_S = 0.1
"""While it waits for replay the loop looks up this often for requests to stop, checkpoint or report."""


class Learner:
    """Trains one network on what replay holds; `run` is the loop, everything else may be called from any thread."""

    def __init__(
        self,
        experiment: Experiment,
        network: Network,
        spec: EnvSpec,
        symmetries: Sequence[Symmetry],
        *,
        reader: ReplayReader,
        sink: ParamSink,
        report: Report,
        restore_from: Path | None = None,
    ) -> None:
        """Builds the state, or restores it from `restore_from`, the folder of a step.

        Args:
          experiment: what to train and how.
          network: the network of the experiment.
          spec: the game's shapes.
          symmetries: the game's symmetries besides the identity, used when `learner.augment` says so.
          reader: gives batches `[steps_per_dispatch, batch_size, ...]`.
          sink: where acting parameters go.
          report: where figures go.
          restore_from: the folder of a complete checkpoint.

        Raises:
          ConfigError: the devices or the batch do not fit the mesh.
          CheckpointMismatch, CheckpointDamaged: `restore_from` cannot be used.
        """
        config = experiment.learner
        self._stop_steps = experiment.stop.steps
        self._steps_per_dispatch = config.steps_per_dispatch
        self._publish_every = config.publish_every
        self._training = make_training(experiment, network, spec, symmetries)
        self._checkpoints = LearnerCheckpoints()
        self._state: TrainState = (
            self._training.init()
            if restore_from is None
            else self._checkpoints.restore(restore_from, self._training.like)
        )
        self._step = int(self._state.step)
        self._feed = Feed(reader)
        self._publisher = Publisher(sink)
        self._report = report
        self._figures = Figures(config.batch_size)
        self._clock = StageClock()
        self._stopping = threading.Event()
        self._ended = False
        self._published: int | None = None
        self._requests: queue.SimpleQueue[tuple[Callable[[int], Path], Future[int]]] = queue.SimpleQueue()
        self._reported = time.perf_counter()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Trains until `stop.steps` steps are done (counted over resumes, rounded up to whole dispatches) or `stop`.

        Acting parameters are published at once, then every `publish_every` steps, and when training ends.
        """
        try:
            with self._feed, jax.transfer_guard_host_to_device("disallow"):
                self._publish()
                unsettled: StepSums | None = None
                while not self._done():
                    host = self._next_batch()
                    if host is None:
                        break
                    with self._clock("host_to_device"):
                        batch = self._training.put(host)
                    with self._clock("step"):
                        self._state, sums = self._training.step(self._state, batch)
                        # With this dispatch queued, waiting for the one before it leaves no gap on the device.
                        self._settle(unsettled)
                    unsettled = sums
                    self._step += self._steps_per_dispatch
                    if self._step % self._publish_every < self._steps_per_dispatch:
                        self._publish()
                    self._serve()
                self._settle(unsettled)
                self._publish()
        finally:
            self._end()

    def stop(self) -> None:
        """Asks `run` to end after the dispatch under way; returns at once."""
        self._stopping.set()

    def request_checkpoint(self, step_dir: Callable[[int], Path]) -> Future[int]:
        """Asks for the state of the next dispatch boundary to be saved.

        Args:
          step_dir: the folder of a step; the files go into its `learner/`.

        Returns:
          a future of the step that was saved, resolved when its files are complete.
        """
        future: Future[int] = Future()
        with self._lock:
            if not self._ended:
                self._requests.put((step_dir, future))
                return future
        self._save(step_dir, future)
        return future

    def acting_params(self) -> Versioned | None:
        """The parameters published last, as host arrays; None before the first publication."""
        return self._publisher.newest

    def close(self) -> None:
        """Ends the threads of publication and checkpoints, after `run` has returned."""
        self._publisher.close()
        self._checkpoints.close()

    def _done(self) -> bool:
        return self._stopping.is_set() or (self._stop_steps is not None and self._step >= self._stop_steps)

    def _next_batch(self) -> Sample | None:
        """The next host batch, serving requests while there is none; None when told to stop first."""
        while not self._stopping.is_set():
            with self._clock("wait_replay"):
                batch = self._feed.poll(_LOOK_UP_S)
            if batch is not None:
                return batch
            self._serve()
        return None

    def _settle(self, sums: StepSums | None) -> None:
        if sums is not None:
            self._figures.add(sums)

    def _publish(self) -> None:
        """Publishes the averaged weights; the transfer and the sink run beside the next dispatch."""
        if self._step != self._published:
            with self._clock("publish"):
                self._publisher.publish(self._step, self._state.ema)
            self._published = self._step

    def _serve(self) -> None:
        """Answers requests for checkpoints, and reports when it is time."""
        while not self._requests.empty():
            self._save(*self._requests.get())
        if time.perf_counter() - self._reported >= REPORT_EVERY_S:
            self._report_figures()

    def _save(self, step_dir: Callable[[int], Path], future: Future[int]) -> None:
        step = self._step

        def resolve(saved: Future[None]) -> None:
            error = saved.exception()
            if error is None:
                future.set_result(step)
            else:
                future.set_exception(error)

        try:
            with self._clock("checkpoint"):
                self._checkpoints.save(step_dir(step), self._state).add_done_callback(resolve)
        except Exception as error:  # whoever asked shall hear it; training goes on
            future.set_exception(error)

    def _report_figures(self) -> None:
        self._report(ROLE, self._figures.flush(self._step) | self._clock.flush())
        self._reported = time.perf_counter()

    def _end(self) -> None:
        """Answers what is still asked for, also after a failure, and waits for what is under way."""
        with self._lock:
            self._ended = True
        self._serve()
        self._report_figures()
        self._checkpoints.wait(CHECKPOINT_TIMEOUT_S)
        self._publisher.wait()
