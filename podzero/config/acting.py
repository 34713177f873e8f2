"""How experience is made and kept: search, actors, replay."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from podzero.config.section import Fraction, Section


class SearchConfig(Section):
    """Tree search in self-play; evaluation takes the same with its own simulations and no noise."""

    algorithm: Literal["gumbel", "puct"] = "gumbel"
    simulations: PositiveInt = 32
    max_considered_actions: PositiveInt = 16
    """Gumbel: actions that enter sequential halving at the root."""
    dirichlet_alpha: PositiveFloat = 0.3
    dirichlet_fraction: Fraction = 0.25
    candidates: PositiveInt = 16
    """Actions that each node chooses among where actions are continuous: so many are drawn from the policy."""
    pb_c_init: PositiveFloat = 1.25
    pb_c_base: PositiveFloat = 19652.0


class ActorsConfig(Section):
    """Self-play: how many processes, how wide, how they explore and what they aim at."""

    count: PositiveInt = 1
    min_count: PositiveInt | None = None
    """Actors for which a cluster must have room before a run starts; the others start as nodes join.
    By default all."""
    games: PositiveInt = 128
    """Games, or environments, that one actor plays side by side: the batch of its network evaluations."""
    cpus: PositiveFloat = 1.0
    """CPUs that Ray reserves for each actor; its compute threads are held to the same number."""
    temperature: NonNegativeFloat = 1.0
    temperature_plies: NonNegativeInt = 1000
    """Plies of a game that are played at `temperature`; later ones at `final_temperature`."""
    final_temperature: NonNegativeFloat = 0.0
    opening_fraction: Fraction = 0.0
    """Share of games that start after some uniformly random plies."""
    opening_plies: NonNegativeInt = 0
    """Upper end of the uniform number of random plies (from 1) in such games."""
    root_value_weight: Fraction = 0.0
    """Share of the root's search value in the value target; the rest is the outcome."""
    max_restarts: NonNegativeInt = 100
    """Deaths of actors that a run survives before it stops and says so."""

    @pydantic.model_validator(mode="after")
    def _no_more_needed_than_wanted(self) -> ActorsConfig:
        if self.min_count is not None and self.min_count > self.count:
            raise ValueError(f"min_count {self.min_count} is above count {self.count}")
        return self


class ReplayConfig(Section):
    """Reverb tables and what holds actors and learner together."""

    shards: PositiveInt = 1
    capacity: PositiveInt = 200_000
    """Samples held over all shards; the oldest leave first."""
    min_size: PositiveInt = 4_096
    """Samples over all shards before learning starts."""
    samples_per_insert: PositiveFloat = 4.0
    """How often each sample is learned from, on average; the limiter holds actors and learner to it."""
    tolerance: PositiveFloat | None = None
    """Samples by which the ratio may be off, either way and over all shards, before somebody waits;
    by default four learner batches or a tenth of `samples_per_insert * min_size`, whichever is more."""
    samples_per_item: Literal[1, 2, 4, 8, 16, 32] = 8
    """Samples of different games that are stored, and always read, together: Reverb's cost is per item, not per byte.
    A prioritized table, which ranks single samples, needs 1, and so do windows of episodes (MuZero); these have it by
    default."""
    sampler: Literal["uniform", "prioritized"] = "uniform"
    priority_exponent: NonNegativeFloat = 0.6
    """How much priorities matter: 0 samples uniformly, 1 in proportion to the errors."""
    importance_exponent: Fraction = 1.0
    """How much importance weights make up for it: 1 wholly, 0 not at all."""
    timeout_s: PositiveFloat = 600.0
    """Longest wait of any single insert or sample before it becomes an error."""
    warn_after_s: PositiveFloat = 30.0
    """A wait this long is explained in the log: which limiter holds whom."""
    port: NonNegativeInt = 0
    """First port of the shards; 0 chooses free ones."""
    cpus: NonNegativeFloat = 0.25
    """CPUs that Ray reserves for each shard."""

    @pydantic.model_validator(mode="after")
    def _priorities_are_of_single_samples(self) -> ReplayConfig:
        if self.sampler == "prioritized" and self.samples_per_item > 1:
            raise ValueError(
                f"a prioritized table ranks single samples, so samples_per_item {self.samples_per_item} must be 1"
            )
        return self


class ReanalyseConfig(Section):
    """Searching old positions again with new parameters (Schrittwieser et al. 2021, MuZero Unplugged)."""

    share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of every batch whose targets come from a later search than the one that played; 0 for none. In whole
    samples of each learner host's part of the batch, at least one of either kind. `replay.samples_per_insert` holds for
    fresh and refreshed samples each. Whatever was played is then kept a second time, with all that a search needs."""
    count: PositiveInt = 1
    """Processes that search again."""
    games: PositiveInt = 128
    """Positions, or windows of K + 1 of them, that one of them searches side by side."""
    cpus: PositiveFloat = 1.0
    """CPUs that Ray reserves for each of them."""
    capacity: PositiveInt = 20_000
    """Reanalysed samples held over all shards; the oldest leave first."""

    @property
    def processes(self) -> int:
        """Processes that there are: none where nothing is searched again."""
        return self.count if self.share else 0
