"""Packs game states into rows of bytes and unpacks them without loss."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import Array, EnvState


def packed_bytes(like: EnvState) -> int:
    """Bytes of one packed state; `like` is a state or its shapes, such as `jax.eval_shape(env.init, key)`."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in map(_form, jax.tree.leaves(like)))


def pack_states(states: EnvState) -> jax.Array:
    """Packs B states (a leading axis on every leaf) into `[B, S]` uint8, without loss; traceable.

    A row is the concatenation of the leaves in tree order, each in the byte order of the machine.
    """
    return jnp.concatenate([_bytes(_plain(leaf)) for leaf in jax.tree.leaves(states)], axis=1)


def unpack_states(rows: Array, like: EnvState) -> EnvState:
    """Unpacks B states from `rows` `[B, S]` uint8; `like` is a state of the same game, or its shapes. Traceable."""
    assert rows.shape[1:] == (packed_bytes(like),), (rows.shape, packed_bytes(like))
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([packed_bytes(leaf) for leaf in leaves])[:-1]
    parts = jnp.split(jnp.asarray(rows), ends.tolist(), axis=1)
    return jax.tree.unflatten(structure, [_restored(part, leaf) for part, leaf in zip(parts, leaves, strict=True)])


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _plain(leaf: Array) -> jax.Array:
    """The leaf as an array; for PRNG keys the key data."""
    return jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)


def _form(like: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of `_plain` of a leaf, or of its shape."""
    form: jax.ShapeDtypeStruct = jax.eval_shape(_plain, like)
    return form


def _bytes(leaf: jax.Array) -> jax.Array:
    """`[B, ...]` of any dtype as `[B, n]` uint8."""
    # A bool is one byte already, and XLA has no bitcast for it.
    if leaf.dtype != np.bool_:
        leaf = jax.lax.bitcast_convert_type(leaf, jnp.uint8)
    return leaf.astype(jnp.uint8).reshape(leaf.shape[0], math.prod(leaf.shape[1:]))


def _restored(rows: jax.Array, like: Any) -> jax.Array:
    """The inverse of `_bytes`: `[B, n]` uint8 to `[B, *like.shape]` in the dtype of `like`."""
    plain = _form(like)
    lead, size = rows.shape[0], plain.dtype.itemsize
    if plain.dtype == np.bool_:
        data = rows.reshape(lead, *plain.shape) != 0
    else:
        width = (size,) if size > 1 else ()
        data = jax.lax.bitcast_convert_type(rows.reshape(lead, *plain.shape, *width), plain.dtype)
    return jax.random.wrap_key_data(data, impl=_key_impl(like)) if _is_key(like) else data


def _key_impl(like: Any) -> Any:
    """The PRNG implementation of a key or its shape."""
    impls: list[Any] = []
    # `jax.random.key_impl` takes keys, not shapes, so it is called in a trace.
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), like)
    return impls[0]
