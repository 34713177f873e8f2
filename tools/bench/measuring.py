"""What the benches share: rates measured in turn, child processes, and inputs."""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import jax
import numpy as np

from podzero.config import Experiment
from podzero.config.acting import ReanalyseConfig
from podzero.config.samples import sample_like
from podzero.core.errors import ConfigError, PodzeroError
from podzero.core.types import Array, EnvSpec, PackedBatch, Sample, Window
from podzero.envs import holds_states, make_env, pack_states, sample_packing
from podzero.inference.agreement import random_states
from podzero.replay import ShardedWriter

log = logging.getLogger(__name__)

Side = Callable[[float], float]
"""Measures for about the given seconds, finishes the call in progress, and returns a rate."""


def compare(
    sides: Mapping[str, Side], unit: str, ratio_of: str, seconds: float, *, longest_s: float, rounds: int
) -> dict[str, Any]:
    """Measures all sides in turn, in rounds, so that changes of the machine's speed affect all of them alike.

    Args:
      sides: what is measured, by name, already compiled. The first is compared with the others.
      unit: the unit of the rates.
      ratio_of: what is divided by what, in words.
      seconds: how long to measure: until the round whose end is expected nearest to it, and at least one round.
      longest_s: the longest turn of a side.
      rounds: turns are shortened until this number of rounds fits.

    Returns:
      `ratio`, the median over rounds of the first side's rate over the second's, and `ratio_to_NAME` for each other
      side; `ratio_of`; for each side `NAME_UNIT`, the median rate, and `NAME_rounds`, all rates.
    """
    log.info("measuring %s in turn for %g s, and until the round ends", ", ".join(sides), seconds)
    turn_s = min(longest_s, seconds / (rounds * len(sides)))
    rates: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    first, second, *others = names
    began, measured, round_s = time.perf_counter(), 0.0, 0.0
    while measured + round_s / 2 < seconds:
        # In alternating order, so that a steady change of the machine's speed favours no side.
        names.reverse()
        for name in names:
            rates[name].append(sides[name](turn_s))
        measured = time.perf_counter() - began
        round_s = measured / len(rates[first])
    return {
        "ratio": median(ratios(rates[first], rates[second])),
        **{f"ratio_to_{name}": median(ratios(rates[first], rates[name])) for name in others},
        "ratio_of": ratio_of,
        **{f"{name}_{unit}": median(rates[name]) for name in sides},
        **{f"{name}_rounds": rates[name] for name in sides},
    }


def ratios(rates: Sequence[float], limits: Sequence[float]) -> list[float]:
    """The ratio of each round's two rates."""
    return [rate / limit for rate, limit in zip(rates, limits, strict=True)]


def calls_per_s(call: Callable[[], object], seconds: float, finish: Callable[[], None] = lambda: None) -> float:
    """Calls `call` repeatedly for at least `seconds`, and then `finish`; returns the number of calls per second."""
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        call()
        calls += 1
    finish()
    return calls / (time.perf_counter() - start)


# Child processes, which answer requests through pipes.

START_S = 180.0
"""The longest wait for a process to start: it may compile."""
STOP_S = 30.0
"""The longest wait for a process to end before it is killed."""


class BenchError(PodzeroError):
    """A process of a bench ended or did not answer in time."""


class ChildProcess:
    """The parent's end of the pipe to a child process."""

    def __init__(self, name: str, pipe: Connection) -> None:
        self._name = name
        self._pipe = pipe

    def receive(self, timeout_s: float = START_S) -> Any:
        """The next object from the child."""
        if not self._pipe.poll(timeout_s):
            raise BenchError(
                f"the process {self._name} has not answered for {timeout_s:g} s: measure a smaller experiment, or on a "
                "machine without other work"
            )
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None

    def send(self, *request: Any) -> None:
        """Sends the arguments of a request; see `answer`."""
        try:
            self._pipe.send(request)
        except OSError:
            raise self._ended() from None

    def ask(self, *request: Any, timeout_s: float = START_S) -> Any:
        """Sends a request and returns the answer; raises the errors of `send` and `receive`."""
        self.send(*request)
        return self.receive(timeout_s)

    def close(self) -> None:
        """Lets the child end after its current request; returns at once."""
        self._pipe.close()

    def _ended(self) -> BenchError:
        return BenchError(f"the process {self._name} has ended; what it printed above says why")


def answer(parent: Connection, handle: Callable[..., Any]) -> None:
    """In the child: answers each request with `handle(*request)` until the parent closes its end or dies."""
    while True:
        try:
            request = parent.recv()
        except (EOFError, OSError):
            return
        found = handle(*request)
        try:
            parent.send(found)
        except OSError:
            return


@contextmanager
def child_process(
    serve: Callable[..., None], *arguments: Any, environment: Mapping[str, str] | None = None
) -> Iterator[ChildProcess]:
    """Runs `serve(*arguments, parent)` in a new process while the context lasts.

    Args:
      serve: a module-level function; it must return when `parent`, its pipe to this process, is closed.
      arguments: the other arguments of `serve`.
      environment: variables to set or change in the new process.
    """
    # Not a fork, which would copy the locks of JAX's threads, but not the threads.
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(*arguments, there), name=f"bench-{serve.__name__.strip('_')}")
    log.info("starting the process %s; it has %g s to import its libraries and to compile", process.name, START_S)
    # `multiprocessing` has no argument for the environment of a child, which inherits this one.
    with mock.patch.dict(os.environ, environment or {}):
        process.start()
    # While this copy of the child's end is open, the pipe does not end with the child.
    there.close()
    child = ChildProcess(process.name, here)
    try:
        yield child
    finally:
        child.close()
        process.join(STOP_S)
        if process.is_alive():
            process.kill()
            process.join(STOP_S)


