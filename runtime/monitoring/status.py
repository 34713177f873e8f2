"""The status of a run: made by the monitor, shown by the view, stored in `status.json`."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from podzero.workdir import Workdir, WorkdirError, write_atomically

Phase = Literal["starting", "collecting", "training", "stopping", "ended"]
PHASE_WORDS: Mapping[str, str] = {
    "starting": "starting up",
    "collecting": "filling replay",
    "training": "training",
    "stopping": "stopping",
    "ended": "ended",
}
"""Each phase as it is shown."""


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """The status of a run at one moment.

    Counts include all resumptions. Rates are per second, over the last minute. None means not reported yet.
    """

    name: str
    """Name of the experiment."""
    phase: Phase
    """What the run is doing."""
    elapsed_s: float
    """Seconds of training, over all resumptions."""
    time_left_s: float | None = None
    """Seconds until the first of the `stop` limits is reached, at the present rates."""
    step: int = 0
    """Learner step."""
    games: int = 0
    """Games, or episodes, that the actors finished."""
    moves: int = 0
    """Moves, or environment steps, of all actors."""
    samples: int = 0
    """Samples that the actors wrote to replay."""
    moves_per_s: float = 0.0
    """Moves, or environment steps, of all actors."""
    games_per_s: float = 0.0
    """Games, or episodes, that the actors finished."""
    steps_per_s: float = 0.0
    """Learner steps."""
    evaluations_per_s: float = 0.0
    """Network evaluations of all actors."""
    reanalysed_per_s: float = 0.0
    """Stored positions, or windows of them, whose targets were searched again with newer parameters."""
    served_per_s: float = 0.0
    """Positions that inference servers evaluated for actors."""
    server_fill: float | None = None
    """Share of the places in the servers' last batches that held positions."""
    server_busy: float | None = None
    """Share of time in which the servers' devices had a batch."""
    server_latency_ms: float | None = None
    """Milliseconds from the arrival of a request at a server to its answer: the median, of the slowest server."""
    server_latency_p99_ms: float | None = None
    """The same of the slowest hundredth of the requests."""
    replay_size: int = 0
    """Samples in replay, over all shards."""
    replay_capacity: int = 0
    """Samples that replay can hold."""
    samples_per_insert: float | None = None
    """How often a sample was read, on average."""
    policy_age: float | None = None
    """Learner steps between the newest parameters and those that made the samples of the last batches."""
    loss: float | None = None
    """Total loss of the last batches."""
    policy_loss: float | None = None
    """Its policy term."""
    value_loss: float | None = None
    """Its value term."""
    rating: float | None = None
    """Elo rating of the parameters evaluated last; random play has 0."""
    rating_error: float | None = None
    """Half the width of the 95% confidence interval of the difference from the rating before it."""
    rated_step: int | None = None
    """Learner step of the parameters evaluated last."""
    mean_return: float | None = None
    """Mean return of the last evaluation's episodes, in single-player environments."""
    std_return: float | None = None
    """Standard deviation of these returns."""
    acting_return: float | None = None
    """Mean return of the actors' newest episodes, with exploration noise."""
    failed_episodes: int = 0
    """Episodes that ended because their environment raised an error, hung, or broke its own rules."""
    keeps_value: float | None = None
    """Share of positions in which the agent's move keeps the value of the game, if a solver exists."""
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Mean score in [0, 1] against each opponent of the last evaluation."""
    restarts: int = 0
    """Workers that were replaced, and restarts of the whole run."""
    checkpoint_step: int | None = None
    """Learner step of the newest checkpoint."""
    checkpoint_age_s: float | None = None
    """Seconds since the newest checkpoint was begun, or since the run started or resumed if there is none."""
    failed_saves: int = 0
    """Attempts to write a checkpoint that have failed since the newest one."""
    damaged_shards: int = 0
    """Times that the contents of a replay shard in a checkpoint were damaged, so that it took older ones or none."""
    missing_samples: int = 0
    """Samples that were lost by this."""
    failing: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The workers that have failed and not worked since, by name: how often in a row, and their last errors."""
    samples_per_s: float = 0.0
    """Samples that the learner trained on."""
    step_s: float | None = None
    """Wall seconds of a learner step; `shares["learner"]` says how they are spent."""
    chips: int | None = None
    """Devices that train."""
    hosts: int | None = None
    """Nodes with these devices; actors may run on other nodes."""
    samples_per_s_per_chip: float | None = None
    """`samples_per_s` divided by `chips`."""
    samples_per_s_per_host: float | None = None
    """`samples_per_s` divided by `hosts`."""
    moves_per_s_per_chip: float | None = None
    """`moves_per_s` divided by `chips`: the moves that supply one chip with samples."""
    moves_per_s_per_host: float | None = None
    """`moves_per_s` divided by `hosts`."""
    share_of_peak: float | None = None
    """Model FLOPs utilization: useful operations of training per wall second, as a share of the chips' peak."""
    device_busy: float | None = None
    """Share of wall time in which the devices worked on training."""
    scaling_efficiency: float | None = None
    """Samples/s of a chip while it works, relative to one chip that trains alone (`learner.calibrate`)."""
    hbm_bytes: float | None = None
    """Memory in use on the fullest chip."""
    hbm_peak_bytes: float | None = None
    """Highest memory use of any chip so far."""
    hbm_limit_bytes: float | None = None
    """Memory of a chip."""
    cost: float | None = None
    """Cost of all nodes over `elapsed_s`, if `cluster.price_per_hour` is given."""
    cost_per_million_samples: float | None = None
    """`cost` per million samples written by the actors."""
    shares: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """Share of wall time by kind of worker and stage, for example `shares["actor"]["search"]`."""
    bottleneck: str = ""
    """Who waits for whom, in words."""

    def to_json(self) -> str:
        """The status as one line of JSON; NaN and infinity become null."""
        return json.dumps(_finite(dataclasses.asdict(self)))

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> RunStatus:
        """The inverse of `to_json`, for parsed JSON. Ignores unknown keys, so that it reads files of other versions.

        Raises:
          TypeError: a field without a default is missing.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in tree.items() if key in known})


@dataclasses.dataclass(frozen=True)
class StoredStatus:
    """The status in a working directory, and whether its run is alive."""

    status: RunStatus
    alive: bool
    """Whether a process holds the directory's lock."""
    age_s: float
    """Seconds since the status was written."""

    @property
    def summary(self) -> str:
        """Whether the run is alive, in words."""
        age = f"status {duration(self.age_s)} old"
        if self.alive:
            return f"running ({age})"
        if self.status.phase == "ended":
            return f"ended ({age})"
        phase = PHASE_WORDS[self.status.phase]
        return f"not running: it was interrupted while {phase} ({age}); train again to resume it"

    def to_json(self) -> str:
        """One line of JSON: the fields of the status, `alive` and `age_s`."""
        return json.dumps(json.loads(self.status.to_json()) | {"alive": self.alive, "age_s": round(self.age_s, 1)})


