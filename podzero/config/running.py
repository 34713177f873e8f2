"""A run around its training: judgement, checkpoints, machines, the end."""

from __future__ import annotations

from typing import Annotated

import pydantic
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from podzero.chips import Slice, find_slice
from podzero.config.section import Section

OPPONENT = r"^(random|solver|earlier|mcts:[1-9][0-9]*)$"
"""Whom an evaluator can meet."""


class EvaluationConfig(Section):
    """What the evaluator does while training goes on."""

    every_minutes: PositiveFloat = 5.0
    opponents: tuple[Annotated[str, Field(pattern=OPPONENT)], ...] | None = None
    """Named players, `earlier` for snapshots of this run, `solver` for perfect play where one exists; by default
    `random`, `mcts:100` and `earlier`. Environments for one have none."""
    games: PositiveInt = 40
    """Games per opponent and round; or episodes per round."""
    simulations: PositiveInt = 32
    positions: PositiveInt = 300
    """Positions that a solver judges per round."""
    cpus: NonNegativeFloat = 0.0


class CheckpointConfig(Section):
    """Complete states from which a run goes on."""

    every_minutes: PositiveFloat = 10.0
    keep: PositiveInt = 2


class ClusterConfig(Section):
    """The nodes of a Ray cluster (`train --address`) and their use."""

    slice: str | None = None
    """The TPU slice that trains, as `v5e-16` or `v5e:4x4`: one learner process on each of its hosts, reserved
    together. Without one, the learner runs on the devices of its nodes, of whatever kind."""
    hosts: PositiveInt | None = None
    """Nodes that train together, one learner process each; by default the hosts of `slice`, or one."""
    host_resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Ray resources that each learner process reserves, as `{GPU: 8}` or `{CPU: 16, memory: 64e9}`; by default all TPU
    chips of a host of `slice`."""
    host_timeout_s: PositiveFloat = 60.0
    """Longest time without an answer from a learner host before the other hosts give up."""
    actors_on_tpu_hosts: bool = False
    """Whether actors and replay shards may use the CPUs of TPU hosts as well."""
    join_minutes: PositiveFloat = 15.0
    """How long a run waits for nodes to join before it ends and names the missing ones."""
    install_environment: bool = False
    """Whether the driver's checkout is copied to every node, and uv installs the environment of its lock file there.
    By default every node must have both already."""
    price_per_hour: PositiveFloat | None = None
    """Price of all nodes together, in any currency, for the cost metrics."""

    @pydantic.field_validator("slice")
    @classmethod
    def _known_slice(cls, name: str | None) -> str | None:
        return None if name is None else find_slice(name).short_name

    @pydantic.model_validator(mode="after")
    def _hosts_of_the_slice(self) -> ClusterConfig:
        if self.slice is not None and self.hosts not in (None, find_slice(self.slice).hosts):
            raise ValueError(
                f"{self.slice} has {find_slice(self.slice).hosts} hosts, not {self.hosts}; leave hosts out"
            )
        return self

    @property
    def tpu(self) -> Slice | None:
        """The slice that trains."""
        return None if self.slice is None else find_slice(self.slice)

    @property
    def learner_hosts(self) -> int:
        """Nodes that train together."""
        return self.tpu.hosts if self.tpu else self.hosts or 1


class StopConfig(Section):
    """Ends a run, whichever comes first; nothing set means until somebody stops it. Counted over resumes."""

    minutes: PositiveFloat | None = None
    steps: PositiveInt | None = None
    games: PositiveInt | None = None
