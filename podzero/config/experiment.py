"""A whole experiment, and what its sections ask of one another."""

from __future__ import annotations

import pydantic
import yaml
from pydantic import NonNegativeInt

from podzero.config.acting import ActorsConfig, ReanalyseConfig, ReplayConfig, SearchConfig
from podzero.config.environments import EnvConfig, GymnasiumConfig
from podzero.config.networks import ModelNetworkConfig, NetworkConfig, ResNetConfig
from podzero.config.running import CheckpointConfig, ClusterConfig, EvaluationConfig, StopConfig
from podzero.config.section import Section
from podzero.config.training import LearnerConfig, MuZeroConfig


class Experiment(Section):
    """A whole experiment."""

    name: str
    seed: NonNegativeInt = 0
    env: EnvConfig
    network: NetworkConfig = ResNetConfig()
    search: SearchConfig = SearchConfig()
    actors: ActorsConfig = ActorsConfig()
    replay: ReplayConfig = ReplayConfig()
    learner: LearnerConfig = LearnerConfig()
    muzero: MuZeroConfig = MuZeroConfig()
    reanalyse: ReanalyseConfig = ReanalyseConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    cluster: ClusterConfig = ClusterConfig()
    stop: StopConfig = StopConfig()

    @property
    def learns_model(self) -> bool:
        """Whether the rules are learned (MuZero) instead of known (AlphaZero)."""
        return isinstance(self.network, ModelNetworkConfig)

    @pydantic.model_validator(mode="after")
    def _network_suits_environment(self) -> Experiment:
        acts_only = isinstance(self.env, GymnasiumConfig)
        if isinstance(self.env, GymnasiumConfig) and not self.learns_model:
            raise ValueError(
                f"{self.env.id} can only be acted in, so its model must be learned, which network "
                f"'{self.network.name}' does not; set network.name to muzero_mlp or muzero_resnet, or env.name to "
                "gymnasium_simulator if it can be cloned"
            )
        if self.learns_model and not acts_only:
            raise ValueError(
                f"the rules of '{self.env.name}' are known, so network '{self.network.name}', which learns them, is "
                "not for it; set network.name to resnet, transformer or mlp"
            )
        if not self.learns_model and self.muzero != MuZeroConfig():
            raise ValueError(f"section muzero is for networks that learn a model; '{self.network.name}' does not")
        return self

    @pydantic.model_validator(mode="after")
    def _replay_cannot_deadlock(self) -> Experiment:
        replay, batch = self.replay, self.learner.batch_size
        if replay.min_size > replay.capacity:
            raise ValueError(
                f"replay.min_size {replay.min_size} is above replay.capacity {replay.capacity}: "
                "learning would never start"
            )
        least = replay.shards * replay.bundle * max(1.0, replay.samples_per_insert) + batch
        if self.replay_tolerance < least:
            raise ValueError(
                f"replay.tolerance {self.replay_tolerance:g} would deadlock: with samples_per_insert "
                f"{replay.samples_per_insert:g}, batch {batch}, {replay.shards} shards and bundle {replay.bundle} "
                f"it must be at least {least:g}"
            )
        if self.replay_tolerance > replay.samples_per_insert * replay.min_size:
            raise ValueError(
                f"replay.min_size {replay.min_size} is too small: samples_per_insert * min_size "
                f"({replay.samples_per_insert * replay.min_size:g}) must be at least the tolerance "
                f"{self.replay_tolerance:g}"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _hosts_share_equally(self) -> Experiment:
        hosts = self.cluster.learner_hosts
        shares = (("replay.shards", self.replay.shards), ("learner.batch_size", self.learner.batch_size))
        for name, value in shares:
            if value % hosts:
                raise ValueError(
                    f"{name} {value} is not divided by the {hosts} learner hosts (cluster.slice, cluster.hosts), "
                    f"each of which reads shards of its own; set {name}={(value // hosts + 1) * hosts}"
                )
        return self

    @property
    def replay_tolerance(self) -> float:
        """Samples by which the ratio may be off before somebody waits, over all shards."""
        if self.replay.tolerance is not None:
            return self.replay.tolerance
        return max(4.0 * self.learner.batch_size, 0.1 * self.replay.samples_per_insert * self.replay.min_size)

    def to_yaml(self) -> str:
        """The experiment as YAML: `load` gives back an equal one."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)
