"""The schema of an experiment: what a YAML file in `configs/` may say, and every check that needs no device.

Models are frozen and refuse unknown keys. `load` reads a file and applies `section.field=value` overrides;
whatever is wrong comes back as one `ConfigError` that names field, value, and the nearest right name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from podzero.chips import Slice, find_slice
from podzero.errors import ConfigError, nearest

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Game = Literal[
    "animal_shogi", "chess", "connect_four", "gardner_chess", "go_9x9", "go_19x19",
    "hex", "othello", "shogi", "tic_tac_toe",
]  # fmt: skip


class Section(BaseModel):
    """Common rules of all sections: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EnvConfig(Section):
    """The game."""

    name: Game


class ResNetConfig(Section):
    """A residual tower (He et al. 2016) with policy and value heads; `haiku_resnet` is the same net in Haiku."""

    name: Literal["resnet", "haiku_resnet"] = "resnet"
    channels: PositiveInt = 64
    blocks: PositiveInt = 5
    value_hidden: PositiveInt = 64
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 on accelerators and float32 on CPU; parameters are float32 always."""
    remat: bool = False
    """Whether training computes the inside of each block a second time instead of keeping it (rematerialization)."""


class TransformerConfig(Section):
    """A transformer over the squares of the board."""

    name: Literal["transformer"]
    width: PositiveInt = 128
    layers: PositiveInt = 4
    heads: PositiveInt = 4
    mlp_ratio: PositiveInt = 4
    value_hidden: PositiveInt = 64
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    remat: bool = False

    @pydantic.model_validator(mode="after")
    def _heads_divide_width(self) -> TransformerConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} must be a multiple of heads {self.heads}")
        return self


NetworkConfig = Annotated[ResNetConfig | TransformerConfig, Field(discriminator="name")]


class SearchConfig(Section):
    """Tree search in self-play; evaluation takes the same with its own simulations and no noise."""

    algorithm: Literal["gumbel", "puct"] = "gumbel"
    simulations: PositiveInt = 32
    max_considered_actions: PositiveInt = 16
    """Gumbel: actions that enter sequential halving at the root."""
    dirichlet_alpha: PositiveFloat = 0.3
    dirichlet_fraction: Fraction = 0.25
    pb_c_init: PositiveFloat = 1.25
    pb_c_base: PositiveFloat = 19652.0


class ActorsConfig(Section):
    """Self-play: how many processes, how wide, how they explore and what they aim at."""

    count: PositiveInt = 1
    min_count: PositiveInt | None = None
    """Actors for which a cluster must have room before a run starts; the others start as nodes join.
    By default all."""
    games: PositiveInt = 128
    """Games that one actor plays side by side: the batch of its network evaluations."""
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
    bundle: Literal[1, 2, 4, 8, 16, 32] = 8
    """Samples of different games that are stored, and always read, together: Reverb's cost is per item, not per byte.
    A prioritized table, which ranks single samples, needs 1."""
    sampler: Literal["uniform", "prioritized"] = "uniform"
    priority_exponent: NonNegativeFloat = 0.6
    timeout_s: PositiveFloat = 600.0
    """Longest wait of any single insert or sample before it becomes an error."""
    warn_after_s: PositiveFloat = 30.0
    """A wait this long is explained in the log: which limiter holds whom."""
    port: NonNegativeInt = 0
    """First port of the shards; 0 chooses free ones."""

    @pydantic.model_validator(mode="after")
    def _priorities_are_of_single_samples(self) -> ReplayConfig:
        if self.sampler == "prioritized" and self.bundle > 1:
            raise ValueError(f"a prioritized table ranks single samples, so bundle {self.bundle} must be 1")
        return self


class OptimizerConfig(Section):
    """optax optimizer with its schedule."""

    name: Literal["adamw", "sgd", "lion"] = "adamw"
    learning_rate: PositiveFloat = 1e-3
    schedule: Literal["constant", "cosine", "warmup_cosine", "linear"] = "constant"
    warmup_steps: NonNegativeInt = 0
    decay_steps: PositiveInt | None = None
    """Steps over which the schedule falls; needed by every schedule but `constant`."""
    final_fraction: Fraction = 0.05
    """Where the schedule ends, as a share of `learning_rate`."""
    momentum: Fraction = 0.9
    weight_decay: NonNegativeFloat = 1e-4
    max_gradient_norm: PositiveFloat = 5.0

    @pydantic.model_validator(mode="after")
    def _schedule_has_length(self) -> OptimizerConfig:
        if self.schedule != "constant" and self.decay_steps is None:
            raise ValueError(f"schedule '{self.schedule}' needs decay_steps")
        return self


class SplitRule(Section):
    """Which parameters are split along which of their dimensions."""

    match: str
    """A regular expression, searched in the dotted path of a parameter, as `layer_0.mlp.hidden.kernel`."""
    dimension: int
    """The dimension that is split; negative ones count from the last."""


class MeshConfig(Section):
    """The device mesh of the learner."""

    data: int = Field(default=-1, ge=-1)
    """Devices along the batch; -1 takes all that `model` leaves."""
    model: PositiveInt = 1
    """Devices among which single parameters are split (tensor parallelism)."""
    rules: tuple[SplitRule, ...] | None = None
    """What `model` splits; the first rule that matches decides. By default the rules for podzero's own networks."""
    fsdp: bool = False
    """Whether weights, averages and optimizer moments are split over `data` too (fully sharded data parallelism):
    each device holds a part and fetches the rest when it is needed."""

    @pydantic.field_validator("data")
    @classmethod
    def _not_zero(cls, data: int) -> int:
        if data == 0:
            raise ValueError("data must be -1 or at least 1")
        return data


