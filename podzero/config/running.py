"""Sections about a run: evaluation, checkpoints, metrics, cluster, stop limits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

import pydantic
from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from podzero.config.section import Section
from podzero.core.chips import Slice, find_slice
from podzero.core.errors import nearest

# The levels are those of `ENGINES` in podzero/files/players.py, which imports this package.
_OPPONENTS = (
    *("random", "solver", "earlier", "mcts:N", "gnugo:LEVEL", "gtp-rhino:LEVEL", "stockfish:LEVEL"),
    *("fairy-stockfish:LEVEL", "gtp:COMMAND", "uci:COMMAND", "usi:COMMAND"),
)
_OPPONENT = (
    r"random|solver|earlier|mcts:[1-9][0-9]*|gnugo:([1-9]|10)|gtp-rhino:[1-5]"
    r"|(fairy-)?stockfish:(1?[0-9]|20|[12][0-9]{3})|(gtp|uci|usi):.+"
)


def _known_opponent(name: str) -> str:
    if re.fullmatch(_OPPONENT, name) is None:
        raise ValueError(f"unknown opponent '{name}'{nearest(name, _OPPONENTS)}; known: {', '.join(_OPPONENTS)}")
    return name


class EvaluationConfig(Section):
    """Evaluation during training."""

    every_minutes: PositiveFloat = 5.0
    """Minutes between evaluations."""
    final_minutes: NonNegativeFloat = 10.0
    """The longest time in minutes for judging the last snapshot when a limit of section `stop` ends the run; 0: it is
    not judged. A signal ends a run without it."""
    opponents: tuple[Annotated[str, AfterValidator(_known_opponent)], ...] | None = None
    """Opponents: `random`, `mcts:N` (tree search with N random rollouts), `solver` (perfect play, if a solver exists),
    `earlier` (snapshots of this run), or an external engine (docs/engines.md), for example `gnugo:1`. By default
    `random`, `mcts:25`, `mcts:200` and `earlier`. Single-player environments have none."""
    games: PositiveInt = 40
    """The largest number of games per opponent in an evaluation, which ends earlier once half of the 95% interval of
    the rating's gain over the previous snapshot is below 60 Elo points. In single-player environments: episodes per
    evaluation."""
    simulations: PositiveInt = 32
    """Simulations per move of the evaluated network."""
    positions: PositiveInt = 300
    """Positions per evaluation in which a solver checks the network's moves. 1,000 of connect four come with podzero;
    more need the extra `solver`."""
    cpus: NonNegativeFloat = 0.0
    """CPUs that Ray reserves for the evaluator."""


class CheckpointConfig(Section):
    """Checkpoints of learner, replay and counters, from which a run resumes."""

    every_minutes: PositiveFloat = 10.0
    """Minutes between checkpoints with the contents of replay, which a lost replay shard takes up again."""
    learner_minutes: PositiveFloat = 1.0
    """Minutes between checkpoints of the learner, from which a lost learner restarts alone; no more than
    `every_minutes`."""


def _like(pattern: str, expected: str) -> AfterValidator:
    def matched(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"expected {expected}, not {text!r}")
        return text

    return AfterValidator(matched)


class MetricsConfig(Section):
    """Where the metrics of a run go, in addition to `metrics.jsonl` and `tensorboard/`. A writer that fails never stops
    the run.
    """

    prometheus: str | None = None
    """Address at which Prometheus can read metrics, as `HOST:PORT`; `127.0.0.1:9400`, or `9400`, for this machine
    only."""
    wandb: Annotated[str, _like(r"[^/\s]+(/[^/\s]+)?", "PROJECT or ENTITY/PROJECT")] | None = None
    """Weights & Biases project, as `PROJECT` or `ENTITY/PROJECT`. Its environment variables apply, such as
    `WANDB_API_KEY` and `WANDB_MODE=offline`. Needs the package `wandb`."""
    mlflow: str | None = None
    """MLflow tracking server, as `http://HOST:5000`; each experiment of podzero is an experiment there. Needs the
    package `mlflow` or `mlflow-skinny`."""

    alert: Annotated[str, _like(r"https?://\S+|env:[A-Za-z_]\w*", "https://ADDRESS or env:NAME")] | None = None
    """Webhook that gets a message when the run stalls (10 minutes without a step and a game), goes on, ends or fails,
    such as Slack's. The address is a secret, which experiment.yaml and the report would show: `env:NAME` reads it from
    an environment variable."""

    # Before validation, because YAML reads a port alone as a number.
    @pydantic.field_validator("prometheus", mode="before")
    @classmethod
    def _host_and_port(cls, address: object) -> object:
        if address is None:
            return None
        found = re.fullmatch(r"(?:([^:\s]+):)?(\d{1,5})", str(address))
        if found is None or not 0 < int(found[2]) < 2**16:
            raise ValueError(f"expected HOST:PORT or a port, for example 127.0.0.1:9400 or 9400, not {address!r}")
        return f"{found[1] or '127.0.0.1'}:{found[2]}"

    @pydantic.field_validator("mlflow")
    @classmethod
    def _without_password(cls, address: str | None) -> str | None:
        if address is not None and "@" in urlsplit(address).netloc:
            raise ValueError(
                "the address holds a name or a password, which experiment.yaml and the report would show; leave them "
                "out, and set the variables MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return address


class ClusterConfig(Section):
    """The nodes of a Ray cluster (`train --address`) and their use."""

    slice: Annotated[str, AfterValidator(lambda name: find_slice(name).short_name)] | None = None
    """TPU slice that trains, for example `v5e-16` or `v5e:4x4`, with one learner process on each host; its hosts are
    reserved together. Without, the learner runs on whatever devices its nodes have."""
    slices: PositiveInt = 1
    """Slices of this kind that train together, each on an equal part of the batch; their gradients cross the network
    between them once a step."""
    min_slices: PositiveInt | None = None
    """The fewest slices with which the run goes on, at the same `learner.batch_size`, if others have not joined within
    `join_minutes`. By default all."""
    hosts: PositiveInt | None = None
    """Nodes that train together, one learner process each. By default the hosts of all slices, or one."""
    host_resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Ray resources that each learner process reserves, for example `{GPU: 8}` or `{CPU: 16, memory: 64e9}`. By default
    all TPU chips of a host of `slice`."""
    actors_on_tpu_hosts: bool = False
    """Whether actors and replay shards may use the CPUs of TPU hosts too."""
    join_minutes: PositiveFloat = 15.0
    """Minutes that a run waits for nodes to join before it ends and names what is missing."""
    install_environment: bool = False
    """Whether to copy the driver's checkout to every node and install the environment of its lock file there with uv.
    By default every node must have both."""
    price_per_hour: PositiveFloat | None = None
    """Price of all nodes together, in any currency, for the cost metrics."""

    @pydantic.model_validator(mode="after")
    def _hosts_of_the_slices(self) -> ClusterConfig:
        if self.tpu is not None and self.hosts not in (None, self.learner_hosts):
            many = "" if self.slices == 1 else f"{self.slices} x "
            raise ValueError(f"{many}{self.slice} has {self.learner_hosts} hosts, not {self.hosts}; leave hosts out")
        if self.slices > 1 and self.slice is None:
            raise ValueError(
                f"slices {self.slices}: slices are TPU slices; set slice to their kind, for example v5e-16, or hosts "
                "for machines without TPUs"
            )
        if self.min_slices is not None and self.min_slices > self.slices:
            raise ValueError(f"min_slices {self.min_slices} is more than slices {self.slices}; raise those or lower it")
        return self

    @property
    def tpu(self) -> Slice | None:
        """The slice that trains, or one of those that train."""
        return None if self.slice is None else find_slice(self.slice)

    def cost(self, hours: float) -> float | None:
        """What all nodes cost in so many hours; None without a price."""
        return None if self.price_per_hour is None else self.price_per_hour * hours

    @property
    def slice_counts(self) -> range:
        """With how many slices the run may train."""
        return range(self.min_slices or self.slices, self.slices + 1)

    @property
    def learner_hosts(self) -> int:
        """Nodes that train together."""
        return self.slices * self.tpu.hosts if self.tpu else self.hosts or 1


