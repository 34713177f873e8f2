"""Sections for experience: search, actors, int8, server, replay, reanalyse, data."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import pydantic
from pydantic import Discriminator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Tag

from podzero.config.section import Fraction, OwnPart, Section


class OwnAlgorithmConfig(OwnPart):
    """A search of your own ([own_parts.md](own_parts.md)).

    All further fields are keyword arguments of the function.
    """


Algorithm = Annotated[
    Annotated[Literal["gumbel", "puct"], Tag("builtin")] | Annotated[OwnAlgorithmConfig, Tag("own")],
    Discriminator(lambda algorithm: "own" if isinstance(algorithm, (dict, OwnAlgorithmConfig)) else "builtin"),
]


class SearchConfig(Section):
    """Tree search in self-play. Evaluation uses the same search without exploration noise."""

    algorithm: Algorithm = "gumbel"
    """`gumbel` is Gumbel AlphaZero/MuZero (Danihelka et al. 2022); `puct` is the search of AlphaZero and MuZero; a
    section names a search of your own."""
    simulations: PositiveInt = 32
    """Simulations per move."""
    max_considered_actions: PositiveInt = 16
    """Gumbel: the largest number of actions that enter sequential halving at the root."""
    root_value: Literal["mean", "action", "policy", "network"] | None = None
    """Value of a searched root, for value targets and `analyze`: the `mean` of all visits, the Q-value of the chosen
    `action`, the mean of completed Q-values under the improved `policy`, or the `network`'s value. By default `policy`
    for Gumbel, whose sequential halving visits bad actions too, and `mean` for PUCT."""
    q_scale: Literal["node", "tree", "bounds"] | None = None
    """Gumbel: the range by which Q-values are divided: that of a `node`'s Q-values, that of all values in the `tree`,
    or that between the known `bounds` of a board game's values. By default `node` for games and `tree` for MuZero."""
    min_value_range: PositiveFloat | None = None
    """Gumbel: lower bound of that range for a node or a tree, in units of values. It keeps the policy from following
    errors of values where all actions are equally good. By default 0.2 for games of two players, whose outcomes are 1
    and -1, and 0.01 otherwise."""
    # mctx's default.
    value_scale: PositiveFloat = 0.1
    """Gumbel: weight of scaled Q-values relative to logits, per visit (`c_scale` of Danihelka et al. 2022)."""
    # AlphaZero's 0.03 for each of 361 points of Go and 0.3 for each of some 35 moves of chess are both about 10 in all.
    dirichlet_concentration: PositiveFloat = 10.0
    """PUCT: concentration of the Dirichlet noise at the root, divided evenly among the legal actions."""
    dirichlet_fraction: Fraction = 0.25
    """PUCT: weight of the Dirichlet noise in the root's prior."""
    tree: Literal["mctx", "dense"] = "mctx"
    """How trees are stored and updated: `mctx` follows the path of each game, which suits CPUs; `dense` updates all
    nodes of all games in each operation, which suits TPUs and GPUs. Results are the same up to rounding. With
    `actors.inference=device` the default is `dense`. Games with a value for each player always have dense trees."""
    slots: PositiveInt | None = None
    """With `tree=dense`: the largest number of actions that a node stores; if more are legal, it stores those with the
    largest prior. By default all actions, of which chess has 4,672."""
    targets: PositiveInt | None = None
    """How many actions of a policy become its training target: those with the largest probability, which makes samples
    of games with many actions smaller. By default all."""
    candidates: PositiveInt = 16
    """Continuous actions: how many are sampled from the policy at each node; the search chooses among them."""
    pb_c_init: PositiveFloat = 1.25
    """PUCT: constant `c1` of the exploration term (Schrittwieser et al. 2020, appendix B)."""
    first_play_urgency: Literal["loss", "parent"] = "loss"
    """PUCT: the Q-value of an action before its first visit. `loss` is the lowest possible value, as in AlphaZero, or
    for one player the lowest at the node: if many actions are equally likely, most are never tried. `parent` is the
    node's mean value so far."""

    @pydantic.model_validator(mode="after")
    def _only_dense_trees_have_slots(self) -> SearchConfig:
        if self.slots is not None and self.tree != "dense":
            raise ValueError("slots limits the actions of dense trees: set tree=dense as well")
        return self


