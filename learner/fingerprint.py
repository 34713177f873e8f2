"""Fingerprints of sharded arrays, computed on the devices and independent of the sharding.

A digest such as SHA-256 reads an array from front to back, so arrays that are sharded over hosts would have to be
gathered. Here each 32-bit word is hashed together with its position, and the hashes are summed: each device sums its
own shard.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_SALTS = (0x9E3779B9, 0x85EBCA6B)
"""One salt for each of the two sums: the fraction of the golden ratio, and a constant of MurmurHash3."""


def fingerprint(leaf: jax.Array) -> jax.Array:
    """The fingerprint, `[2]` uint32, of an array of any shape whose elements have at most 32 bits.

    Arrays that differ in exactly one word have different fingerprints, because the hash is a bijection of the word.
    Other arrays that differ have equal fingerprints with a probability of about 2**-64. The fingerprint protects
    against damage, not against forgery.
    """
    words, position = _words(leaf), _positions(leaf.shape)
    return jnp.stack([jnp.sum(_mix(words ^ _mix(position + np.uint32(salt))), dtype=jnp.uint32) for salt in _SALTS])


def as_text(value: Any) -> str:
    """A fingerprint as 16 hexadecimal digits."""
    return "".join(f"{int(word):08x}" for word in np.asarray(value))


def _words(leaf: jax.Array) -> jax.Array:
    """The bits of each element as one uint32."""
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
    return jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)


def _positions(shape: tuple[int, ...]) -> jax.Array:
    """The index of each element in row-major order, modulo 2**32."""
    position = jnp.zeros(shape, jnp.uint32)
    for dimension in range(len(shape)):
        stride = np.uint32(math.prod(shape[dimension + 1 :]) % 2**32)
        position += jax.lax.broadcasted_iota(jnp.uint32, shape, dimension) * stride
    return position


def _mix(word: jax.Array) -> jax.Array:
    """The finalizer of MurmurHash3 (Appleby 2011, public domain): a bijection in which each bit affects all 32."""
    word = (word ^ (word >> 16)) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