def write_status(workdir: Workdir, status: RunStatus) -> None:
    """Replaces `status.json` atomically.

    Raises:
      OSError: it cannot be written; the old one stays.
    """
    write_atomically(workdir.status_file, status.to_json() + "\n")


def read_status(workdir: Workdir) -> StoredStatus:
    """Reads the last status of the run in `workdir`.

    Raises:
      WorkdirError: the directory holds no run, its run never started, or `status.json` is damaged.
    """
    alive = is_locked(workdir)
    if alive and not workdir.status_file.exists():
        name = workdir.experiment().name if workdir.is_run else workdir.root.name
        return StoredStatus(RunStatus(name, "starting", elapsed_s=0.0), alive=True, age_s=0.0)
    experiment = workdir.experiment()
    try:
        status = RunStatus.from_tree(json.loads(workdir.status_file.read_text()))
        age_s = time.time() - workdir.status_file.stat().st_mtime
    except FileNotFoundError:
        raise WorkdirError(
            f"{workdir.root} holds the experiment '{experiment.name}' but no status.json: the run never started; "
            "start it with `podzero train`"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        rewritten = "within seconds, since the run is alive" if alive else "when the run is resumed"
        raise WorkdirError(
            f"{workdir.status_file} is damaged ({error}); it will be written again {rewritten}"
        ) from None
    return StoredStatus(status, alive, max(age_s, 0.0))


def is_locked(workdir: Workdir) -> bool:
    """Whether a live process trains in `workdir`; does not take the lock itself."""
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
    """Formats seconds: `8 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _finite(value: Any) -> Any:
    """The same tree with None instead of NaN and infinities, which JSON does not know."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