class LearnerConfig(Section):
    """Training."""

    batch_size: PositiveInt = 512
    """Samples of one step over the whole mesh."""
    microbatches: PositiveInt = 1
    """Parts of a batch whose gradients are added up one after the other, which takes less memory than all at once."""
    steps_per_dispatch: PositiveInt = 8
    """Steps run on the device by one call."""
    publish_every: PositiveInt = 32
    """Steps between publications to the actors."""
    value_weight: NonNegativeFloat = 1.0
    ema: Fraction = 0.99
    """Decay per step of the averaged weights that act; 0 acts with the raw ones."""
    augment: bool = True
    """Whether each sample is put through a random symmetry of the game, on the device."""
    prefetch: PositiveInt = 4
    """Dispatches prepared ahead, the bound of the queue between reader and step."""
    calibrate: bool = False
    """Whether one chip is timed alone before training starts, for the figure of scaling efficiency; takes as long as
    compiling the step once more and needs a chip that can hold a whole train state."""
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()

    @pydantic.model_validator(mode="after")
    def _publish_on_a_dispatch(self) -> LearnerConfig:
        if self.publish_every % self.steps_per_dispatch:
            raise ValueError(
                f"publish_every {self.publish_every} must be a multiple of steps_per_dispatch {self.steps_per_dispatch}"
            )
        return self


class EvaluationConfig(Section):
    """What the evaluator does while training goes on."""

    every_minutes: PositiveFloat = 5.0
    opponents: tuple[str, ...] = ("random", "mcts:100", "earlier")
    """Named players, `earlier` for snapshots of this run, `solver` for perfect play where one exists."""
    games: PositiveInt = 40
    """Games per opponent and round."""
    simulations: PositiveInt = 32
    positions: PositiveInt = 300
    """Positions that a solver judges per round."""
    cpus: NonNegativeFloat = 0.0


class CheckpointConfig(Section):
    """Complete states from which a run goes on."""

    every_minutes: PositiveFloat = 10.0
    keep: PositiveInt = 2


class ClusterConfig(Section):
    """The machines of a Ray cluster (`train --address`) and what is asked of them."""

    slice: str | None = None
    """The TPU slice that trains, as `v5e-16` or `v5e:4x4`: one learner process on each of its hosts, reserved
    together. Without one, the learner runs on whatever devices its machines have."""
    hosts: PositiveInt | None = None
    """Machines that train together, one learner process each; by default those of `slice`, or one."""
    host_resources: dict[str, PositiveFloat] = {}
    """Ray resources that each learner process reserves; by default all TPU chips of a host of `slice`."""
    host_timeout_s: PositiveFloat = 60.0
    """How long one learner host may be silent, or late for an agreement, before the others give up."""
    actors_on_tpu_hosts: bool = False
    """Whether actors and replay shards may use the CPUs of TPU hosts as well."""
    join_minutes: PositiveFloat = 15.0
    """How long a launch waits for machines to join before it ends and says who is missing."""
    ship: bool = False
    """Whether the driver's checkout is sent to every node, and the environment of its lock file made there by uv,
    instead of both being there already."""
    price_per_hour: PositiveFloat | None = None
    """What all machines cost together, in any currency, for the figures of cost."""

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
        """Machines that train together."""
        return self.tpu.hosts if self.tpu else self.hosts or 1


