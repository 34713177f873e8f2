"""The status of a run: made by the monitor, shown by the view, stored in `status.json`."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from podzero.core.errors import PodzeroError
from podzero.core.reading import parse_json, printable
from podzero.files.workdir import Workdir, WorkdirError, write_atomically
from podzero.runtime.monitoring.ledger import Ledgers, complete

DRIVER_SILENT_S = 60.0
"""A status of this age shows no rates: its driver may hang."""
Phase = Literal["starting", "collecting", "training", "stopping", "judging", "ended"]
PHASE_WORDS: Mapping[str, str] = {
    "starting": "starting up", "collecting": "filling replay", "training": "training",
    "stopping": "stopping", "judging": "judging the last snapshot", "ended": "ended",
}  # fmt: skip
"""The phases in words."""
Text = Annotated[str, AfterValidator(printable)]
"""What another's `status.json` may fill with escape codes."""


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """The status of a run at one moment.

    Counts include all resumptions. Rates are per second, over the last minute. None means not reported yet.
    """

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    name: Text
    """Name of the experiment."""
    phase: Phase
    elapsed_s: float
    """Seconds of training, over all resumptions: of each start from its first learner step on."""
    time_left_s: float | None = None
    """Seconds until the first `stop` limit is reached, at current rates; before the first learner step, those that
    `stop.minutes`, `stop.hours` and `stop.cost` leave; while the last snapshot is judged, until the limit of that."""
    step: int = 0
    episodic: bool = False
    """Whether the actors act in an environment of gymnasium, which is told in episodes and steps, not games and moves.
    """
    games: int = 0
    """Games, or episodes, that the actors finished."""
    moves: int = 0
    """Moves, or environment steps."""
    samples: int = 0
    """Samples written to replay."""
    moves_per_s: float = 0.0
    games_per_s: float = 0.0
    steps_per_s: float = 0.0
    evaluations_per_s: float = 0.0
    """Network evaluations of all actors."""
    reanalysed_per_s: float = 0.0
    """Stored samples whose targets were searched again with newer parameters."""
    served_per_s: float = 0.0
    """Positions that inference servers evaluated for actors."""
    server_fill: float | None = None
    """Mean filling of the servers' last batches, in [0, 1]."""
    server_busy: float | None = None
    """Share of time in which the servers' devices had a batch."""
    server_latency_ms: float | None = None
    """Median milliseconds from the arrival of a request to its answer, at the slowest server."""
    server_latency_p99_ms: float | None = None
    """The same at the 99th percentile."""
    replay_size: int = 0
    """Samples in replay, over all shards."""
    replay_capacity: int = 0
    samples_per_insert: float | None = None
    """Mean number of times that a sample was read."""
    policy_age: float | None = None
    """Mean staleness of the last batches: learner steps since the parameters that made their samples."""
    policy_age_spread: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Its `median`, `p99` (99th percentile) and `max`; of host 0's part of the batches."""
    publication_lag: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The same over the actors, of how many publications of the learner the parameters that they use are behind."""
    taken_back: float | None = None
    """Share of the samples in the last batches that parameters made which are lost with a learner: its steps since the
    checkpoint are made again, and these samples are newer than the learner."""
    loss: float | None = None
    """Total loss of the last batches."""
    policy_loss: float | None = None
    value_loss: float | None = None
    teacher_policy_loss: float | None = None
    """Cross-entropy with the teacher's policy."""
    teacher_value_loss: float | None = None
    """Squared error against the teacher's value."""
    rating: float | None = None
    """Elo rating of the parameters evaluated last; random play has 0."""
    rating_error: float | None = None
    """Half-width of the 95% confidence interval of the difference from the previous rating."""
    rated_step: int | None = None
    """Learner step of these parameters."""
    best: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The snapshot with the best score of an evaluation so far: `best_score` (`config.running.SCORES`), `best_step`,
    and how many evaluations since were no better (`evaluations_since_best`). Empty before the first one."""
    mean_return: float | None = None
    """Mean return of the last evaluation's episodes, in single-player environments."""
    std_return: float | None = None
    acting_return: float | None = None
    """Mean return of the actors' newest episodes, with exploration noise."""
    failed_episodes: int = 0
    """Episodes that ended because the environment raised an error, hung, or violated its specification."""
    keeps_value: float | None = None
    """Share of positions in which the agent's move keeps the game's value, for games with a solver."""
    scores: Mapping[Text, float] = dataclasses.field(default_factory=dict)
    """Mean score in [0, 1] against each opponent of the last evaluation."""
    actors: int = 0
    """Actor processes that run."""
    actors_wanted: int = 0
    """Between `actors.min_count` and `actors.count`; `bottleneck` says why it changes."""
    restarts: int = 0
    """Replaced workers, and restarts of the learner and of the whole run."""
    checkpoint_step: int | None = None
    """Learner step of the newest checkpoint."""
    checkpoint_age_s: float | None = None
    """Seconds since the newest checkpoint was begun; without one, since the run started or resumed."""
    failed_saves: int = 0
    """Checkpoints that could not be written since the newest one."""
    saving_s: float = 0.0
    """For how many seconds a checkpoint has been written; 0 if none is being written."""
    damaged_shards: int = 0
    """Replay shards in checkpoints that were damaged, so that older contents or none were restored."""
    ledger: Annotated[Ledgers, AfterValidator(complete)] = dataclasses.field(default_factory=dict)
    """What became of all samples: by table of replay, what `podzero.runtime.monitoring.ledger.Books.ledger` returns."""
    failing: Mapping[Text, Text] = dataclasses.field(default_factory=dict)
    """Workers that have not worked since they failed: by name, the number of failures and the last error."""
    silent: Mapping[Text, float] = dataclasses.field(default_factory=dict)
    """Workers, or the driver, that have not answered or made progress for longer than usual: by name, seconds."""
    samples_per_s: float = 0.0
    """Samples the learner trained on."""
    step_s: float | None = None
    """Wall seconds of a learner step; `shares["learner"]` splits them by stage."""
    chips: int | None = None
    """Devices that train."""
    hosts: int | None = None
    """Nodes with these devices."""
    samples_per_s_per_chip: float | None = None
    samples_per_s_per_host: float | None = None
    moves_per_s_per_chip: float | None = None
    """Moves of all actors per training chip."""
    moves_per_s_per_host: float | None = None
    share_of_peak: float | None = None
    """Model FLOPs utilization (MFU): useful operations of training per wall second, over the chips' peak."""
    device_busy: float | None = None
    """Share of wall time in which the devices worked on training."""
    hbm_bytes: float | None = None
    """Memory in use on the fullest chip."""
    hbm_peak_bytes: float | None = None
    """Highest memory use of any chip so far."""
    hbm_limit_bytes: float | None = None
    """Memory capacity of a chip."""
    hours: float = 0.0
    """Hours since the start of the driver, over all resumptions, with its waits for nodes."""
    cost: float | None = None
    """Cost of all nodes in these hours, if `cluster.price_per_hour` is given."""
    cost_per_million_samples: float | None = None
    """`cost` per million samples written to replay."""
    paid_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Seconds of wall clock by cause (`goodput.CAUSES`), over all resumptions, without the time between two drivers."""
    goodput: float | None = None
    """Share of `paid_s` in which the learner trained, without what restarts took back."""
    shares: Mapping[Text, Mapping[Text, float]] = dataclasses.field(default_factory=dict)
    """Shares of wall time, which add up to one: by kind of worker and stage, for example `shares["actor"]["search"]`,
    and over the last minute of devices that train and play, `shares["device"]["play"]`."""
    bottleneck: Text = ""
    """The stage that limits the run, in words."""

    def without_rates(self) -> RunStatus:
        """The status without what was measured over a time that has passed."""
        over_time = ("time_left_s", "step_s", "share_of_peak", "device_busy", "bottleneck")
        fields = [field for field in dataclasses.fields(self) if "_per_s" in field.name or field.name in over_time]
        unknown: dict[str, Any] = {field.name: field.default for field in fields}
        return dataclasses.replace(self, **unknown, shares={})

    def to_json(self) -> str:
        """The status as one line of JSON; NaN and infinity become null."""
        return json.dumps(to_jsonable_python(self, inf_nan_mode="null"))

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> RunStatus:
        """The inverse of `to_json`, from parsed JSON. Ignores unknown keys and values of other types, which other
        versions may have written; raises `ValueError` if name, phase or time are missing.
        """
        reader = TypeAdapter(cls)
        try:
            return reader.validate_python(tree)
        except ValidationError as error:
            wrong = {fault["loc"][:1] for fault in error.errors()}
            return reader.validate_python({key: value for key, value in tree.items() if (key,) not in wrong})


@dataclasses.dataclass(frozen=True)
class StoredStatus:
    """The status in a working directory."""

    status: RunStatus
    alive: bool
    """Whether a process trains there."""
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
    """Replaces `status.json` atomically; an `OSError` leaves the old one."""
    write_atomically(workdir.status_file, status.to_json() + "\n")


def read_status(workdir: Workdir) -> StoredStatus:
    """The last status of the run in `workdir`; a `WorkdirError` says if there is none, or `status.json` is damaged."""
    workdir.refresh()
    alive = workdir.holder() is not None
    if alive and not workdir.status_file.exists():
        # A new run locks the directory first and writes its experiment last, once all workers have started.
        name = workdir.experiment().name if workdir.is_run else workdir.root.name
        return StoredStatus(RunStatus(name, "starting", elapsed_s=0.0), alive=True, age_s=0.0)
    experiment = workdir.experiment()
    try:
        status = RunStatus.from_tree(parse_json(workdir.status_file.read_text(encoding="utf-8")))
        age_s = time.time() - workdir.status_file.stat().st_mtime
    except FileNotFoundError:
        raise WorkdirError(
            f"{workdir.root} holds the experiment '{experiment.name}' but no status.json: the run never started; "
            "start it with `podzero train`"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        rewritten = "within seconds, since the run is alive" if alive else "when the run is resumed"
        raise WorkdirError(f"{workdir.status_file} is damaged ({error}); it is written again {rewritten}") from None
    if alive and age_s > DRIVER_SILENT_S:
        silent = {"driver": age_s} if status.phase in ("collecting", "training") else {}  # else it waits for others
        status = dataclasses.replace(status.without_rates(), silent=silent)
    # On shared storage the file's time may be that of a machine whose clock is ahead.
    return StoredStatus(status, alive, max(age_s, 0.0))


def spent(workdir: Workdir) -> Mapping[str, float]:
    """Seconds that earlier starts of a run have taken, by cause, as its status says; empty if that is not known."""
    try:
        status = read_status(workdir).status
    except WorkdirError:
        return {}
    return status.paid_s or {"other": 3600.0 * status.hours}


def record_paid(workdir: Workdir, paid_s: Mapping[str, float]) -> None:
    """Writes the seconds that a run has taken, by cause, into its status, if it has one: its newest start failed."""
    with suppress(PodzeroError, OSError):  # the error that ended the start says more
        if workdir.status_file.exists():
            hours = sum(paid_s.values()) / 3600.0
            write_status(workdir, dataclasses.replace(read_status(workdir).status, hours=hours, paid_s=paid_s))


def duration(seconds: float) -> str:
    """Formats seconds: `8 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
