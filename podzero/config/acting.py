"""Sections for producing and storing experience: actors, replay, reanalyse."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from podzero.config.section import Fraction, Section


class ActorsConfig(Section):
    """Self-play: the number of processes, their batch size, exploration, and value targets."""

    count: PositiveInt = 1
    """Actor processes."""
    min_count: PositiveInt | None = None
    """Actors that must fit into the cluster before a run starts; the others start when nodes join. By default all."""
    games: PositiveInt = 128
    """Games or environments that one actor steps in parallel: the batch size of its network evaluations."""
    cpus: PositiveFloat = 1.0
    """CPUs that Ray reserves for each actor. The actor uses as many compute threads."""
    inference: Literal["local", "int8", "server", "device"] = "local"
    """Where self-play evaluates the network. `local`: in the program of the search, on the CPU. `int8`: quantized by
    OpenVINO, for CPUs with VNNI instructions and the networks `resnet` and `haiku_resnet`; section `int8` limits its
    errors. `server`: by processes that own accelerators and serve many actors (section `server`). `device`, for games
    in JAX: in programs of many moves on accelerators. With `resources` these are the actors' own; without, each learner
    process runs one actor, which takes turns with training on the learner's devices."""
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """With `inference=device`: resources of Ray that each actor reserves, for example `{TPU: 4}` or `{GPU: 1}`. It is
    a process of its own on a node that has them, and plays on these accelerators. Without, actors play on the
    learner's."""
    moves_per_dispatch: PositiveInt = 16
    """With `inference=device`: moves of all games in one program."""
    noise: Fraction = 1.0
    """Noise at the root in every move, also at temperature 0. Gumbel: its scale; it decides with the prior which
    actions sequential halving begins with and keeps. PUCT: factor of `search.dirichlet_fraction`."""
    temperature: NonNegativeFloat = 1.0
    """Randomness of the choice after search; with `temperature_plies` only in the first plies. At 0 the choice is the
    best of the most visited actions, which still depend on `noise`; only with `noise=0` as well is play greedy.
    Gumbel: share of the root's noise that enters the choice. PUCT: temperature of the visit counts."""
    temperature_plies: NonNegativeInt | None = None
    """Plies of each game, or steps of each episode, that are played at `temperature`; later ones are played
    at 0. By default all."""
    opening_fraction: Fraction = 0.0
    """Fraction of games that start with uniformly random plies."""
    opening_plies: NonNegativeInt = 0
    """Largest number of random plies at the start of such a game. The number is uniform from 1 to this."""
    root_value_weight: Fraction = 0.0
    """Games: weight of the root's search value in the value target; the lambda-return has the rest."""
    td_lambda: Fraction = 1.0
    """Games: how far the lambda-return in the value target looks ahead, as in TD(lambda): 1 is the outcome of the game,
    0 the next root value, and between them each later root value weighs `td_lambda` times the one before. The outcome
    then weighs `td_lambda` to the power of the plies that follow: at 0.95, 0.36 after 20 plies and 0.01 after 90."""

    @property
    def beside_learner(self) -> bool:
        """Whether the learner's processes play, and there are no others for that."""
        return self.inference == "device" and not self.resources

    @property
    def processes(self) -> int:
        """Actors with a process of their own."""
        return 0 if self.beside_learner else self.count

    @property
    def first_processes(self) -> int:
        """Those of them that must fit into the cluster before a run starts."""
        return self.processes and (self.min_count or self.count)

    @pydantic.model_validator(mode="after")
    def _resources_are_for_devices(self) -> ActorsConfig:
        if self.resources and self.inference != "device":
            raise ValueError(
                f"resources are accelerators of actors that play on them: set inference=device as well (with inference="
                f"{self.inference} actors use CPUs only)"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _min_count_is_at_most_count(self) -> ActorsConfig:
        if self.min_count is not None and self.min_count > self.count:
            raise ValueError(f"min_count {self.min_count} is larger than count {self.count}")
        return self


class ReplayConfig(Section):
    """The Reverb tables, and the rate limiter between actors and learner."""

    shards: PositiveInt = 1
    """Reverb servers. Each learner host reads an equal number of them."""
    capacity: PositiveInt = 200_000
    """Samples held over all shards; the oldest are removed first."""
    min_size: PositiveInt = 4_096
    """Samples over all shards before learning starts."""
    samples_per_insert: Annotated[PositiveFloat, Field(allow_inf_nan=False)] = 4.0
    """Replay ratio: how often each sample is learned from on average. Reverb's rate limiter enforces it."""
    tolerance: PositiveFloat | None = None
    """Samples over all shards by which the replay ratio may be off, in either direction, before actors or learner are
    blocked. By default four learner batches or a tenth of `samples_per_insert * min_size`, whichever is larger."""
    samples_per_item: Literal[1, 2, 4, 8, 16, 32] = 8
    """Samples of different games that are stored and read as one Reverb item; Reverb's cost is per item, not per byte.
    Must be 1 for a prioritized table, whose priorities are per sample, and for MuZero, where it is the default."""
    sampler: Literal["uniform", "prioritized"] = "uniform"
    """How samples are drawn. `prioritized` is prioritized experience replay (Schaul et al. 2016)."""
    priority_exponent: NonNegativeFloat = 0.6
    """Prioritized: the exponent of priorities. 0 samples uniformly, 1 in proportion to the value errors.
    Importance weights undo the bias of this sampling fully; the learner divides them by the largest of the batch."""
    timeout_s: PositiveFloat | None = None
    """Longest wait of one insert or one read, after which the process that waits fails. By default they wait for as
    long as it takes."""
    warn_after_s: PositiveFloat = 30.0
    """A wait of this length is logged, with the limit that blocks it; again after twice the time, and so on."""
    port: NonNegativeInt = 0
    """Port of the first shard; the others use the ports after it. 0 chooses free ports."""
    cpus: NonNegativeFloat = 0.25
    """CPUs that Ray reserves for each shard."""
    memory_gib: PositiveFloat | None = None
    """Memory in GiB that Ray reserves for each shard, so that it places nothing else there that asks for memory; by
    default none is reserved."""

    @property
    def memory_bytes(self) -> int:
        """`memory_gib` in bytes; 0 without."""
        return int((self.memory_gib or 0.0) * 2**30)

    @pydantic.model_validator(mode="after")
    def _priorities_need_single_samples(self) -> ReplayConfig:
        if self.sampler == "prioritized" and self.samples_per_item > 1:
            raise ValueError(
                "a prioritized table has one priority per sample, so samples_per_item must be 1, "
                f"not {self.samples_per_item}"
            )
        return self


class ReanalyseConfig(Section):
    """Fresh search targets for old positions (Schrittwieser et al. 2021, MuZero Unplugged)."""

    share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Fraction of every batch that consists of reanalysed samples; 0 turns reanalyse off. Each learner host rounds it
    to whole samples, with at least one fresh and one reanalysed sample. `replay.samples_per_insert` applies to fresh
    and to reanalysed samples separately. Played states are stored a second time, with what a search needs."""
    count: PositiveInt = 1
    """Reanalyse processes."""
    games: PositiveInt = 128
    """Positions, or windows of K + 1 positions for MuZero, that one process searches in parallel."""
    cpus: PositiveFloat = 1.0
    """CPUs that Ray reserves for each process."""
    capacity: PositiveInt = 20_000
    """Reanalysed samples held over all shards; the oldest are removed first."""

    @property
    def processes(self) -> int:
        """Reanalyse processes of the run: none if `share` is 0."""
        return self.count if self.share else 0
