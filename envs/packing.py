"""Packs game states into rows of bytes and unpacks them without loss; arrays as bytes, in NumPy and in JAX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import Array, EnvState


def packed_bytes(like: EnvState) -> int:
    """Bytes of one packed state; `like` is a state or its shapes, such as `jax.eval_shape(env.init, key)`."""
    return sum(form_bytes(form.shape, form.dtype) for form in map(_form, jax.tree.leaves(like)))


def pack_states(states: EnvState) -> jax.Array:
    """Packs B states (a leading axis on every leaf) into `[B, S]` uint8, without loss; traceable.

    A row is the concatenation of the leaves in tree order: bools as bits, others in the byte order of the machine.
    """
    return jnp.concatenate([to_bytes(plain(leaf), jnp) for leaf in jax.tree.leaves(states)], axis=1)


def unpack_states(rows: Array, like: EnvState) -> EnvState:
    """Unpacks B states from `rows` `[B, S]` uint8; `like` is a state of the same game, or its shapes. Traceable."""
    assert rows.shape[1:] == (packed_bytes(like),), (rows.shape, packed_bytes(like))
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([packed_bytes(leaf) for leaf in leaves])[:-1]
    parts = jnp.split(jnp.asarray(rows), ends.tolist(), axis=1)
    return jax.tree.unflatten(structure, [_restored(part, leaf) for part, leaf in zip(parts, leaves, strict=True)])


def form_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of a packed array."""
    size = math.prod(shape)
    return math.ceil(size / 8) if dtype == np.bool_ else size * np.dtype(dtype).itemsize


def to_bytes(array: Any, xp: Any) -> Any:
    """`[N, ...]` of any dtype as `[N, bytes]` uint8; `xp` is `numpy` or `jax.numpy`."""
    flat = array.reshape(len(array), math.prod(array.shape[1:]))
    if array.dtype == np.bool_:
        return xp.packbits(flat, axis=1)
    return (np.ascontiguousarray(flat) if xp is np else flat).view(np.uint8)


def from_bytes(rows: Any, shape: Sequence[int], dtype: Any, xp: Any) -> Any:
    """The inverse of `to_bytes`: `[N, bytes]` uint8 to `[N, *shape]`."""
    bits = dtype == np.bool_
    flat = xp.unpackbits(rows, axis=1, count=math.prod(shape)) != 0 if bits else rows.view(dtype)
    return flat.reshape(len(rows), *shape)


def is_key(leaf: Any) -> bool:
    """Whether a leaf, or its shape, is of PRNG keys."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def plain(leaf: Array) -> jax.Array:
    """The leaf as an array; for PRNG keys the key data."""
    return jax.random.key_data(leaf) if is_key(leaf) else jnp.asarray(leaf)


def _form(like: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of `plain` of a leaf, or of its shape."""
    form: jax.ShapeDtypeStruct = jax.eval_shape(plain, like)
    return form


def _restored(rows: jax.Array, like: Any) -> jax.Array:
    """The leaf of B states from `[B, bytes]`."""
    form = _form(like)
    data: jax.Array = from_bytes(rows, form.shape, form.dtype, jnp)
    return jax.random.wrap_key_data(data, impl=_key_impl(like)) if is_key(like) else data


def _key_impl(like: Any) -> Any:
    """The PRNG implementation of a key or its shape."""
    impls: list[Any] = []
    # `jax.random.key_impl` takes keys, not shapes, so it is called in a trace.
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), like)
    return impls[0]
