"""What was compiled, kept in a file: each result with what it depends on, so that nothing is compiled twice."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from podzero.config import builtin_configs

Outcome = Literal["compiled", "too large", "refused", "crashed", "timeout"]


@dataclass(frozen=True)
class Job:
    """One call of `podzero compile`."""

    config: str
    """The name of a built-in experiment."""
    slice: str
    """The slice, by its short name; of those to scale over the largest."""
    program: str
    """As in `podzero compile --program`, or `scaling`."""
    arguments: tuple[str, ...]
    """Words behind `podzero compile`."""

    @property
    def key(self) -> str:
        """Tells it from all others."""
        return " ".join(self.arguments)

    def digest(self) -> str:
        """Changes with the text of the experiment and the version of the compiler."""
        text = builtin_configs()[self.config].read_text()
        return hashlib.sha256(f"{text}\n{compiler()}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """What came of a job."""

    outcome: Outcome
    seconds: float
    """How long it took."""
    digest: str
    report: dict[str, Any] = field(default_factory=dict)
    """What `--json` printed; nothing where it did not get there."""
    message: str = ""
    """Why not, in words."""

    def stands(self, job: Job, limit_s: float) -> bool:
        """Whether compiling again could only give the same."""
        gave_up = self.outcome == "timeout" and self.seconds < limit_s
        return self.digest == job.digest() and self.outcome != "crashed" and not gave_up


class Results:
    """All results, in one JSON file that is complete after every one of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        stored = json.loads(path.read_text())["results"] if path.exists() else {}
        self._results = {key: Result(**result) for key, result in stored.items()}

    def get(self, job: Job) -> Result | None:
        """What came of a job, if it was ever run."""
        return self._results.get(job.key)

    def missing(self, jobs: Iterable[Job], limit_s: float) -> list[Job]:
        """The jobs without a result that stands."""
        return [job for job in jobs if (found := self.get(job)) is None or not found.stands(job, limit_s)]

    def fill(
        self, jobs: Iterable[Job], run: Callable[[Job, float], Result], limit_s: float, tell: Callable[[str], None]
    ) -> None:
        """Runs jobs one after the other and keeps each result at once.

        Args:
          jobs: what to run.
          run: runs a job within a number of seconds and never raises for what goes wrong in it.
          limit_s: those seconds.
          tell: takes a line about each.
        """
        wanted = list(jobs)
        for place, job in enumerate(wanted, 1):
            result = self._results[job.key] = run(job, limit_s)
            self._save()
            tell(f"[{place}/{len(wanted)}] {job.key}: {result.outcome} after {result.seconds:.0f} s {result.message}")

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        stored = {
            "compiler": compiler(),
            "results": {key: asdict(self._results[key]) for key in sorted(self._results)},
        }
        beside = self._path.with_suffix(".part")
        beside.write_text(json.dumps(stored, indent=1) + "\n")
        os.replace(beside, self._path)


def compiler() -> str:
    """The versions that decide what comes out."""
    return f"libtpu {version('libtpu')}, jax {version('jax')}"
