"""The programs that a slice runs, lowered for devices that need not exist."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from podzero.chips import Slice
from podzero.config import Experiment
from podzero.errors import ConfigError

if TYPE_CHECKING:
    from podzero.types import EnvSpec, Sample


class Program(NamedTuple):
    """One program of a run."""

    name: str
    what: str
    """In words, with its sizes."""
    advice: str
    """The switches that would make it smaller, the cheapest first."""
    lower: Callable[[], Any]
    """Gives the `jax.stages.Lowered` of it."""


def devices_of(where: Slice) -> list[Any]:
    """The devices of a slice as the TPU compiler describes them; no TPU is touched.

    Must run in a process that has not used jax yet.

    Raises:
      ConfigError: libtpu is missing.
    """
    if find_spec("libtpu") is None:
        raise ConfigError(
            "the TPU compiler is missing: install libtpu, as `uv sync --extra tpu` or `pip install 'podzero[tpu]'` do"
        )
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Nobody of Google's Cloud answers here, so libtpu is told what it would ask.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", f"{where.chip.name}-{where.chips}")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    from jax.experimental import topologies

    options: dict[str, Any] = {}
    if where.chip.name == "v4":  # the compiler does not know its hosts by itself
        options = {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1), "wrap": (False,) * 3}
    if where.chips == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    shape = "x".join(map(str, where.shape))
    described = topologies.get_topology_desc(platform="tpu", topology_name=f"{where.chip.name}:{shape}", **options)
    return list(described.devices)


def programs_of(experiment: Experiment, devices: list[Any]) -> list[Program]:
    """What the slice runs: the learner's dispatch on all devices, and on each chip the programs beside it.

    Raises:
      ConfigError: the mesh does not fit the devices, or the batch the mesh.
    """
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from podzero.envs import make_env
    from podzero.launch.build import actor_parts
    from podzero.learner import make_training
    from podzero.networks import make_inference, make_network

    experiment = _for_accelerators(experiment)
    env, config = make_env(experiment.env.name), experiment.learner
    network = make_network(experiment.network, env.spec)
    training = make_training(experiment, network, env.spec, env.symmetries, devices)
    steps, batch, games = config.steps_per_dispatch, config.batch_size, experiment.actors.games

    here: Any = NamedSharding(Mesh(devices[:1], ("chip",)), PartitionSpec())  # type: ignore[no-untyped-call]
    struct: Any = jax.ShapeDtypeStruct

    def on_chip(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: struct(leaf.shape, leaf.dtype, sharding=here), tree)

    def learner() -> Any:
        sample = _sample_shapes(env.spec, (steps, batch), training.batch_sharding)
        step: Any = training.step
        return step.lower(training.like, sample)

    def evaluation() -> Any:
        fold, inference = make_inference(experiment.network, env.spec)
        params = jax.eval_shape(lambda: fold(network.init(jax.random.key(0))))
        observation = struct((games, *env.spec.observation_shape), env.spec.observation_dtype, sharding=here)
        return jax.jit(inference.apply).lower(on_chip(params), observation)

    def selfplay() -> Any:
        core, fold = actor_parts(experiment)
        params = jax.eval_shape(lambda: fold(network.init(jax.random.key(0))))
        state = jax.eval_shape(core.init, jax.random.key(0))
        return jax.jit(core.move, donate_argnums=1).lower(on_chip(params), on_chip(state))

    search = f"{experiment.search.simulations} simulations"
    training_advice = _advice(experiment, len(devices))
    fewer = f"actors.games below {games}"
    return [
        Program(
            "learner", f"{steps} steps on batches of {batch:,} over {len(devices)} chips", training_advice, learner
        ),
        Program("evaluation", f"the network on {games:,} positions, one chip", fewer, evaluation),
        Program(
            "selfplay",
            f"a move of {games:,} games, {search}, one chip",
            f"{fewer}, or search.simulations below {experiment.search.simulations}",
            selfplay,
        ),
    ]


def _advice(experiment: Experiment, chips: int) -> str:
    """What makes training smaller and is not switched on yet."""
    config = experiment.learner
    switches = []
    if chips > 1 and not config.mesh.fsdp:
        switches.append("learner.mesh.fsdp=true, which splits weights and optimizer state over the chips")
    if not experiment.network.remat:
        switches.append("network.remat=true, which computes activations twice instead of keeping them")
    switches.append(f"learner.microbatches={2 * config.microbatches}, which takes the batch in parts")
    switches.append("a slice of more chips" if config.mesh.fsdp else "a smaller network")
    return "; ".join(switches)


def _for_accelerators(experiment: Experiment) -> Experiment:
    """With the compute dtype that `auto` means on a TPU."""
    if experiment.network.compute_dtype != "auto":
        return experiment
    network = experiment.network.model_copy(update={"compute_dtype": "bfloat16"})
    return experiment.model_copy(update={"network": network})


def _sample_shapes(spec: EnvSpec, leading: tuple[int, ...], sharding: Any) -> Sample:
    """A dispatch of samples without data."""
    import jax

    from podzero.replay import SampleSignature
    from podzero.types import Sample

    struct: Any = jax.ShapeDtypeStruct
    fields = SampleSignature(spec, bundle=1).fields
    return Sample(**{field.name: struct(leading + field.shape, field.dtype, sharding=sharding) for field in fields})
