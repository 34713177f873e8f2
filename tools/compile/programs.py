"""The programs of an experiment, lowered for TPU devices that need not be present."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podzero.actors.build import actor_parts, device_parts
from podzero.actors.core import NEW_GAMES, OPENINGS
from podzero.actors.device_actor import RolloutCore
from podzero.config import Experiment, JaxGameConfig, ModelNetworkConfig
from podzero.core.chips import Slice, chip_of_kind
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec, PackedBatch, Params
from podzero.envs import make_env, spec_of
from podzero.inference.build import evaluation_of, placed_network
from podzero.inference.serving import encoding_of
from podzero.learner import make_training
from podzero.learner.build import learner_parts
from podzero.learner.sharding import batch_sharding, placed
from podzero.networks import make_model_network, make_network
from podzero.search import DESCENT

_Struct: Any = jax.ShapeDtypeStruct

NAMES = ("learner", "evaluation", "selfplay", "device", "take", "server")
"""All programs. The learner depends on the slice, the others only on the chip. Only games in JAX have the last four:
`selfplay` is one move as on CPU hosts, `device` the program of actors on accelerators, `take` gathers the samples of
the games that it has finished, `server` is that of inference servers."""
DEPTH = {"gumbel": 8, "puct": 30}
"""The mean depth of new nodes assumed for the searches of `device`, by `search.algorithm`. For Gumbel search it is
rounded up from trained networks (4 to 6 in connect four and Go), for PUCT that of an untrained network in chess."""
GAME_LENGTH = 0.5
"""The assumed mean length of games, as a share of the longest possible one. B new games are started when B games have
ended since the last time, which is once in as many moves as a game lasts."""


def names_of(experiment: Experiment) -> tuple[str, ...]:
    """The names of an experiment's programs, a subset of `NAMES`."""
    return NAMES if isinstance(experiment.env, JaxGameConfig) and not experiment.learns_model else NAMES[:2]


class Program(NamedTuple):
    """One program of a run."""

    name: str
    what: str
    """A description with sizes."""
    advice: str
    """Settings that reduce its memory, the cheapest first."""
    lowered: Any
    """The `jax.stages.Lowered` to compile."""
    batch: int
    """The number of samples of a step (learner), positions (evaluation, server) or games (selfplay, device)."""
    trip_count: int = 1
    """Steps (learner) or moves (device) per execution."""
    parameter_bytes: int = 0
    """The bytes of the parameters that it trains."""
    simulations: int = 0
    """The simulations of each search (selfplay, device)."""
    depth: float | None = None
    """The mean depth of the new nodes of its searches (device); see `SearchResult.depth`."""
    plies: float | None = None
    """The mean length of its games (selfplay, device); None if the longest is unknown: some begin in each move."""
    openings: int = 0
    """The plies of the openings of new games."""
    from_hosts: int = 0
    """The bytes that all hosts together send with an execution, without parameters."""
    to_hosts: int = 0
    """The bytes of results that they fetch."""

    @property
    def mean_trips(self) -> dict[str, float]:
        """How often parts run whose number of runs depends on data, in the mean, by named scope."""
        known = {
            DESCENT: None if self.depth is None else self.depth - 1,
            NEW_GAMES: None if self.plies is None else 1 / self.plies,
            OPENINGS: self.openings or None,
        }
        return {scope: mean for scope, mean in known.items() if mean is not None}


def check_compiler() -> None:
    """Checks that the TPU compiler is installed."""
    if find_spec("libtpu") is None:
        raise ConfigError("the compiler (libtpu) is missing: run `uv sync --inexact --extra tpu` in podzero's checkout")


def devices_of(where: Slice, slices: int = 1) -> list[Any]:
    """The devices of a slice, or of several of a kind, as the TPU compiler describes them; needs no TPU.

    Must be called before JAX computes anything in this process.
    """
    check_compiler()
    # This process computes on its CPU; the TPU is only described.
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    # Outside Google Cloud no metadata server answers libtpu, so it gets the answers from the environment.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    # libtpu locks the chips of its node. Compilation uses no chip, so other processes may use libtpu as well.
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    # The type of v5e for every slice: libtpu aborts over that of another chip, and what it compiles for is said below.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    options: dict[str, Any] = {} if slices == 1 else {"num_slices": slices}
    if where.chip.name == "v4":  # the compiler needs the layout of its hosts
        options |= {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1), "wrap": (False,) * 3}
    # By default a host has 2 x 2 chips.
    if where.chips == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    shape = "x".join(map(str, where.shape))
    described = topologies.get_topology_desc(platform="tpu", topology_name=f"{where.chip.name}:{shape}", **options)
    return list(described.devices)