# Chips that are not there.


class DeviceQueue:
    """The programs of a stand-in for a device, which executes one after the other. Thread-safe."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> float:
        """Adds a program that takes `seconds`; returns when it ends, as `time.perf_counter` tells time."""
        with self._lock:
            self._free_at = max(self._free_at, time.perf_counter()) + seconds
            return self._free_at


def compiled(experiment: Experiment, topology: str, program: str) -> dict[str, Any]:
    """What `podzero compile` says of a program of the experiment on a TPU slice; it has an estimate of the time."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "experiment.yaml"
        config.write_text(experiment.to_yaml(), encoding="utf-8")
        # In a process of its own, since the compiler must start before JAX computes anything.
        start = (sys.executable, "-P", "-c", "from podzero.launch.cli import main; main()", "compile", str(config))
        command = (*start, "--topology", topology, "--program", program, "--json")
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_COMPILE_S, check=False)
    try:
        report = json.loads(done.stdout.splitlines()[-1])
        found: dict[str, Any] = next(each for each in report["programs"] if each["name"] == program)
        float(found["estimated_seconds"])
    except (TypeError, ValueError, KeyError, IndexError, StopIteration):  # TypeError: the compiler has no estimate
        raise ConfigError(f"`podzero compile` failed: {done.stderr.strip() or done.stdout.strip()}") from None
    return found


_COMPILE_S = 1800.0
"""The longest time of a compilation for a TPU."""


# Inputs.

_GAMES = 256
"""Random games, of which random samples hold the states."""


def random_samples(experiment: Experiment, spec: EnvSpec, count: int) -> Sample | Window:
    """Samples `[count, ...]` with the experiment's shapes and dtypes: random observations and floats, else zeros.

    Where replay holds states, they are those of random games.
    """
    random = np.random.default_rng(0)

    def filled(leaf: Array) -> Array:
        shape = (count, *leaf.shape)
        return random.random(shape, np.float32) if leaf.dtype == np.float32 else np.zeros(shape, leaf.dtype)

    like = sample_like(experiment, spec)
    samples: Sample | Window = jax.tree.map(filled, like)
    observation = (random.random((count, *like.observation.shape)) < 0.3).astype(like.observation.dtype)

    def policies(*shape: int) -> Array:
        """Random policies `[*shape]`, which sum to 1 over the last axis as replay demands."""
        return random.dirichlet(np.ones(shape[-1]), shape[:-1]).astype(np.float32)

    if isinstance(samples, Window):  # without the end of an episode
        length = np.full(count, samples.reward.shape[1], np.int32)
        return samples._replace(observation=observation, policy=policies(*samples.policy.shape), length=length)
    samples = samples._replace(observation=observation, legal=np.ones_like(samples.legal))
    if holds_states(experiment, spec):
        env = make_env(experiment.env)
        # Of random games, since the states of new ones are alike, which compresses well.
        states = jax.jit(lambda: random_states(env, jax.random.key(0), _GAMES))()
        found = jax.device_get(jax.jit(lambda states: (jax.vmap(env.view)(states).legal, pack_states(states)))(states))
        legal, state = (np.resize(field, (count, *field.shape[1:])) for field in found)
        samples = samples._replace(legal=legal, state=state)
    policy = policies(*samples.policy_target.shape) * samples.legal
    return samples._replace(policy_target=policy / policy.sum(axis=1, keepdims=True))


def random_batch(experiment: Experiment, spec: EnvSpec) -> PackedBatch:
    """The host batch `[K, B, ...]` of one dispatch, of random samples."""
    leading = (experiment.learner.dispatch_steps(), experiment.learner.batch_size)
    packing = sample_packing(experiment, spec)
    rows = packing.pack(random_samples(experiment, spec, leading[0] * leading[1]))
    return PackedBatch(rows.reshape(*leading, packing.row_bytes))


def fill(experiment: Experiment, spec: EnvSpec, address: str) -> Sample | Window:
    """Writes `replay.min_size` random samples, or a little more, to the server at an address; returns them."""
    samples_per_item = experiment.replay.samples_per_item
    count = samples_per_item * math.ceil(experiment.replay.min_size / samples_per_item)
    samples = random_samples(experiment, spec, count)
    with closing(ShardedWriter(lambda: [address], spec, experiment)) as writer:
        writer.write(samples)
        writer.flush()
    return samples


def without_insert_limit(experiment: Experiment, shards: int = 1) -> Experiment:
    """The experiment with a limiter that never blocks inserts, because the table never reaches `replay.min_size`."""
    limits = {"capacity": 20_000_000, "min_size": 20_000_000, "samples_per_insert": 1.0}
    return with_replay(experiment, shards=shards, tolerance=None, port=0, **limits)


def without_sample_limit(experiment: Experiment) -> Experiment:
    """The experiment with a limiter that never blocks samples, because it allows a billion of them for each insert."""
    ratio = 1e9
    tolerance = ratio * experiment.replay.min_size / 2
    return with_replay(experiment, shards=1, tolerance=tolerance, port=0, samples_per_insert=ratio)


def with_replay(experiment: Experiment, **changes: Any) -> Experiment:
    """The experiment with `changes` in its section `replay`, and without reanalyse."""
    changed = {"replay": experiment.replay.model_copy(update=changes), "reanalyse": ReanalyseConfig()}
    return experiment.model_copy(update=changed)
