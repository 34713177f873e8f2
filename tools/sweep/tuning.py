"""Trains the runs of a sweep by Ray Tune, which places them, retries those that fail, stops the weaker ones early."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import cloudpickle, tune
from ray.tune.schedulers import ASHAScheduler

from podzero.config import Experiment
from podzero.core.errors import ClusterError
from podzero.runtime.cluster.ray_cluster import Cluster, connect
from podzero.runtime.cluster.remote import current_node_id
from podzero.runtime.program import program
from podzero.runtime.stopping import StopSignals
from podzero.tools.sweep.folder import SweepFolder, SweepRun
from podzero.tools.sweep.trial import ENDED, PROGRAM, STOP_FILE, STRENGTH, RunTrial, SecretsKeeper

RETRIES = 2
"""How often a run that fails is started again."""
REDUCTION = 3
"""One of so many runs goes on at each rung of ASHA."""
RUNGS = 2
"""Rungs before the end of a run: at 1/9 and 1/3 of its limit."""
_TUNE_FOLDER = ".tune"
"""The folder for Ray Tune's own files, which no resumption needs."""
_SETTINGS = {
    # Otherwise verbose=0 still prints a table of Tune's own.
    "RAY_AIR_NEW_OUTPUT": "0",
    # The status files of the runs have more than Tune's logs, and Ctrl-C is handled here.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Failures are told in one line.
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    # Before its first evaluation a run reports no strength.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # By default trials have a lower priority than their driver, and runs would start with it.
    "RAY_worker_niceness": "0",
    # With one run for each node, waiting for room is normal.
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1e9",
}