def programs_of(
    experiment: Experiment, devices: list[Any], names: Collection[str] = NAMES, depth: float | None = None
) -> Iterator[Program]:
    """Lowers the experiment's programs one by one: the learner's dispatch for all devices, the others for one.

    Programs in `names` that the experiment does not have are left out. `depth` is the mean depth of the searches in
    `device`; by default `DEPTH`.
    """
    experiment = _for_accelerators(experiment)
    makers: dict[str, Callable[[Experiment, list[Any]], Program]] = {
        "learner": _learner, "evaluation": _evaluation, "selfplay": _selfplay,
        "device": partial(_device, depth=depth), "take": _take, "server": _server,
    }  # fmt: skip
    wanted = [name for name in names_of(experiment) if name in names]
    if not wanted:
        raise ConfigError(f"{experiment.env.title} is no JAX game; its programs: {' and '.join(names_of(experiment))}")
    for name in wanted:
        yield makers[name](experiment, devices)


def _learner(experiment: Experiment, devices: list[Any]) -> Program:
    config = experiment.learner
    network, spec, symmetries = learner_parts(experiment)
    training = make_training(experiment, network, spec, symmetries, devices)
    steps, batch = config.dispatch_steps(), config.batch_size
    weights = _Struct((steps, batch), "float32") if experiment.replay.sampler == "prioritized" else None
    batches = PackedBatch(_Struct((steps, batch, training.packing.row_bytes), "uint8"), weights)
    step: Any = training.step
    shardings = jax.tree.map(lambda _: batch_sharding(training.mesh), batches)
    lowered = step.lower(training.like, placed(batches, shardings))
    what = f"{steps} steps on batches of {batch:,} over {len(devices)} {_device_word(devices)}s"
    advice, trained, sent = _advice(experiment, len(devices)), bytes_of(training.like.params), bytes_of(batches)
    return Program("learner", what, advice, lowered, batch, steps, parameter_bytes=trained, from_hosts=sent)


def bytes_of(tree: Any) -> int:
    """The bytes of all arrays, without padding."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _evaluation(experiment: Experiment, devices: list[Any]) -> Program:
    spec, games = spec_of(experiment.env), experiment.actors.games
    init, predict = _acting_network(experiment, spec)
    params = jax.eval_shape(init, jax.random.key(0))
    observation = _Struct((games, *spec.observation_shape), spec.observation_dtype)
    lowered = jax.jit(predict).lower(*on_one((params, observation), devices[0]))
    what = f"the network on {games:,} positions, one {_device_word(devices)}"
    return Program("evaluation", what, f"actors.games below {games}", lowered, games)


def _acting_network(experiment: Experiment, spec: EnvSpec) -> tuple[Callable[[Any], Params], Callable[..., Any]]:
    """The network that actors evaluate: its `init`, and the function of parameters and observations."""
    if isinstance(experiment.network, ModelNetworkConfig):
        model = make_model_network(experiment.network, spec)
        return model.init, lambda params, observation: model.predict(params, model.represent(params, observation))
    network = placed_network(experiment)
    return network.init, network.apply


def _server(experiment: Experiment, devices: list[Any]) -> Program:
    env, size = make_env(experiment.env), experiment.server.batch_sizes[-1]
    encoding = encoding_of(env, experiment.int8.on_tpu)
    init, predict = _acting_network(experiment, env.spec)
    params, rows = jax.eval_shape(init, jax.random.key(0)), _Struct((size, encoding.row_bytes), "uint8")
    lowered = jax.jit(evaluation_of(encoding, predict)).lower(*on_one((params, rows), devices[0]))
    what = f"the network on {size:,} positions of {encoding.row_bytes} bytes, one {_device_word(devices)}"
    advice, sent, fetched = f"server.batch_sizes below {size}", bytes_of(rows), bytes_of(lowered.out_info)
    return Program("server", what, advice, lowered, size, from_hosts=sent, to_hosts=fetched)


def _selfplay(experiment: Experiment, devices: list[Any]) -> Program:
    games, simulations = experiment.actors.games, experiment.search.simulations
    core, fold, _ = actor_parts(experiment, "local")
    network = make_network(experiment.network, spec_of(experiment.env))
    params = jax.eval_shape(lambda: fold(network.init(jax.random.key(0))))
    state = jax.eval_shape(core.init, jax.random.key(0))
    lowered = jax.jit(core.move, donate_argnums=1).lower(*on_one((params, state), devices[0]))
    what = f"a move of {games:,} games, {simulations} simulations, one {_device_word(devices)}"
    advice = f"actors.games below {games}, or search.simulations below {simulations}"
    return Program("selfplay", what, advice, lowered, games, simulations=simulations, **_starts(experiment))


def _starts(experiment: Experiment) -> dict[str, Any]:
    """The fields of a `Program` that say how it starts games."""
    longest, actors = spec_of(experiment.env).max_plies, experiment.actors
    return {
        "plies": None if longest is None else max(1.0, GAME_LENGTH * longest),
        "openings": actors.opening_plies if actors.opening_fraction else 0,
    }


def _playing(experiment: Experiment) -> tuple[Experiment, RolloutCore, tuple[Any, ...]]:
    """The experiment as accelerators play it, its core, and the shapes of the arguments of the core's `play`."""
    experiment = experiment.changed(actors={"inference": "device"}, search={"tree": "dense"})
    core, network = device_parts(experiment)
    params = jax.eval_shape(network.init, jax.random.key(0))
    return experiment, core, (params, _Struct((), "int32"), jax.eval_shape(core.init, jax.random.key(0)))