SCORES = ("keeps_value", "mean_return", "elo")
"""The metrics of an evaluation, `evaluation/...`; the first that it has is its score, by which snapshots compare."""


class StopConfig(Section):
    """Limits of a run, counted over all resumptions; the first one reached ends it."""

    minutes: PositiveFloat | None = None
    """Minutes of training, of each start from its first learner step on."""
    steps: PositiveInt | None = None
    """Learner steps."""
    games: PositiveInt | None = None
    """Games or episodes played by the actors."""
    hours: PositiveFloat | None = None
    """Hours since the start of the driver, over all resumptions: also those in which the run starts, recovers or waits
    for nodes."""
    cost: PositiveFloat | None = None
    """What these hours cost by `cluster.price_per_hour`."""
    score: float | None = None
    """The score of an evaluation: the share of moves that keep the game's value where a solver judges, else the mean
    return of one player, else the Elo rating."""
    patience: PositiveInt | None = None
    """Evaluations in a row that are no better than the best one before."""

    @property
    def unlimited(self) -> bool:
        """Whether no limit is certain to be reached."""
        return not self.model_dump(exclude_none=True, exclude={"score", "patience"})

    @staticmethod
    def done(counters: Mapping[str, float], steps: float, hours: float, cost: float | None) -> dict[str, float]:
        """What a run has done, by the names of the limits, from its counters (`Monitor.counters`)."""
        return {
            "minutes": counters.get("elapsed_s", 0.0) / 60,
            "steps": steps,
            "games": counters.get("games", 0.0),
            "hours": hours,
            "cost": cost or 0.0,
            "score": counters.get("best_score", -math.inf),
            "patience": counters.get("evaluations_since_best", 0.0),
        }

    def reached(self, done: Mapping[str, float]) -> str | None:
        """The first limit that a run has reached, for example `stop.steps=1000`, or None; `done` as `done` returns."""
        limits = self.model_dump(exclude_none=True).items()
        return next((f"stop.{name}={limit:g}" for name, limit in limits if done[name] >= limit), None)
