"""Where arrays lie: the mesh, the batch over its `data` axis, and the rules that place parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from podzero.config import ConfigError, MeshConfig

AXES = ("data", "model")

PARAMETER_RULES: tuple[tuple[str, PartitionSpec], ...] = ((r".*", PartitionSpec()),)  # type: ignore[no-untyped-call]
"""Pattern of a leaf's path (as `params.Conv_0.kernel`) and how such leaves are split; the first match decides.

Optimizer moments and averaged weights carry the path of their parameter, so that one rule places all of them.
Everything is replicated today: FSDP or tensor parallelism are lines above the last one.
"""


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The learner's mesh over the devices of all hosts, or over `devices`.

    Raises:
      ConfigError: the devices cannot be laid out as the experiment says.
    """
    found = list(devices if devices is not None else jax.devices())
    data = config.data if config.data > 0 else len(found) // config.model
    if data * config.model == len(found):
        return jax.make_mesh((data, config.model), AXES, (AxisType.Auto,) * 2, devices=found)
    wanted = f"{data} (data)" if config.data > 0 else "all the rest (data)"
    raise ConfigError(
        f"learner.mesh: {wanted} x {config.model} (model) devices do not fit the {len(found)} {found[0].platform} "
        f"device(s) found; set learner.mesh.data=-1 and a learner.mesh.model that divides {len(found)}"
    )


def check_batch(batch_size: int, mesh: Mesh) -> None:
    """Checks that every device of the `data` axis gets the same number of samples.

    Raises:
      ConfigError: the axis does not divide the batch; names the sizes that would do.
    """
    data = mesh.shape["data"]
    if batch_size % data:
        below, above = batch_size // data * data, (batch_size // data + 1) * data
        sizes = f"{below} or {above}" if below else f"{above}"
        raise ConfigError(
            f"learner.batch_size {batch_size} is not divided by the {data} devices of the mesh's data axis; "
            f"set learner.batch_size={sizes}, or another learner.mesh.data"
        )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For the batches `[K, B, ...]` of one dispatch: B is split over `data`."""
    return NamedSharding(mesh, PartitionSpec(None, "data"))  # type: ignore[no-untyped-call]


def leaf_names(tree: Any) -> list[str]:
    """The path of every leaf, as `params.Conv_0.kernel`, in the order of `jax.tree.leaves`."""
    return [name_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def name_of(path: Any) -> str:
    """A key path as dotted words; Haiku's slashes become dots as well."""
    return jax.tree_util.keystr(path, simple=True, separator=".").replace("/", ".")


def state_shardings(mesh: Mesh, state: Any) -> Any:
    """A sharding for each leaf of a state (arrays or shapes), by `PARAMETER_RULES`."""

    def place(path: Any, _: Any) -> NamedSharding:
        name = name_of(path)
        return NamedSharding(mesh, next(spec for pattern, spec in PARAMETER_RULES if re.fullmatch(pattern, name)))

    return jax.tree_util.tree_map_with_path(place, state)


def placed(shapes: Any, shardings: Any) -> Any:
    """`shapes` (a tree of `jax.ShapeDtypeStruct`) with `shardings` written into them."""
    struct: Any = jax.ShapeDtypeStruct
    return jax.tree.map(lambda leaf, sharding: struct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings)


def put_batch(batch: Any, sharding: NamedSharding) -> Any:
    """Starts the transfer of a host batch `[K, B, ...]` to the devices and returns at once.

    With several hosts each brings its own part of B, in the order of the mesh.
    """
    put: Any = jax.make_array_from_process_local_data
    return jax.tree.map(lambda leaf: put(sharding, np.asarray(leaf)), batch)
