"""Google's machines: TPU slices and their hosts, and the number of CPU machines for an experiment.

The figures are those of https://docs.cloud.google.com/tpu/docs (v4, v5e, v5p, v6e, tpu7x, runtimes) and of
https://docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, read in November 2026.
"""

from __future__ import annotations

import math
import os
from typing import NamedTuple

from podzero.config import Experiment
from podzero.core.chips import Slice
from podzero.core.errors import ConfigError
from podzero.runtime.program import reserved_cpus


class Generation(NamedTuple):
    """Google's names for a TPU generation, and the size of its machines with four chips."""

    accelerator: str
    """The first part of an accelerator type, for example `v5litepod` in `v5litepod-16`."""
    runtime: str | None
    """The runtime version of its TPU VMs for JAX; None if the TPU API does not have the generation."""
    gke: str
    """The value of the node label `cloud.google.com/gke-tpu-accelerator`."""
    machine: str
    """The first part of its machine types on GKE, before the number of chips."""
    cpus: int
    memory_gib: int


GENERATIONS = {
    "v4": Generation("v4", "tpu-ubuntu2204-base", "tpu-v4-podslice", "ct4p-hightpu", 240, 379),
    "v5e": Generation("v5litepod", "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice", "ct5lp-hightpu", 112, 178),
    "v5p": Generation("v5p", "v2-alpha-tpuv5", "tpu-v5p-slice", "ct5p-hightpu", 208, 417),
    "v6e": Generation("v6e", "v2-alpha-tpuv6e", "tpu-v6e-slice", "ct6e-standard", 180, 670),
    "tpu7x": Generation("tpu7x", None, "tpu7x", "tpu7x-standard", 224, 894),
}

_OTHER_HOSTS = {("v5e", 1): (24, 44), ("v5e", 8): (224, 357), ("v6e", 1): (44, 163), ("v6e", 8): (180, 1341)}
"""CPUs and GiB of machines with one and eight chips, by generation and number of chips."""

ACTOR_GIB = 3.0
"""Memory of an actor or reanalyser: JAX, games and search trees."""
SHARD_GIB = 2.0
"""Memory of a replay server without samples."""
SAMPLE_OVERHEAD = 1.3
"""Ratio of a sample's memory in Reverb to its bytes; Reverb keeps a chunk until no item refers to it."""
LOGS_GIB = 4
"""Disk for Ray's logs, five files of 100 MB per process."""
MOST_DISK_GIB = 10
"""Most disk that a pod may request on Autopilot."""
WORKER_GIB_PER_CPU = 4
"""Memory per CPU of Google's `standard` machine types."""


class TpuHosts(NamedTuple):
    """The machines of a slice, or of several of a kind."""

    generation: Generation
    slice: Slice
    number: int
    """Number of hosts of each slice, each with these `chips`, `cpus` and `memory_gib`."""
    chips: int
    cpus: int
    memory_gib: int
    slices: int = 1

    @property
    def accelerator_type(self) -> str:
        """The slice's type in Google's TPU API, for example `v5litepod-16`."""
        return f"{self.generation.accelerator}-{self.slice.short_name.rpartition('-')[2]}"

    @property
    def runtime(self) -> str:
        """The runtime version of the slice's TPU VMs."""
        if self.generation.runtime is None:
            raise ConfigError(
                f"Google's TPU API has no {self.slice.chip.name} (cluster.slice={self.slice.short_name}); "
                "GKE has it: `podzero launch gke`"
            )
        return self.generation.runtime

    @property
    def words(self) -> str:
        """A description for people."""
        hosts = "1 host" if self.number == 1 else f"{self.number} hosts"
        kind = self.accelerator_type if self.slices == 1 else f"{self.slices} x {self.accelerator_type}"
        return f"{kind}: {hosts} with {self.chips} chips, {self.cpus} CPUs, {self.memory_gib} GiB each"


class Pool(NamedTuple):
    """CPU machines of one size, for actors and replay."""

    workers: int
    cpus: int
    """CPUs of each worker."""
    least: int
    """How many are enough for `actors.min_count` actors."""

    @property
    def memory_gib(self) -> int:
        """GiB of each worker."""
        return WORKER_GIB_PER_CPU * self.cpus


def tpu_hosts(experiment: Experiment) -> TpuHosts:
    """The machines of the slice on which `experiment` trains."""
    wanted = experiment.cluster.tpu
    if wanted is None:
        raise ConfigError(
            f"{experiment.name} sets no TPU slice: set cluster.slice, for example cluster.slice=v5e-16; "
            "`podzero compile` says whether the experiment fits on it"
        )
    generation = GENERATIONS[wanted.chip.name]
    chips = wanted.chips_of_host
    size = _OTHER_HOSTS.get((wanted.chip.name, chips), (generation.cpus, generation.memory_gib))
    return TpuHosts(generation, wanted, wanted.hosts, chips, *size, slices=experiment.cluster.slices)


def cpu_pool(experiment: Experiment, cpus: int) -> Pool:
    """The workers of `cpus` CPUs each that actors, reanalysers, evaluator and replay need."""
    actors = experiment.actors
    per_worker = int(cpus // actors.cpus)
    if per_worker < 1:
        raise ConfigError(
            f"an actor asks for {actors.cpus:g} CPUs (actors.cpus), a worker has {cpus}: "
            "raise --worker-cpus or lower actors.cpus"
        )
    # Count everything in units of actors' CPUs, since processes cannot be divided between workers.
    playing = experiment.actor_processes
    others = sum(reserved_cpus(experiment)) - playing * actors.cpus
    processes = playing + math.ceil(others / actors.cpus)
    by_cpus = math.ceil(processes / per_worker)
    by_memory = math.ceil(memory_gib(experiment) / (WORKER_GIB_PER_CPU * cpus))
    workers = max(by_cpus, by_memory, 1)  # the evaluator reserves nothing, but needs a machine
    return Pool(workers, cpus, max(1, workers - (playing - experiment.first_actors) // per_worker))


def memory_gib(experiment: Experiment) -> float:
    """GiB of memory for all actors, reanalysers and replay servers together."""
    if not experiment.has_self_play:
        return 0.0
    replay = experiment.replay
    samples = replay.capacity * sample_bytes(experiment) * SAMPLE_OVERHEAD / 2**30
    processes = experiment.actor_processes + experiment.reanalyse.processes
    return samples + replay.shards * SHARD_GIB + processes * ACTOR_GIB


def disk_gib(experiment: Experiment) -> int:
    """GiB of disk that a machine needs, at most what Autopilot allows."""
    # Ray's logs, and a replay shard while it is saved or restored.
    shard = experiment.replay.capacity * sample_bytes(experiment) / experiment.replay.shards / 2**30
    return min(LOGS_GIB + math.ceil(shard), MOST_DISK_GIB)


def sample_bytes(experiment: Experiment) -> float:
    """Bytes per sample of a full replay, over all tables; imports JAX for the environment's shapes."""
    # Looking for devices other than the CPU takes seconds, and only shapes are needed.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from podzero.envs import spec_of
    from podzero.replay import tables_of

    tables = tables_of(experiment, spec_of(experiment.env)).values()
    held = sum(table.settings.capacity * table.signature.row_bytes for table in tables)
    return held * experiment.replay.shards / experiment.replay.capacity