class _Watcher(tune.Callback, tune.Stopper):  # type: ignore[misc]
    """Says what happens; after a signal it ends the runs in order and keeps Tune from starting those that are left."""

    def __init__(
        self, folder: SweepFolder, runs: Sequence[SweepRun], signals: StopSignals, say: Callable[[str], None]
    ) -> None:
        self._folder, self._signals, self._say = folder, signals, say
        self._runs = {run.name: run for run in runs}
        self._training: set[str] = set()
        self.given_up: dict[str, str] = {}
        """The last error of each run that was given up, by name."""

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles it for a restoration of its own, which is never asked for.
        return {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._signals.event.is_set() and not self._training

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        stop_file = self._folder.root / STOP_FILE
        if self._signals.event.is_set() and not stop_file.exists():
            stop_file.touch()
            self._say(f"stopping: {len(self._training)} runs write their last checkpoints")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name = _name(trial)
        state, status = self._folder.progress(self._runs[name])
        # Of the others, ASHA only learns what they have reached.
        if state == "unfinished" and not self._signals.event.is_set():
            self._training.add(name)
            self._say(f"{name}: {'starts' if status is None else 'resumes'}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name = _name(trial)
        if name not in self._training:
            return
        self._training.discard(name)
        if not trial.last_result.get(ENDED) and not self._signals.event.is_set():
            self._folder.mark_stopped(self._runs[name])
            self._say(f"{name}: stopped early, since others are better")
        else:
            ended = self._folder.progress(self._runs[name]).state == "finished"
            self._say(f"{name}: {'finished' if ended else 'ended before its limit'}")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._training.discard(_name(trial))
        self._say(f"{_name(trial)}: failed, and is tried again: {_error(trial)}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._training.discard(_name(trial))
        self.given_up[_name(trial)] = _error(trial)
        self._say(f"{_name(trial)}: failed {RETRIES + 1} times and is given up: {self.given_up[_name(trial)]}")


def _name(trial: Any) -> str:
    return str(trial.config["run"]["name"])


def _error(trial: Any) -> str:
    """The message of the newest error of a trial, without Ray's traceback."""
    # `trial.get_error` reads a copy of this file, which Tune makes later.
    error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    cause = getattr(error, "cause", None) or error
    text = str(cause).strip() or type(cause).__name__
    # An error that nobody foresaw: its traceback is in the run's log too.
    return text.splitlines()[-1] if text.startswith("Traceback") else text


def train_runs(
    folder: SweepFolder,
    config: str,
    runs: Sequence[SweepRun],
    parallel: int | None,
    address: str | None,
    asha: bool,
    signals: StopSignals,
    say: Callable[[str], None],
    secrets: Mapping[str, str],
) -> dict[str, str]:
    """Trains the runs; returns when all have ended, or when a signal has ended them with a last checkpoint.

    Runs that have finished only tell ASHA how good they are. `config` is as `absolute_config` returns it. The machines
    are those of the Ray cluster at `address`, or this one. Without `parallel` as many runs train at the same time as
    there are CPUs for. All processes of the runs get the environment variables `secrets`. `say` is told what happens.

    Returns:
      the last error of each run that was given up, by name.
    """
    cpus = max(sum(kind.count * kind.cpus for kind in program(run.experiment)) for run in runs)
    if address is None and parallel is None:
        parallel = max(1, int((os.cpu_count() or 1) // cpus))
    with _tune_files(folder.root) as files, connect(address, cpus * (parallel or 1)) as cluster:
        watcher = _Watcher(folder, runs, signals, say)
        tuner = tune.Tuner(
            tune.with_resources(_trainable(cluster, secrets), _resources(cluster, cpus)),
            param_space={"run": tune.grid_search([_trial(folder, config, run, secrets) for run in runs])},
            tune_config=tune.TuneConfig(
                max_concurrent_trials=parallel,
                scheduler=_asha([run.experiment for run in runs]) if asha else None,
                trial_name_creator=_name,
                trial_dirname_creator=_name,
                **({"metric": STRENGTH, "mode": "max"} if asha else {}),
            ),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=str(files),
                # A trial has no state of its own.
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                failure_config=tune.FailureConfig(max_failures=RETRIES),
                stop=watcher,
                callbacks=[watcher],
                verbose=0,
            ),
        )
        tuner.fit()
    return watcher.given_up


@contextmanager
def _tune_files(root: Path) -> Iterator[Path]:
    """The folder for Tune's files while the context lasts, with Tune's settings in the environment."""
    files = root / _TUNE_FOLDER
    shutil.rmtree(files, ignore_errors=True)
    (root / STOP_FILE).unlink(missing_ok=True)
    os.environ.update(_SETTINGS)
    # It warns that its logs, which are switched off, are missing.
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    try:
        yield files
    finally:
        shutil.rmtree(files, ignore_errors=True)
        (root / STOP_FILE).unlink(missing_ok=True)


def _trainable(cluster: Cluster, secrets: Mapping[str, str]) -> Any:
    """The class of the trials, which ask a process on this node for the values of `secrets`, if there are any."""
    if not secrets:
        return RunTrial
    home = next(node for node in cluster.nodes() if node.id == current_node_id())
    keeper = cluster.spawn(SecretsKeeper, "keeper of secrets", secrets, cpus=0, environment={}, node=home)
    return tune.with_parameters(RunTrial, keeper=keeper)


def _trial(folder: SweepFolder, config: str, run: SweepRun, names: Iterable[str]) -> dict[str, Any]:
    """The settings of a trial, which Tune writes to files: of the environment variables, they have `names` alone."""
    workdir = folder.workdir(run)
    options = [f"--env={name}" for name in names]
    return {
        "name": run.name,
        "workdir": str(workdir.root),
        "program": list(PROGRAM),
        "arguments": [config, *run.overrides, *options, "--workdir", str(workdir.root), "--view", "plain"],
        "stopped_early": folder.progress(run).state == "stopped early",
        "limits": run.experiment.stop.model_dump(),
        # Paths in settings are relative to it.
        "folder": str(Path.cwd()),
    }


def _resources(cluster: Cluster, cpus: float) -> dict[str, float]:
    """What a run reserves on its node: its CPUs, and all accelerators of a node of a joined cluster."""
    if not cluster.joined:
        return {"cpu": cpus}
    nodes = cluster.nodes()
    if not any(node.cpus >= cpus for node in nodes):
        most = max((node.cpus for node in nodes), default=0.0)
        raise ClusterError(
            f"a run of this sweep uses {cpus:g} CPUs, and trains on one machine; the largest free node of the cluster "
            f"has {most:g}. Lower actors.count or actors.cpus, or add nodes"
        )
    # Tune writes CPU and GPU in small letters.
    accelerators = {"gpu": "GPU", "TPU": "TPU"}
    owned = {key: max(node.resources.get(name, 0.0) for node in nodes) for key, name in accelerators.items()}
    return {"cpu": cpus} | {key: count for key, count in owned.items() if count}


def _asha(experiments: Iterable[Experiment]) -> ASHAScheduler:
    stops = [experiment.stop for experiment in experiments]
    measure = next(name for name in ("minutes", "steps", "games") if any(getattr(stop, name) for stop in stops))
    most = max(getattr(stop, measure) or 0 for stop in stops)
    return ASHAScheduler(
        time_attr=measure,
        max_t=most,
        grace_period=most / REDUCTION**RUNGS,
        reduction_factor=REDUCTION,
        # A run that reaches its limit ends by itself, with a checkpoint.
        stop_last_trials=False,
    )