class OpponentConfig(Section):
    """One entry of `actors.opponents`."""

    who: str
    """`self`, `earlier`, `random`, `solver`, `mcts:N`, a run (`DIR` or `DIR@STEP`) or `zoo:NAME`."""
    share: Annotated[float, Field(gt=0.0, le=1.0)]
    """Fraction of the games."""


class ActorsConfig(Section):
    """Self-play: processes, batch size, exploration, and value targets."""

    count: PositiveInt = 1
    """Actor processes."""
    min_count: PositiveInt | None = None
    """Actors that must fit into the cluster before a run starts; the others start as nodes join. Afterwards, each
    minute, 10% of the actors leave, down to this number, while they wait for the learner more than 15% of their time,
    and as many come, up to `count`, while it waits so long for replay. By default there are always `count`."""
    games: PositiveInt = 128
    """Games or environments that an actor steps in parallel: the batch size of its network evaluations. A reanalyser
    searches as many positions, or windows of K + 1 positions, rounded up to `replay.samples_per_item`."""
    cpus: PositiveFloat = 1.0
    """CPUs that Ray reserves for each actor and reanalyser, and the number of its compute threads."""
    inference: Literal["local", "int8", "server", "device"] = "local"
    """Where self-play evaluates the network. `local`: in the program of the search, on the CPU. `int8`: quantized by
    OpenVINO, on CPUs with VNNI instructions, for `resnet` (section `int8`). If nothing sets it, a new run on one
    machine takes `int8` where that is possible.
    `server`: in processes that own accelerators and serve many actors (section `server`). `device`: on accelerators, in
    programs of many moves, for games in JAX. With `resources` each actor has its own accelerators; without, each
    learner process runs one actor, which takes turns with training on the learner's devices."""
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """With `inference=device`: Ray resources that each actor reserves, for example `{TPU: 4}` or `{GPU: 1}`. It is then
    a process of its own on a node that has them. Without, actors play on the learner's devices."""
    cache_mib: NonNegativeFloat = 16.0
    """With `inference=int8` or `server`: cache of evaluations by the current version, in MiB, of each actor or each of
    its groups of games (`server.groups`); 0 for none."""
    moves_per_dispatch: PositiveInt = 16
    """With `inference=device`: moves that one program plays in every game."""
    noise: Fraction = 1.0
    """Noise at the root in every move, also at temperature 0. Gumbel: scale of the noise, which together with the prior
    decides which actions sequential halving starts with and keeps. PUCT: factor of `search.dirichlet_fraction`."""
    temperature: NonNegativeFloat = 1.0
    """Randomness of the choice after search, in the first `temperature_plies` plies. At 0 the best of the most visited
    actions is chosen; which ones those are still depends on `noise`, so greedy play needs `noise=0` too. Gumbel: share
    of the root's noise that enters the choice. PUCT: temperature of the visit counts."""
    temperature_plies: NonNegativeInt | None = None
    """Plies of each game, or steps of each episode, played at `temperature`; later ones are played at 0. By default
    all."""
    max_lag: PositiveInt | None = None
    """The most publications (`learner.publish_every`) by which the parameters of an actor or reanalyser may be behind:
    further behind, it waits for newer ones before its next move. By default it never waits for newer ones."""
    opponents: tuple[OpponentConfig, ...] = ()
    """Games of two players: whom self-play plays, as a list of `{who: NAME, share: FRACTION}` whose shares add up to 1;
    by default `self`. `earlier` is a snapshot of this run, drawn anew from all that are kept every 128 moves; other
    players are those of the command line. Each side is played equally often, and only the moves of the learner's side
    become samples. Opponents search in the actor, so `inference` must be `local` or `int8`."""
    opening_fraction: Fraction = 0.0
    """Fraction of games that start with uniformly random plies."""
    opening_plies: NonNegativeInt = 0
    """The largest number of random plies at the start of such a game; the number is uniform from 1 to this."""
    root_value_weight: Fraction = 0.0
    """Games: weight of the root's search value in the value target; the rest is the lambda-return's."""
    td_lambda: Fraction = 1.0
    """Games: how far the lambda-return in the value target looks ahead, as in TD(lambda). 1 is the outcome of the game,
    0 the next root value; in between, each later root value weighs `td_lambda` times the one before, and the outcome
    `td_lambda` to the power of the plies until it: at 0.95, 0.36 after 20 plies and 0.01 after 90."""
    resign_value: Annotated[float, Field(gt=-1.0, lt=0.0)] | None = None
    """Games of two players: whoever is to move resigns after a search whose root value is at most this (Silver et al.
    2017). The root value then stands for what would have followed, as where a limit ends a game. By default nobody
    resigns."""
    resign_fraction: Fraction = 0.8
    """Fraction of games in which players may resign. The others show how often that would have been wrong (metric
    `selfplay/false_resignations`), and alone teach `network.ownership`."""

    @property
    def beside_learner(self) -> bool:
        """Whether the learner's processes play, and no others."""
        return self.inference == "device" and not self.resources

    @pydantic.model_validator(mode="after")
    def _resources_are_for_devices(self) -> ActorsConfig:
        if self.resources and self.inference != "device":
            raise ValueError(
                f"resources are accelerators of actors that play on them: set inference=device as well (with inference="
                f"{self.inference} actors use CPUs only)"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _opponents_share_the_games(self) -> ActorsConfig:
        if not self.opponents:
            return self
        names, total = [entry.who for entry in self.opponents], sum(entry.share for entry in self.opponents)
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"opponents: '{twice}' is listed twice; give each player one share")
        if not math.isclose(total, 1.0, abs_tol=1e-6):
            raise ValueError(f"opponents: the shares add up to {total:g}, not to 1; give self the rest")
        if self.inference not in ("local", "int8") and set(names) != {"self"}:
            raise ValueError(
                f"opponents search in the actor's process, and with inference={self.inference} the games are evaluated "
                "elsewhere; set inference=local or int8"
            )
        if self.games < 2 * len(names):
            raise ValueError(f"games {self.games} is too small for {len(names)} opponents, each of which needs 2 games")
        return self

    @pydantic.model_validator(mode="after")
    def _min_count_is_at_most_count(self) -> ActorsConfig:
        if self.min_count is not None and self.min_count > self.count:
            raise ValueError(f"min_count {self.min_count} is larger than count {self.count}")
        if self.min_count is not None and self.beside_learner:
            raise ValueError("min_count has no use with inference=device, where the learner's processes play: unset it")
        return self


