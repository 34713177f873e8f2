"""What `compile_table.py` compiles, and its stored results, each with a digest of its inputs: nothing is done twice."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from podzero.config import (
    FOR_SLICES,
    MuZeroResNetConfig,
    NestedConfig,
    OwnModelConfig,
    OwnNetworkConfig,
    ResNetConfig,
    builtin_configs,
    load,
    read_layers,
)
from podzero.core.chips import find_slice
from podzero.tools.compile.programs import names_of

SLICES = ("v4-16", "v5e-16", "v5e-256", "v5p-16", "v6e-16", "tpu7x-16")
SCALING = ("v5e-4", "v5e-256")
"""The slices between which scaling is measured."""
PER_CHIP = (64, 512)
"""The samples per step and chip for which scaling is measured."""
ONE_CHIP = "v5e-1"
"""The slice for which self-play on the chip alone is compiled."""
ON_CHIP: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("connect_four", ("actors.games=128",)),
    ("connect_four", ("actors.games=4096",)),
    ("othello", ("actors.games=512",)),
    ("hex", ("actors.games=256",)),
    ("go_9x9", ("actors.games=256",)),
    ("gardner_chess", ("actors.games=256", "search.tree=dense", "search.slots=64")),
    ("chess", ("actors.games=256", "search.tree=dense", "search.slots=64")),
)
"""The experiments for which self-play on the chip is compiled, with the number of games that is best there; connect
four also with its own number, which is for CPUs."""
IN_INT8 = ("actors.inference=device", "int8.on_tpu=true")
"""Arguments with which each of them is compiled once more."""
Outcome = Literal["compiled", "too large", "refused", "crashed", "timeout"]


@dataclass(frozen=True)
class Job:
    """One call of `podzero compile`."""

    config: str
    """The name of a built-in experiment."""
    slice: str
    """The short name of the slice; for `scaling`, of the largest one."""
    program: str
    """A value of `podzero compile --program`, or `scaling`."""
    arguments: tuple[str, ...]
    """The command-line arguments after `podzero compile`."""

    @property
    def key(self) -> str:
        """Identifies the job."""
        return " ".join(self.arguments)

    def digest(self) -> str:
        """A hash of the experiment's settings and of the compiler's version."""
        file = builtin_configs()[self.config]
        experiment = {key: value for key, value in read_layers(str(file)).tree.items() if key != "name"}
        # The paths of own Python files are absolute, and a digest holds on every machine.
        inputs = json.dumps([experiment, compiler()], sort_keys=True).replace(f"{file.parent}/", "")
        return hashlib.sha256(inputs.encode()).hexdigest()[:16]


def _of_program(config: str, where: str, program: str, *settings: str) -> Job:
    return Job(config, where, program, (config, *settings, "--topology", where, "--program", program))


def all_jobs() -> list[Job]:
    """All that is compiled: the experiments that are not made for one slice before those that are."""
    return [
        *general_jobs(),
        *(job for name in builtin_configs() if name.startswith(FOR_SLICES) for job in jobs_of_slice(name)),
    ]


def general_jobs() -> list[Job]:
    """What is compiled of the experiments that are not made for other chips, those with the smallest networks first."""
    # The learner depends on the slice; what one chip runs alone is compiled once for each kind of chip.
    chips: dict[str, str] = {}
    for name in SLICES:
        chips.setdefault(find_slice(name).chip.name, name)
    compared = ",".join(SCALING)
    return [
        job
        for config in sorted((name for name in builtin_configs() if not is_for_other_chips(name)), key=_size)
        for job in (
            *(_of_program(config, where, "learner") for where in SLICES),
            *(_of_program(config, where, "evaluation") for where in chips.values()),
            *(
                _of_program(config, where, "selfplay")
                for where in chips.values()
                if "selfplay" in names_of(load(config))
            ),
            *(
                _of_program(name, ONE_CHIP, "device", *settings, *more)
                for name, settings in ON_CHIP
                if name == config
                for more in ((), IN_INT8)
            ),
            *(
                Job(config, SCALING[-1], "scaling", (config, "--scaling", compared, "--per-chip", str(per_chip)))
                for per_chip in PER_CHIP
            ),
        )
    ]


def is_for_other_chips(config: str) -> bool:
    """Whether an experiment is made for one slice, or for a GPU."""
    return config.startswith(FOR_SLICES) or config.endswith("_gpu")


def _size(config: str) -> int:
    """The approximate size of the network: layers times the square of their width."""
    match load(config).network:
        case ResNetConfig() | NestedConfig() | MuZeroResNetConfig() as net:
            return net.blocks * net.channels**2
        case net:
            assert not isinstance(net, OwnNetworkConfig | OwnModelConfig), "no built-in experiment has one"
            return net.layers * net.width**2


def jobs_of_slice(name: str) -> tuple[Job, Job]:
    """The learner of an experiment for a slice, and its play on one chip."""
    where = load(name).cluster.slice
    assert where is not None
    return _of_program(name, where, "learner"), _of_program(name, where, "device")


@dataclass(frozen=True)
class EarlierEstimate:
    """What another version of the compiler estimated for a job."""

    compiler: str
    """The other compiler's version."""
    seconds: float
    """The `estimate_of` the program."""


