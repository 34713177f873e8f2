"""A whole experiment, and the numbers that follow from its settings; checks.py has the rules across its sections."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import pydantic
import yaml
from pydantic import Field, NonNegativeInt

from podzero.config.acting import (
    ActorsConfig,
    DataConfig,
    Int8Config,
    ReanalyseConfig,
    ReplayConfig,
    SearchConfig,
    ServerConfig,
)
from podzero.config.environments import EnvConfig, import_paths
from podzero.config.networks import ModelNetworkConfig, NestedConfig, NetworkConfig, ResNetConfig, learns_model
from podzero.config.running import CheckpointConfig, ClusterConfig, EvaluationConfig, MetricsConfig, StopConfig
from podzero.config.section import OwnFile, OwnPart, Section
from podzero.config.training import LearnerConfig, MuZeroConfig

_SIZE = re.compile(r"_\d+x\d+$")
"""The size of the board in the name of a game."""
_MANY_GAMES = 256
"""Games of an actor from which on items of 32 samples hold back few of them."""


class BatchParts(NamedTuple):
    """The numbers of samples of each kind in a batch, over all learner hosts."""

    fresh: int
    reanalysed: int
    recorded: int


class Experiment(Section):
    """A whole experiment, each section valid by itself; `podzero.config.parse` also applies `checks.check`."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the experiment; by default the name of the file."""
    seed: NonNegativeInt = 0
    """Seed of all random number generators."""
    env: EnvConfig
    """The game or environment."""
    network: NetworkConfig = ResNetConfig()
    """The network, by default `resnet`."""
    init_from: str | None = None
    """A trained agent whose parameters the network starts with: a run (`DIR` or `DIR@STEP`) or `zoo:NAME`. Parameters
    that match by name and shape are taken, also from another network or board size; the log lists the others, which
    start at random. Optimizer and schedule start anew."""
    teacher: str | None = None
    """A trained agent of the same game that the network learns from: a run (`DIR` or `DIR@STEP`) or `zoo:NAME`. The
    learner adds the loss of the policy and value that the agent's network gives each sample (distillation, Hinton et
    al. 2015); see `learner.teacher_weight`. The run keeps a copy of the agent."""
    search: SearchConfig = SearchConfig()
    """Tree search in self-play."""
    actors: ActorsConfig = ActorsConfig()
    """Self-play."""
    int8: Int8Config = Int8Config()
    """Quantized evaluation in self-play."""
    server: ServerConfig = ServerConfig()
    """Inference servers for self-play."""
    replay: ReplayConfig = ReplayConfig()
    """The replay buffer."""
    learner: LearnerConfig = LearnerConfig()
    """Training."""
    data: DataConfig = DataConfig()
    """Recorded games."""
    muzero: MuZeroConfig = MuZeroConfig()
    """Training of a learned model."""
    reanalyse: ReanalyseConfig = ReanalyseConfig()
    """Fresh targets for old positions."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluation during training."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    metrics: MetricsConfig = MetricsConfig()
    """Where metrics go."""
    cluster: ClusterConfig = ClusterConfig()
    """Nodes of the Ray cluster."""
    stop: StopConfig = StopConfig()
    """Limits of the run."""

    @property
    def most_hours(self) -> float | None:
        """The hours that a run may take by `stop.hours` and `stop.cost`, over all resumptions; None without a limit."""
        price, cost = self.cluster.price_per_hour, self.stop.cost
        limits = [self.stop.hours, cost / price if cost and price else None]
        return min((hours for hours in limits if hours is not None), default=None)

    @property
    def has_auxiliary_heads(self) -> bool:
        """Whether the network predicts the rest of games (`Prediction`), of which samples then hold the targets."""
        net = self.network
        return isinstance(net, NestedConfig) or (isinstance(net, ResNetConfig) and net.auxiliary)

    @property
    def predicts_ownership(self) -> bool:
        """Whether the auxiliary heads predict who will own each square, which samples then hold."""
        return isinstance(self.network, NestedConfig | ResNetConfig) and self.network.ownership

    @property
    def has_self_play(self) -> bool:
        """Whether actors play and replay stores their samples; otherwise the learner reads only recorded games."""
        return self.data.records is None or self.data.share < 1

    @property
    def replay_shards(self) -> int:
        """Replay servers of the run."""
        return self.replay.shards if self.has_self_play else 0

    @property
    def actor_processes(self) -> int:
        """Actors with a process of their own."""
        return 0 if self.actors.beside_learner or not self.has_self_play else self.actors.count

    @property
    def first_actors(self) -> int:
        """The number of actor processes that must fit into the cluster before a run starts."""
        return min(self.actor_processes, self.actors.min_count or self.actors.count)

    @property
    def own_parts(self) -> dict[str, OwnPart]:
        """The sections that name code of the user's own by an import path, by their dotted names."""
        sections = {
            "network": self.network,
            "search.algorithm": self.search.algorithm,
            "learner.optimizer": self.learner.optimizer,
            "learner.objective": self.learner.objective,
        }
        return {name: section for name, section in sections.items() if isinstance(section, OwnPart)}

    @property
    def own_files(self) -> dict[str, OwnFile]:
        """The sections whose code of the user's own is a file, by their dotted names."""
        sections = self.own_parts | ({"env": self.env} if isinstance(self.env, OwnFile) else {})
        return {name: section for name, section in sections.items() if section.file is not None}

    @property
    def import_paths(self) -> list[str]:
        """The import paths of all code that the experiment names; those of files as they are kept."""
        return [*import_paths(self.env), *(part.place for part in self.own_parts.values())]

    def with_sections(self, sections: Mapping[str, Section]) -> Experiment:
        """The experiment with some of its sections, given by their dotted names, in place of its own."""
        experiment = self
        for name, section in sections.items():
            outer, _, inner = name.rpartition(".")
            if outer:
                experiment = experiment.changed(**{outer: {inner: section}})
            else:
                experiment = experiment.model_copy(update={name: section})
        return experiment

    def changed(self, **sections: Mapping[str, Any]) -> Experiment:
        """The experiment with other values, which nothing checks, of these fields of its sections."""
        changed = {name: getattr(self, name).model_copy(update=fields) for name, fields in sections.items()}
        return self.model_copy(update=changed)

    @property
    def server_processes(self) -> int:
        """Inference servers with a process of their own."""
        return self.server.count if self._is_served and not self.server.beside_learner else 0

    @property
    def uses_learner_devices(self) -> bool:
        """Whether self-play evaluates the network on the learner's devices."""
        plays = self.has_self_play and self.actors.beside_learner
        return plays or (self._is_served and self.server.beside_learner)

    @property
    def _is_served(self) -> bool:
        return self.has_self_play and self.actors.inference == "server"

    @property
    def learns_model(self) -> bool:
        """Whether the network learns a model (MuZero); otherwise the rules are known (AlphaZero)."""
        return isinstance(self.network, ModelNetworkConfig)

    def plays(self, game: str) -> bool:
        """Whether its network can play this game: its own or, with global pooling, the same with another board size."""
        own, net = self.env.title, self.network
        if isinstance(net, NestedConfig) or (isinstance(net, ResNetConfig) and net.global_pooling):
            return _SIZE.sub("", game) == _SIZE.sub("", own)
        return game == own

    @pydantic.field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise ValueError(f"{name!r} cannot name the run's folder in runs/; expected a name such as go_9x9")
        return name

    @pydantic.model_validator(mode="before")
    @classmethod
    def _defaults_that_fit(cls, tree: Any) -> Any:
        """Sets defaults that depend on other sections, before validation, since sections cannot be changed after it."""
        defaults: dict[str, dict[str, Any]] = {}
        match tree:
            # An episode yields any number of windows, which larger items may not divide.
            case {"network": {**network}} if learns_model(network):
                defaults["replay"] = {"samples_per_item": 1}
            # The samples of an item are of different games: with few, samples would wait long for items of 32.
            case {"actors": {"games": int(games)}} if games >= _MANY_GAMES:
                defaults["replay"] = {"samples_per_item": 32}
        match tree:
            case {"actors": {"inference": "device"}}:
                defaults["search"] = {"tree": "dense"}
        for name, fields in defaults.items():
            if isinstance(given := tree.get(name, {}), dict):
                tree = tree | {name: fields | given}
        return tree

    @property
    def uses_openvino(self) -> bool:
        """Whether actors or learner need the optional dependencies `openvino`."""
        return self.actors.inference == "int8" or self.learner.cpu_convolutions == "openvino"

    def on_hosts(self, hosts: int) -> Experiment:
        """The experiment as so many learner hosts train it, which may be those of fewer slices."""
        if self.cluster.tpu is None:
            return self
        return self.changed(cluster={"slices": hosts // self.cluster.tpu.hosts, "hosts": None})

    @property
    def batch_parts(self) -> BatchParts:
        """How a batch is divided between fresh, reanalysed and recorded samples."""
        hosts = self.cluster.learner_hosts
        part = self.learner.batch_size // hosts
        if not self.has_self_play:
            return BatchParts(0, 0, hosts * part)
        # Every host needs a sample of each kind.
        share = self.data.share if self.data.records else 0.0
        recorded = _whole(share, part, others=2 if self.reanalyse.share else 1)
        reanalysed = _whole(self.reanalyse.share, part, others=1 + recorded)
        return BatchParts(hosts * (part - reanalysed - recorded), hosts * reanalysed, hosts * recorded)

    @property
    def replay_tolerance(self) -> float:
        """`replay.tolerance`, or its default."""
        if self.replay.tolerance is not None:
            return self.replay.tolerance
        return max(4.0 * self.learner.batch_size, 0.1 * self.replay.samples_per_insert * self.replay.min_size)

    @property
    def reanalysed_tolerance(self) -> float:
        """The tolerance of reanalysed samples: their share of `replay_tolerance`, but at least `least_tolerance`."""
        # The bound does not depend on the number of learner hosts, so that a run can be resumed on another number.
        return max(self.replay_tolerance * self.reanalyse.share, self.least_tolerance)

    @property
    def reanalysed_min_size(self) -> int:
        """Reanalysed samples over all shards before learning starts."""
        # As few as the rate limiter's tolerance allows: the first ones come from few positions and early parameters.
        return math.ceil(self.reanalysed_tolerance / self.replay.samples_per_insert)

    @property
    def least_tolerance(self) -> float:
        """The smallest tolerance at which reads of whole batches cannot block readers and writers at once."""
        replay = self.replay
        # On every shard one more item must be inserted or read at any time, while a reader may hold a part of a batch.
        return replay.shards * replay.samples_per_item * max(1.0, replay.samples_per_insert) + self.learner.batch_size

    def to_yaml(self) -> str:
        """The experiment as YAML; `load` reads an equal one from it."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def _whole(share: float, part: int, others: int) -> int:
    """A share of `part` samples in whole samples: none, or at least one, so that `others` are left."""
    return min(max(round(share * part), 1), part - others) if share else 0