class Int8Config(Section):
    """Quantized evaluation (`actors.inference=int8`, or `on_tpu`).

    Each version of the parameters is compared with evaluation in float32, or with `on_tpu` in the network's own dtype,
    on positions held out from calibration. It is evaluated without int8 if the KL divergence of the policies exceeds
    0.02 nats, or the difference of the values 0.05, in the mean.
    """

    on_tpu: bool = False
    """With `actors.inference=server` or `device`: computes the tower of `resnet` in int8 on TPUs.
    Only wide towers gain by it, and not on all chips (docs/compile.md)."""


class ServerConfig(Section):
    """Inference servers (`actors.inference=server`): processes that evaluate the network for actors."""

    count: PositiveInt = 1
    """Server processes."""
    beside_learner: bool = False
    """Whether each learner process serves on its devices, in turns with training; there are then no other servers."""
    cpus: PositiveFloat = 1.0
    """CPUs that Ray reserves for each server."""
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Ray resources that each server reserves and runs on, for example `{GPU: 1}` or `{TPU: 4}`. Without, it runs on
    the CPU."""
    groups: PositiveInt = 2
    """Groups into which each actor divides its games: while a server evaluates the positions of one group, the actor
    searches another."""
    batch_sizes: tuple[PositiveInt, ...] = (16, 32, 64, 128, 256, 512, 1024)
    """Batch sizes to compile, ascending. A server waits for a full batch while its devices are busy."""
    timeout_s: PositiveFloat = 20.0
    """Seconds without a response after which an actor switches to another server and continues its games there. A
    server is replaced if a batch takes three times as long on its devices, or if it is silent for that time."""

    @property
    def hang_s(self) -> float:
        """Seconds that a batch may take on the devices, or a server may be silent, before the server is replaced."""
        return 3 * self.timeout_s

    @pydantic.field_validator("batch_sizes")
    @classmethod
    def _sizes_ascend(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if not sizes or list(sizes) != sorted(set(sizes)):
            raise ValueError(f"sizes must ascend, as {sorted(set(sizes)) or [64, 256]}, not {list(sizes)}")
        return sizes


class ReplayConfig(Section):
    """The Reverb tables, and the rate limiter between actors and learner."""

    shards: PositiveInt = 1
    """Reverb servers. Each learner host reads an equal number of them."""
    capacity: PositiveInt = 200_000
    """Samples held over all shards; the oldest are removed first."""
    min_size: PositiveInt = 4_096
    """Samples over all shards before learning starts."""
    samples_per_insert: Annotated[PositiveFloat, Field(allow_inf_nan=False)] = 4.0
    """Replay ratio: how often a sample is learned from on average. Reverb's rate limiter enforces it."""
    tolerance: PositiveFloat | None = None
    """Samples over all shards by which the replay ratio may deviate in either direction before actors or the learner
    are blocked. By default four learner batches or a tenth of `samples_per_insert * min_size`, whichever is larger."""
    samples_per_item: Literal[1, 2, 4, 8, 16, 32] = 8
    """Samples of different games stored and read as one Reverb item; Reverb's cost is per item, not per byte. Must be 1
    for a prioritized table, whose priorities are per sample, and for MuZero, where it is the default; 32 is for actors
    of 256 games or more."""
    sampler: Literal["uniform", "prioritized"] = "uniform"
    """How samples are drawn. `prioritized` is prioritized experience replay (Schaul et al. 2016)."""
    # As Schaul et al. chose it for priorities in proportion to errors.
    priority_exponent: NonNegativeFloat = 0.6
    """Prioritized: exponent of the priorities; 0 samples uniformly, 1 in proportion to the value errors. Importance
    weights correct the bias fully; the learner divides them by the largest of the batch."""
    port: NonNegativeInt = 0
    """Port of the first shard; the others use the ports after it. 0 chooses free ports."""
    cpus: NonNegativeFloat = 0.25
    """CPUs that Ray reserves for each shard."""

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
    """Fraction of reanalysed samples in every batch; 0 turns reanalyse off. Each learner host rounds it to whole
    samples, at least one fresh and one reanalysed. `replay.samples_per_insert` applies to fresh and to reanalysed
    samples separately. Played states are stored a second time, in the form that a search needs."""
    count: PositiveInt = 1
    """Reanalyse processes."""
    capacity: PositiveInt = 20_000
    """Reanalysed samples held over all shards; the oldest are removed first."""

    @property
    def processes(self) -> int:
        """Reanalyse processes of the run: none if `share` is 0."""
        return self.count if self.share else 0


class DataConfig(Section):
    """Recorded games or episodes that the learner trains on, beside self-play or instead of it."""

    records: str | None = None
    """A folder that `podzero import` has written, by default none. A relative path begins at the folder of the
    experiment, or else at the current one."""
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Fraction of recorded samples in every batch. Each learner host rounds it to whole samples, at least one recorded
    and one other. At 1 there is no self-play: the run has neither actors nor replay."""