@dataclass(frozen=True)
class JobResult:
    """The result of a job."""

    outcome: Outcome
    seconds: float
    """How long it took."""
    digest: str
    report: dict[str, Any] = field(default_factory=dict)
    """The output of `--json`; empty if the program was not compiled."""
    message: str = ""
    """The error, if there was one."""
    compiler: str = ""
    """The compiler's version."""
    before: EarlierEstimate | None = None
    """The estimate of the previous compiler."""

    def is_valid(self, job: Job, limit_s: float) -> bool:
        """Whether compiling the job again would give the same result. A change of podzero's code needs `--again`."""
        gave_up = self.outcome == "timeout" and self.seconds < limit_s
        return self.digest == job.digest() and self.outcome != "crashed" and not gave_up


class StoredResults:
    """All results, in one JSON file that is rewritten after each result."""

    def __init__(self, path: Path) -> None:
        self._path = path
        stored = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else {}
        self._results = {key: _result(**result) for key, result in stored.items()}

    def get(self, job: Job) -> JobResult | None:
        """The stored result of a job, or None."""
        return self._results.get(job.key)

    def missing(self, jobs: Iterable[Job], limit_s: float) -> list[Job]:
        """The jobs without a valid result, those that were never compiled first."""
        wanted = [job for job in jobs if (found := self.get(job)) is None or not found.is_valid(job, limit_s)]
        return sorted(wanted, key=lambda job: self.get(job) is not None)

    def fill(self, jobs: Iterable[Job], run: Callable[[Job, float], JobResult], limit_s: float) -> None:
        """Runs jobs one after the other, each for at most `limit_s`, and saves and prints each result at once.

        `run` must return a failure as a `JobResult` instead of raising an exception.
        """
        wanted = list(jobs)
        for place, job in enumerate(wanted, 1):
            result = run(job, limit_s)
            self._results[job.key] = replace(result, compiler=compiler(), before=self._before(job))
            self._save()
            done = f"{result.outcome} after {result.seconds:.0f} s {result.message}"
            print(f"[{place}/{len(wanted)}] {job.key}: {done}", flush=True)

    def _before(self, job: Job) -> EarlierEstimate | None:
        """The estimate of the previous compiler for a job, if known."""
        known = self._results.get(job.key)
        if known is None or known.compiler == compiler():
            return None if known is None else known.before
        seconds = estimate_of(job, known.report)
        return known.before if seconds is None else EarlierEstimate(known.compiler, seconds)

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        stored = {"results": {key: asdict(self._results[key]) for key in sorted(self._results)}}
        temporary = self._path.with_suffix(".part")
        temporary.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, self._path)


def estimate_of(job: Job, report: Mapping[str, Any]) -> float | None:
    """The estimated seconds of a job's program, or None if its report has no estimate.

    They are the time of a step (`learner`; `scaling`, on the largest slice), of a move of one game (`device`), or of an
    execution (the other programs).
    """
    if job.program == "scaling" and report:
        return float(sum(report["slices"][-1]["step"].values()))
    if job.program == "device":
        return 1 / report["moves_per_s"] if "moves_per_s" in report else None
    program = program_of(job, report)
    seconds = program.get("estimated_seconds")
    return None if seconds is None else float(seconds / program["trip_count"])


def program_of(job: Job, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The program of a report that a job is about; empty if the report has none."""
    return next((program for program in report.get("programs", ()) if program["name"] == job.program), {})


def _result(*, before: Mapping[str, Any] | None, **fields: Any) -> JobResult:
    """A result from its fields in the file."""
    return JobResult(before=None if before is None else EarlierEstimate(**before), **fields)


def compiler() -> str:
    """The versions of libtpu and jax, on which the results depend."""
    return f"libtpu {version('libtpu')}, jax {version('jax')}"
