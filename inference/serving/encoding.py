"""Positions as rows of bytes, in which actors send them to an inference server."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.envs import pack_states, unpack_states
from podzero.protocols import Env
from podzero.types import Array, EnvState


class Encoding(NamedTuple):
    """How a position travels: in the fewest bytes from which the server can make its observation."""

    name: str
    """`bits` of a boolean observation, the packed `state` of the game, or the `values` of an observation."""
    row_bytes: int
    """S, the bytes of a position."""
    encode: Callable[[EnvState], jax.Array]
    """States `[B, ...]` to rows `[B, S]` uint8; traceable."""
    decode: Callable[[Array], jax.Array]
    """Rows `[B, S]` uint8 to observations `[B, *observation_shape]`; traceable."""
    legal: Callable[[Array], jax.Array] | None = None
    """Rows `[B, S]` uint8 to legal actions `[B, A]` bool; traceable. None if rows do not hold them."""


def encoding_of(env: Env, with_legal: bool = False) -> Encoding:
    """The encoding of a game's positions; `with_legal` their legal actions travel too, for comparisons of policies."""
    encoding = _encoding(env)
    if not with_legal or encoding.legal is not None:
        return encoding
    own, actions, view = encoding.row_bytes, env.spec.num_actions, jax.vmap(env.view)

    def encode(states: EnvState) -> jax.Array:
        legal = jnp.packbits(jnp.asarray(view(states).legal), axis=1)
        return jnp.concatenate([encoding.encode(states), legal], axis=1)

    return Encoding(
        encoding.name,
        own + math.ceil(actions / 8),
        encode,
        lambda rows: encoding.decode(rows[:, :own]),
        lambda rows: jnp.unpackbits(jnp.asarray(rows)[:, own:], axis=1, count=actions) != 0,
    )


def _encoding(env: Env) -> Encoding:
    spec = env.spec
    elements, dtype = math.prod(spec.observation_shape), np.dtype(spec.observation_dtype)
    bits = dtype == np.bool_
    own = math.ceil(elements / 8) if bits else elements * dtype.itemsize
    view = jax.vmap(env.view)

    def observation(states: EnvState) -> jax.Array:
        seen = jnp.asarray(view(states).observation)
        return seen.reshape(seen.shape[0], elements)

    def shaped(flat: jax.Array) -> jax.Array:
        return flat.reshape(flat.shape[0], *spec.observation_shape)

    if spec.state_bytes and spec.state_bytes < own:
        like = jax.eval_shape(env.init, jax.random.key(0))
        return Encoding(
            "state",
            spec.state_bytes,
            pack_states,
            lambda rows: jnp.asarray(view(unpack_states(rows, like)).observation),
            lambda rows: jnp.asarray(view(unpack_states(rows, like)).legal),
        )
    if bits:
        return Encoding(
            "bits",
            own,
            lambda states: jnp.packbits(observation(states), axis=1),
            lambda rows: shaped(jnp.unpackbits(jnp.asarray(rows), axis=1, count=elements) != 0),
        )
    return Encoding(
        "values",
        own,
        lambda states: pack_states(observation(states).astype(dtype)),
        lambda rows: shaped(unpack_states(rows, np.zeros(elements, dtype))),
    )
