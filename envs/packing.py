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
    return jnp.concatenate([to_bytes(_plain(leaf), jnp) for leaf in jax.tree.leaves(states)], axis=1)


def unpack_states(rows: Array, like: EnvState) -> EnvState:
    """Unpacks B states from `rows` `[B, S]` uint8; `like` is a state of the same game, or its shapes. Traceable."""
    assert rows.shape[1:] == (packed_bytes(like),), (rows.shape, packed_bytes(like))
    leaves, structure = jax.tree.flatten(like)
    forms = [*map(_form, leaves)]
    restored = from_bytes(jnp.asarray(rows), [(form.shape, form.dtype) for form in forms], jnp)
    return jax.tree.unflatten(structure, [_as_key(data, leaf) for data, leaf in zip(restored, leaves, strict=True)])


def form_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of a packed array."""
    size = math.prod(shape)
    return math.ceil(size / 8) if dtype == np.bool_ else size * np.dtype(dtype).itemsize


def to_bytes(array: Any, xp: Any) -> Any:
    """`[N, ...]` of any dtype as `[N, bytes]` uint8; `xp` is `numpy` or `jax.numpy`."""
    count, *shape = array.shape
    size = form_bytes(shape, array.dtype)
    if array.dtype == np.bool_:
        return xp.packbits(array.reshape(count, math.prod(shape)), axis=1)
    if xp is np:
        return np.ascontiguousarray(array).view(np.uint8).reshape(count, size)
    return jax.lax.bitcast_convert_type(array, jnp.uint8).reshape(count, size)


def from_bytes(rows: Any, forms: Sequence[tuple[Sequence[int], Any]], xp: Any) -> list[Any]:
    """The inverse of `to_bytes` for several arrays side by side: `[N, bytes]` to `[N, *shape]` for each shape and dtype
    of `forms`.
    """
    ends = np.cumsum([form_bytes(*form) for form in forms])[:-1].tolist()
    return [_restored(part, *form, xp) for part, form in zip(xp.split(rows, ends, axis=1), forms, strict=True)]


def _restored(part: Any, shape: Sequence[int], dtype: Any, xp: Any) -> Any:
    count, size = part.shape[0], math.prod(shape)
    if dtype == np.bool_:
        return xp.unpackbits(part, axis=1, count=size).reshape(count, *shape) != 0
    if xp is np:
        return np.ascontiguousarray(part).view(dtype).reshape(count, *shape)
    width = np.dtype(dtype).itemsize
    return jax.lax.bitcast_convert_type(part.reshape(count, *shape, *((width,) if width > 1 else ())), dtype)


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _plain(leaf: Array) -> jax.Array:
    """The leaf as an array; for PRNG keys the key data."""
    return jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)


def _form(like: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of `_plain` of a leaf, or of its shape."""
    form: jax.ShapeDtypeStruct = jax.eval_shape(_plain, like)
    return form


def _as_key(data: jax.Array, like: Any) -> jax.Array:
    """The leaf whose `_plain` is `data`."""
    return jax.random.wrap_key_data(data, impl=_key_impl(like)) if _is_key(like) else data


def _key_impl(like: Any) -> Any:
    """The PRNG implementation of a key or its shape."""
    impls: list[Any] = []
    # `jax.random.key_impl` takes keys, not shapes, so it is called in a trace.
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), like)
    return impls[0]
