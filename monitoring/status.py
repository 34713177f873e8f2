"""What a run is doing, in one structure: made by the monitor, shown by the dashboard, kept in `status.json`."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from podzero.workdir import Workdir, WorkdirError, read_json, write_atomically

Phase = Literal["starting", "collecting", "training", "stopping", "ended"]
PHASE_WORDS: Mapping[str, str] = {
    "starting": "starting up",
    "collecting": "filling replay",
    "training": "training",
    "stopping": "stopping",
    "ended": "ended",
}
"""What people read for each phase."""


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """One look at a run. Counts are over all resumptions; rates are per second over the last minute.

    None stands where nothing has been reported yet.
    """

    name: str
    phase: Phase
    elapsed_s: float
    """Seconds of training, over all resumptions."""
    time_left_s: float | None = None
    """Seconds until the first of the `stop` limits, at the present rates."""
    step: int = 0
    games: int = 0
    moves: int = 0
    samples: int = 0
    moves_per_s: float = 0.0
    games_per_s: float = 0.0
    steps_per_s: float = 0.0
    evaluations_per_s: float = 0.0
    """Network evaluations of all actors."""
    reanalysed_per_s: float = 0.0
    """Old positions, or windows of them, that were searched again."""
    replay_size: int = 0
    replay_capacity: int = 0
    samples_per_insert: float | None = None
    policy_age: float | None = None
    """Learner steps between the newest parameters and those that made the samples of the last batches."""
    loss: float | None = None
    policy_loss: float | None = None
    value_loss: float | None = None
    rating: float | None = None
    """Elo of the last judged parameters."""
    rating_error: float | None = None
    """Standard error of `rating`."""
    rated_step: int | None = None
    """Learner step of the parameters last judged."""
    mean_return: float | None = None
    """Mean return of the last judged parameters' episodes, in environments for one."""
    std_return: float | None = None
    """Standard deviation of these returns."""
    acting_return: float | None = None
    """Mean return of the episodes that the actors ended last, with their exploration."""
    failed_episodes: int = 0
    """Episodes that were lost to an environment that raised, hung or broke its own rules."""
    keeps_value: float | None = None
    """Share of positions in which the agent's move keeps the value of the game, where a solver exists."""
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Mean score in [0, 1] against each opponent of the last judgement."""
    restarts: int = 0
    """Actors that died and were started again."""
    samples_per_s: float = 0.0
    """Samples learned from."""
    step_s: float | None = None
    """Wall seconds of a learner step; `shares["learner"]` says on what they are spent."""
    chips: int | None = None
    """Devices that train."""
    hosts: int | None = None
    """Machines that hold them; actors may run on others."""
    samples_per_s_per_chip: float | None = None
    """Samples learned from."""
    samples_per_s_per_host: float | None = None
    moves_per_s_per_chip: float | None = None
    """Moves of all actors by chips that train: the play that feeds one."""
    moves_per_s_per_host: float | None = None
    """The same by machines that train."""
    share_of_peak: float | None = None
    """Useful operations of training over what the chips could do at most (model flops utilization), of wall time."""
    device_busy: float | None = None
    """Share of wall time in which the devices worked on training."""
    scaling_efficiency: float | None = None
    """Samples/s of a chip, while it works, over those of one chip that trains alone (`learner.calibrate`)."""
    hbm_bytes: float | None = None
    """Memory in use on the fullest chip."""
    hbm_peak_bytes: float | None = None
    """The most that was in use on a chip."""
    hbm_limit_bytes: float | None = None
    """What a chip has for use."""
    cost: float | None = None
    """Of all machines over `elapsed_s`, where `cluster.price_per_hour` is given."""
    cost_per_million_samples: float | None = None
    """`cost` by the samples played."""
    shares: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """Share of wall time by kind of role and stage, as `shares["actor"]["search"]`."""
    bottleneck: str = ""
    """Who waits for whom, in words."""

    def to_json(self) -> str:
        """The status as one line of JSON; figures that are no number become null."""
        return json.dumps(_finite(dataclasses.asdict(self)))

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> RunStatus:
        """The inverse of `to_json` after parsing; unknown keys are ignored, so that files of other versions are read.

        Raises:
          TypeError: a field without default is missing.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in tree.items() if key in known})


@dataclasses.dataclass(frozen=True)
class StatusFile:
    """A status as found in a working directory, and whether anybody still works there."""

    status: RunStatus
    alive: bool
    """Whether a process holds the directory's lock."""
    age_s: float
    """Seconds since the status was written."""

    @property
    def words(self) -> str:
        """Whether the run lives, for people."""
        age = f"status {duration(self.age_s)} old"
        if self.alive:
            return f"running ({age})"
        if self.status.phase == "ended":
            return f"ended ({age})"
        return f"not running: it was cut off while {PHASE_WORDS[self.status.phase]} ({age}); train again to resume it"

    def to_json(self) -> str:
        """One line: the status with `alive` and `age_s` beside its fields."""
        return json.dumps(json.loads(self.status.to_json()) | {"alive": self.alive, "age_s": round(self.age_s, 1)})


def write_status(workdir: Workdir, status: RunStatus) -> None:
    """Replaces `status.json` as a whole."""
    write_atomically(workdir.status_file, status.to_json() + "\n")


def read_status(workdir: Workdir) -> StatusFile:
    """What the run in `workdir` is doing or was doing last.

    Raises:
      WorkdirError: no experiment lives there, or it has not said anything yet.
    """
    experiment = workdir.experiment()
    alive = is_locked(workdir)
    try:
        status = RunStatus.from_tree(read_json(workdir.status_file))
        age_s = time.time() - workdir.status_file.stat().st_mtime
    except (TypeError, OSError):
        if not alive:
            raise WorkdirError(
                f"{workdir.root} holds the experiment '{experiment.name}' but no readable status.json: "
                "it never came to run; start it with `podzero train`"
            ) from None
        return StatusFile(RunStatus(experiment.name, "starting", elapsed_s=0.0), alive=True, age_s=0.0)
    return StatusFile(status, alive, max(age_s, 0.0))


def is_locked(workdir: Workdir) -> bool:
    """Whether a live process trains in `workdir`. Only looks: a lock that nobody holds is left as it was."""
    path: Path = workdir.root / ".lock"
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def duration(seconds: float) -> str:
    """Seconds as people say them: `8 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _finite(value: Any) -> Any:
    """The same tree with NaN and infinities, which JSON has no word for, as None."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