class StopConfig(Section):
    """Ends a run, whichever comes first; nothing set means until somebody stops it. Counted over resumes."""

    minutes: PositiveFloat | None = None
    steps: PositiveInt | None = None
    games: PositiveInt | None = None


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
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    cluster: ClusterConfig = ClusterConfig()
    stop: StopConfig = StopConfig()

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


def builtin_configs() -> dict[str, Path]:
    """Names and files of the experiments that come with podzero."""
    folder = Path(__file__).parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load(config: str, overrides: Iterable[str] = ()) -> Experiment:
    """Reads an experiment.

    Args:
      config: the name of a built-in experiment, or the path of a YAML file.
      overrides: `section.field=value` items; values are YAML.

    Raises:
      ConfigError: no such file, no YAML, or content that the schema refuses.
    """
    path = _find(config)
    try:
        tree = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected `section: ...` lines, found {type(tree).__name__}")
    tree.setdefault("name", path.stem)
    for override in overrides:
        _apply(tree, override)
    return parse(tree, str(path))


def parse(tree: dict[str, Any], origin: str) -> Experiment:
    """Checks a tree of plain values against the schema; `origin` names it in errors.

    Raises:
      ConfigError: with one line for each thing that is wrong.
    """
    try:
        return Experiment.model_validate(tree)
    except pydantic.ValidationError as error:
        lines = "\n".join(f"  {line}" for line in _explain(error, tree))
        raise ConfigError(f"{origin}: this experiment cannot be run:\n{lines}") from None


def _find(config: str) -> Path:
    builtin = builtin_configs()
    if config in builtin:
        return builtin[config]
    path = Path(config)
    if path.is_file():
        return path
    known = ", ".join(builtin)
    raise ConfigError(
        f"no experiment '{config}'{nearest(config, builtin)}; built in: {known}; or give the path of a YAML file"
    )


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"override '{override}': expected section.field=value, as learner.batch_size=256")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override '{override}': the value is not YAML: {error}") from None
    *sections, field = key.split(".")
    for section in sections:
        inner = tree.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"override '{override}': '{section}' is a value, not a section")
        tree = inner
    tree[field] = value


def _explain(error: pydantic.ValidationError, tree: dict[str, Any]) -> Iterator[str]:
    """One line for each fault: where, what stood there, what was expected, and the nearest right name."""
    for fault in error.errors(include_url=False):
        location = [str(part) for part in fault["loc"]]
        if len(location) > 1 and location[0] == "network":
            location.pop(1)  # pydantic puts the union's tag into the path
        where = ".".join(location)
        value = fault.get("input")
        match fault["type"]:
            case "extra_forbidden":
                section, _, key = where.rpartition(".")
                known = _fields(section, tree)
                yield f"{where}: no such field{nearest(key, known)}; known here: {', '.join(known)}"
            case "missing":
                yield f"{where}: missing"
            case "literal_error":
                known = _choices(fault["ctx"]["expected"])
                yield f"{where} = {value!r}: unknown{nearest(str(value), known)}; known: {', '.join(known)}"
            case "union_tag_invalid":
                tag = value.get("name") if isinstance(value, dict) else value
                known = _choices(fault["ctx"]["expected_tags"])
                yield f"{where}.name = {tag!r}: unknown{nearest(str(tag), known)}; known: {', '.join(known)}"
            case "union_tag_not_found":
                yield f"{where}.name: missing; say which network, one of {', '.join(_network_names())}"
            case "value_error":
                message = str(fault["ctx"]["error"])
                yield f"{where}: {message}" if where else message
            case _:
                yield f"{where} = {value!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _choices(expected: str) -> list[str]:
    return [word.strip().strip("'") for word in expected.replace(" or ", ", ").split(",")]


def _network_names() -> list[str]:
    return ["resnet", "haiku_resnet", "transformer"]


def _fields(section: str, tree: dict[str, Any]) -> list[str]:
    """Field names of the section at a dotted path."""
    model: type[BaseModel] = Experiment
    for part in filter(None, section.split(".")):
        if part == "network":
            name = (tree.get("network") or {}).get("name")
            model = TransformerConfig if name == "transformer" else ResNetConfig
        else:
            annotation = model.model_fields[part].annotation
            options = [
                a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)
            ]
            model = options[0]
    return list(model.model_fields)
