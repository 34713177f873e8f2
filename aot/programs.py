"""The programs that a slice runs, lowered for devices that need not exist."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import Any, NamedTuple

from podzero.chips import Slice
from podzero.config import Experiment, GameConfig
from podzero.errors import ConfigError

NAMES = ("learner", "evaluation", "selfplay")
"""Of all programs. The first depends on the slice, the others only on the chip; the last only games in JAX have."""


def names_of(experiment: Experiment) -> tuple[str, ...]:
    """The programs of an experiment, of `NAMES`."""
    return NAMES if isinstance(experiment.env, GameConfig) else NAMES[:2]


class Program(NamedTuple):
    """One program of a run."""

    name: str
    what: str
    """In words, with its sizes."""
    advice: str
    """The switches that would make it smaller, the cheapest first."""
    lower: Callable[[], Any]
    """Gives the `jax.stages.Lowered` of it."""
    batch: int
    """Samples of a step, positions, or games."""
    trip_count: int = 1
    """Steps in one execution."""
    parameter_bytes: int = 0
    """Of the parameters that it trains."""


def check_compiler() -> None:
    """Checks that there is one.

    Raises:
      ConfigError: libtpu is missing.
    """
    if find_spec("libtpu") is None:
        raise ConfigError(
            "the TPU compiler is missing: install libtpu, as `uv sync --extra tpu` or `pip install 'podzero[tpu]'` do"
        )


def devices_of(where: Slice) -> list[Any]:
    """The devices of a slice as the TPU compiler describes them; no TPU is touched.

    Must run in a process that has not used jax yet.

    Raises:
      ConfigError: libtpu is missing.
    """
    check_compiler()
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Nobody of Google's Cloud answers here, so libtpu is told what it would ask.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    # It guards its chips with a lock, but a compiler may run beside another one, or beside a training run.
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
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


def programs_of(experiment: Experiment, devices: list[Any], names: Collection[str] = NAMES) -> list[Program]:
    """What the slice runs: the learner's dispatch on all devices, and on each chip the programs beside it.

    Args:
      experiment: what is run.
      devices: of the slice, as `devices_of` gives them.
      names: the programs that are wanted, of `NAMES`; those that the experiment does not have are left out.

    Raises:
      ConfigError: nothing is left; or, where the learner is wanted, the mesh does not fit the devices or the batch the
        mesh.
    """
    experiment = _for_accelerators(experiment)
    makers = {"learner": _learner, "evaluation": _evaluation, "selfplay": _selfplay}
    wanted = [name for name in names_of(experiment) if name in names]
    if not wanted:
        raise ConfigError(
            f"{experiment.env.title} is not played on chips: its programs are {' and '.join(names_of(experiment))}"
        )
    return [makers[name](experiment, devices) for name in wanted]


def _learner(experiment: Experiment, devices: list[Any]) -> Program:
    import jax

    from podzero.driver.build import learner_parts
    from podzero.learner import make_training
    from podzero.learner.sharding import placed
    from podzero.samples import sample_like, with_axes
    from podzero.types import Batch

    config = experiment.learner
    network, spec, symmetries = learner_parts(experiment)
    training = make_training(experiment, network, spec, symmetries, devices)
    steps, batch = config.steps_per_dispatch, config.batch_size

    def lower() -> Any:
        samples = with_axes(sample_like(experiment, spec), steps, batch)
        shardings = jax.tree.map(lambda _: training.batch_sharding, samples)
        step: Any = training.step
        return step.lower(training.like, Batch(placed(samples, shardings)))

    return Program(
        "learner",
        f"{steps} steps on batches of {batch:,} over {len(devices)} chips",
        _advice(experiment, len(devices)),
        lower,
        batch,
        trip_count=steps,
        parameter_bytes=sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(training.like.params)),
    )


def _evaluation(experiment: Experiment, devices: list[Any]) -> Program:
    import jax

    from podzero.driver.build import acting_network
    from podzero.envs import spec_of

    spec, games = spec_of(experiment.env), experiment.actors.games

    def lower() -> Any:
        init, predict = acting_network(experiment, spec)
        params = jax.eval_shape(init, jax.random.key(0))
        struct: Any = jax.ShapeDtypeStruct
        observation = struct((games, *spec.observation_shape), spec.observation_dtype)
        return jax.jit(predict).lower(*_on_chip((params, observation), devices[0]))

    return Program(
        "evaluation", f"the network on {games:,} positions, one chip", f"actors.games below {games}", lower, games
    )


def _selfplay(experiment: Experiment, devices: list[Any]) -> Program:
    import jax

    from podzero.driver.build import actor_parts
    from podzero.envs import spec_of
    from podzero.networks import make_network

    games, simulations = experiment.actors.games, experiment.search.simulations

    def lower() -> Any:
        core, fold = actor_parts(experiment)
        network = make_network(experiment.network, spec_of(experiment.env))
        params = jax.eval_shape(lambda: fold(network.init(jax.random.key(0))))
        state = jax.eval_shape(core.init, jax.random.key(0))
        return jax.jit(core.move, donate_argnums=1).lower(*_on_chip((params, state), devices[0]))

    return Program(
        "selfplay",
        f"a move of {games:,} games, {simulations} simulations, one chip",
        f"actors.games below {games}, or search.simulations below {simulations}",
        lower,
        games,
    )


def _on_chip(tree: Any, device: Any) -> Any:
    """Shapes with the sharding that puts them on one chip."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    here: Any = NamedSharding(Mesh([device], ("chip",)), PartitionSpec())  # type: ignore[no-untyped-call]
    struct: Any = jax.ShapeDtypeStruct
    return jax.tree.map(lambda leaf: struct(leaf.shape, leaf.dtype, sharding=here), tree)


def _advice(experiment: Experiment, chips: int) -> str:
    """What makes training smaller and is not switched on yet."""
    config = experiment.learner
    switches = []
    if chips > 1 and not config.mesh.fsdp:
        switches.append("learner.mesh.fsdp=true, which splits weights and optimizer state over the chips")
    if not getattr(experiment.network, "remat", True):
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