def _take(experiment: Experiment, devices: list[Any]) -> Program:
    experiment, core, arguments = _playing(experiment)
    size = experiment.actors.moves_per_dispatch * experiment.actors.games
    state, finished, _ = jax.eval_shape(core.play, *arguments)
    lowered = jax.jit(core.take).lower(*on_one((state.history, finished, _Struct((size,), "int32")), devices[0]))
    what = f"{size:,} samples of finished games for the host, one {_device_word(devices)}"
    advice = f"actors.games below {experiment.actors.games}"
    return Program("take", what, advice, lowered, size, to_hosts=bytes_of(lowered.out_info))


def _device(experiment: Experiment, devices: list[Any], depth: float | None) -> Program:
    experiment, core, arguments = _playing(experiment)
    games, moves, search = experiment.actors.games, experiment.actors.moves_per_dispatch, experiment.search
    lowered = jax.jit(core.play, donate_argnums=2).lower(*on_one(arguments, devices[0]))
    what = f"{moves} moves of {games:,} games, {search.simulations} simulations, one {_device_word(devices)}"
    advice = f"actors.games below {games}, or search.slots, which limits the actions of a node"
    # A search of one's own counts as Gumbel search.
    depth = depth or DEPTH.get(str(search.algorithm), DEPTH["gumbel"])
    searches: dict[str, Any] = {"simulations": search.simulations, "depth": depth}
    return Program("device", what, advice, lowered, games, moves, **searches, **_starts(experiment))


def of_one_device(experiment: Experiment, where: Slice) -> Experiment:
    """The experiment as one device plays it: with `inference=device` those of a process share `actors.games`.

    If it names no resources for actors, they play on a host of the slice.
    """
    actors = experiment.actors
    if actors.inference != "device":
        return experiment
    chips = int(sum(actors.resources.values())) or where.chips_of_host
    return experiment.changed(actors={"games": max(1, actors.games // (chips * where.chip.devices))})


def _device_word(devices: list[Any]) -> str:
    chip = chip_of_kind(devices[0].device_kind)
    return "device" if chip is None else chip.device_word


def on_one(tree: Any, device: Any) -> Any:
    """The shapes of `tree` with a sharding that places them on one device."""
    here: Any = NamedSharding(Mesh([device], ("device",)), PartitionSpec())  # type: ignore[no-untyped-call]
    return jax.tree.map(lambda leaf: _Struct(leaf.shape, leaf.dtype, sharding=here), tree)


def _advice(experiment: Experiment, devices: int) -> str:
    """Settings that would reduce the memory of training."""
    config = experiment.learner
    switches = []
    if devices > 1 and not config.mesh.fsdp:
        switches.append("learner.mesh.fsdp=true, which splits weights and optimizer state over the devices")
    # Networks without this setting have nothing to recompute.
    if not getattr(experiment.network, "remat", True):
        switches.append("network.remat=true, which recomputes activations instead of storing them")
    switches.append(f"learner.microbatches={2 * config.microbatches}, which splits the batch into parts")
    switches.append("a slice of more chips" if config.mesh.fsdp else "a smaller network")
    return "; ".join(switches)


def _for_accelerators(experiment: Experiment) -> Experiment:
    """The experiment as on a TPU: `compute_dtype: auto` is bfloat16, and XLA computes all convolutions."""
    dtype = {"compute_dtype": "bfloat16"} if experiment.network.compute_dtype == "auto" else {}
    return experiment.changed(network=dtype, learner={"cpu_convolutions": "xla"})
