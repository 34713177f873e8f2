"""The mesh of devices, and how batches and parameters are sharded over it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_hybrid_device_mesh
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from podzero.config import LearnerConfig, MeshConfig, SplitRule
from podzero.core.errors import ConfigError

AXES = ("slice", "data", "model")
SAMPLE_AXES = ("slice", "data")
"""The axes over which samples are sharded. Parameters are sharded over the others at most (FSDP over `data`), so that
only sums of gradients cross the network between slices."""

TENSOR_PARALLEL = (
    SplitRule(match=r"attention\.qkv\.kernel$", dimension=-2),
    SplitRule(match=r"attention\.out\.kernel$", dimension=-3),
    SplitRule(match=r"mlp\.hidden\.(kernel|bias)$", dimension=-1),
    SplitRule(match=r"mlp\.out\.kernel$", dimension=-2),
    SplitRule(match=r"conv_0\.(kernel|bias|gain)$", dimension=-1),
    SplitRule(match=r"conv_1\.kernel$", dimension=-2),
)
"""How podzero's networks are sharded over `model` (Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053): in each pair
of layers the first by its outputs (heads, hidden units, channels) and the second by its inputs, so that a block needs
one all-reduce."""

_MIN_FSDP_SIZE = 2**14
"""Fully sharded data parallelism replicates leaves with fewer elements: gathering them would cost more than they take.
"""


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None, slices: int = 1) -> Mesh:
    """The learner's mesh over the devices of all hosts, or over `devices`, which are those of so many slices."""
    found = list(devices if devices is not None else jax.devices())
    if len(found) % config.model:
        raise ConfigError(
            f"learner.mesh.model {config.model} does not divide the {len(found)} {found[0].platform} device(s) found; "
            "set one that does"
        )
    here = min(Counter(device.process_index for device in found).values())
    if here % config.model:
        raise ConfigError(
            f"learner.mesh.model {config.model} would split parameters across hosts, which have {here} devices each; "
            f"choose a learner.mesh.model that divides {here}, and learner.mesh.fsdp=true to shard over all hosts"
        )
    shape = (slices, len(found) // slices // config.model, config.model)
    types = (AxisType.Auto,) * len(AXES)
    # Neighbours in the mesh are neighbours in the torus of their slice.
    if config.model == 1 and slices == 1:
        return jax.make_mesh(shape, AXES, types, devices=found)
    if config.model == 1 and found[0].platform == "tpu":
        grid = create_hybrid_device_mesh((1, *shape[1:]), (slices, 1, 1), found, allow_split_physical_axes=True)
    else:
        # The devices that share a parameter stay on one host, so that each host can load its own part of the batch.
        # Hosts are numbered slice by slice.
        by_host = sorted(found, key=lambda device: (device.process_index, device.id))
        grid = np.array(by_host).reshape(shape)
    return Mesh(grid, AXES, axis_types=types)


def check_batch(config: LearnerConfig, mesh: Mesh) -> None:
    """Checks that the devices of the `data` axis, over all slices, get equal parts of each microbatch."""
    data, size = mesh.shape["slice"] * mesh.shape["data"], config.batch_size
    parts = data * config.microbatches
    if size % parts:
        below, above = size // parts * parts, (size // parts + 1) * parts
        sizes = f"{below} or {above}" if below else f"{above}"
        micro = f" times {config.microbatches} microbatches" if config.microbatches > 1 else ""
        raise ConfigError(
            f"learner.batch_size {size} is not divisible by the {data} devices of the mesh's data axis{micro}; "
            f"set learner.batch_size={sizes}, or another learner.mesh.model"
        )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of the batches `[K, B, ...]` of one dispatch: B over `SAMPLE_AXES`."""
    return NamedSharding(mesh, PartitionSpec(None, SAMPLE_AXES))  # type: ignore[no-untyped-call]


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays that every device holds completely."""
    return NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves by their paths, such as `params.Conv_0.kernel`, in the order of `jax.tree.leaves`."""
    return {_name_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def map_named(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """The tree with `function(path, leaf)` in place of each leaf; paths as of `named_leaves`."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: function(_name_of(path), leaf), tree)


def _name_of(path: Any) -> str:
    # Haiku's module names contain slashes.
    return jax.tree_util.keystr(path, simple=True, separator=".").replace("/", ".")


def state_shardings(mesh: Mesh, state: Any, config: MeshConfig) -> Any:
    """A sharding for each leaf of a state (arrays or shapes)."""

    # Paths of optimizer moments and averaged weights end with the path of their parameter, so rules apply to them too.
    def place(name: str, leaf: Any) -> NamedSharding:
        spec = spec_of_leaf(mesh, name, leaf.shape, config)
        return NamedSharding(mesh, PartitionSpec(*spec))  # type: ignore[no-untyped-call]

    return map_named(place, state)


def spec_of_leaf(mesh: Mesh, name: str, shape: tuple[int, ...], config: MeshConfig) -> list[str | None]:
    """The mesh axis over which each dimension of a leaf is sharded; None where it is not."""
    axes: list[str | None] = [None] * len(shape)
    rules = TENSOR_PARALLEL if config.rules is None else config.rules
    rule = next((rule for rule in rules if re.search(rule.match, name)), None)
    if rule is not None and mesh.shape["model"] > 1:
        axes[_dimension(mesh, name, shape, rule)] = "model"
    if config.fsdp and math.prod(shape) >= _MIN_FSDP_SIZE:
        # Fully sharded data parallelism splits the largest dimension that is free and divisible.
        free = [d for d, size in enumerate(shape) if axes[d] is None and size % mesh.shape["data"] == 0]
        if free:
            axes[max(free, key=lambda d: shape[d])] = "data"
    return axes


def _dimension(mesh: Mesh, name: str, shape: tuple[int, ...], rule: SplitRule) -> int:
    devices = mesh.shape["model"]
    if not -len(shape) <= rule.dimension < len(shape):
        raise ConfigError(
            f"learner.mesh.rules: '{rule.match}' splits dimension {rule.dimension} of {name}, which has shape "
            f"{list(shape)}; give one of its {len(shape)} dimensions"
        )
    if shape[rule.dimension] % devices:
        raise ConfigError(
            f"learner.mesh.model {devices} does not divide dimension {rule.dimension} of {name}, {list(shape)}, which "
            f"the rule '{rule.match}' splits; choose a learner.mesh.model that divides {shape[rule.dimension]}"
        )
    return rule.dimension % len(shape)


def placed(shapes: Any, shardings: Any) -> Any:
    """Adds `shardings` to `shapes`, a tree of `jax.ShapeDtypeStruct`."""
    struct: Any = jax.ShapeDtypeStruct
    return jax.tree.map(lambda leaf, sharding: struct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings)


def put_parameter(value: np.ndarray[Any, Any], sharding: Sharding) -> jax.Array:
    """A host array on the devices; with several hosts, each has the whole array and passes its own shards."""
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def put_batch(batch: Any, sharding: Sharding) -> Any:
    """Starts the transfer of a host batch `[K, B, ...]` to the devices and returns at once.

    With several hosts, each passes its own part of B, in the order of the mesh.
    """
    put: Any = jax.make_array_from_process_local_data
    # With several hosts the guard would refuse this transfer.
    with jax.transfer_guard_host_to_device("allow"):
        return jax.tree.map(lambda leaf: put(sharding, np.asarray(leaf)), batch)


def local_part(array: jax.Array) -> np.ndarray[Any, Any]:
    """This host's part of an array `[K, B, ...]` with `batch_sharding`: the samples that it passed to `put_batch`."""
    # Devices along `model` hold copies of the same samples; one copy of each part is enough.
    parts = {shard.index[1].start or 0: shard for shard in array.addressable_shards}
    return np.concatenate([np.asarray(parts[start].data) for start in sorted(parts)], axis=1)
