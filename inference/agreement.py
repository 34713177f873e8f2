"""The errors of int8 against the float network, and the positions on which it is calibrated and compared."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import special

from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState
from podzero.inference.evaluation_cache import Rows

EVERY = 64
"""Every 64th batch is stored. A move evaluates simulations + 1 batches, often 33; without a common factor, all depths
of the tree are sampled."""
CALIBRATION_POSITIONS = 512
"""Positions for calibration (three quarters) and comparison (one quarter): from random play at first, then those that
the actor's searches or the server evaluated last, or with `actors.inference=device` those played last."""
HELD_BACK = 4
"""Every fourth position is held back from calibration for the comparison."""
_LONGEST = 256
"""Plies after which random play ends."""


class CalibrationPositions(NamedTuple):
    """N positions for calibrating and comparing int8."""

    observation: Rows
    """`[N, *observation_shape]`."""
    legal: Rows
    """`[N, A]` bool; all False in terminal positions."""


Decode = Callable[[Any], CalibrationPositions]
"""Extracts the positions of a batch."""
_Play = tuple[jax.Array, EnvState, EnvState]
"""Plies so far, states, and those drawn so far."""


class RecentPositions:
    """A ring of N positions sampled from recent batches; thread-safe."""

    def __init__(self, first: CalibrationPositions, every: int = EVERY, decode: Decode = lambda batch: batch) -> None:
        """Starts with N positions; `decode` extracts those of a batch, of which one of so many is stored."""
        self._positions = CalibrationPositions(*(field.copy() for field in first))
        self._every, self._decode = every, decode
        self._lock = threading.Lock()
        self._batches = self._next = 0

    def add(self, batch: Any) -> None:
        """Stores up to N positions of every `every`-th batch."""
        self._batches += 1
        if self._batches % self._every:
            return
        size, decoded = len(self._positions.legal), self._decode(batch)
        count = min(size, len(decoded.legal))
        with self._lock:
            places = (self._next + np.arange(count)) % size
            for field, new in zip(self._positions, decoded, strict=True):
                field[places] = new[:count]
            self._next = (self._next + count) % size

    def split(self) -> tuple[CalibrationPositions, CalibrationPositions]:
        """Copies of the positions for calibration and of those held back for comparison."""
        held_back = np.arange(len(self._positions.legal)) % HELD_BACK == HELD_BACK - 1
        with self._lock:
            calibration, others = ([field[mask] for field in self._positions] for mask in (~held_back, held_back))
        return CalibrationPositions(*calibration), CalibrationPositions(*others)


def random_positions(env: Env, key: Array, count: int = CALIBRATION_POSITIONS) -> CalibrationPositions:
    """The positions of `random_states`."""
    seen = jax.jit(lambda: jax.vmap(env.view)(random_states(env, key, count)))()
    return CalibrationPositions(*jax.device_get((seen.observation, seen.legal)))


def random_states(env: Env, key: Array, count: int) -> EnvState:
    """`count` non-terminal states, one from each of as many uniformly random games.

    A game's state is drawn uniformly, by reservoir sampling. Games are cut off after `_LONGEST` plies.
    """
    view, step = jax.vmap(env.view), jax.vmap(env.step)

    def ply(carry: _Play) -> _Play:
        i, states, drawn = carry
        seen = view(states)
        choice_key, move_key = jax.random.split(jax.random.fold_in(key, i))
        # Reservoir sampling: state i + 1 replaces the one drawn so far with probability 1 / (i + 1).
        draws = (jax.random.uniform(choice_key, (count,)) * (i + 1) < 1.0) & ~seen.done
        action = jax.random.categorical(move_key, jnp.where(seen.legal, 0.0, -jnp.inf)).astype(jnp.int32)
        return i + 1, step(states, action), jax.vmap(optax.tree.where)(draws, states, drawn)

    def running(carry: _Play) -> jax.Array:
        i, states, _ = carry
        return (i < _LONGEST) & ~jnp.all(view(states).done)

    def play() -> EnvState:
        # The plies have folded in the numbers below this one.
        states = jax.vmap(env.init)(jax.random.split(jax.random.fold_in(key, _LONGEST), count))
        return jax.lax.while_loop(running, ply, (jnp.zeros((), jnp.int32), states, states))[2]

    return jax.jit(play)()


log = logging.getLogger(__name__)

_ILLEGAL = -1e30
"""Logit of an illegal action; finite, so that differences are never NaN."""
MAX_POLICY_KL, MAX_VALUE_ERROR = 0.02, 0.05
"""The largest errors, in the mean, of a version that is evaluated in int8."""


class Agreement(NamedTuple):
    """Differences between two evaluations of the same positions, over legal actions."""

    policy_kl: float
    """Mean KL divergence of the quantized policy from the reference, in nats."""
    value_error: float
    """Mean absolute difference of the values."""
    same_move: float
    """Share of positions in which both policies prefer the same action."""

    @property
    def is_close(self) -> bool:
        """Whether the errors are within the limits; False for NaN."""
        return self.policy_kl <= MAX_POLICY_KL and self.value_error <= MAX_VALUE_ERROR


class AgreementCheck:
    """Decides for each version of the parameters whether int8 may evaluate it, and reports the errors."""

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}
        self._warned = False

    def accepts(self, expected: Rows, quantized: Rows, legal: Rows, reference: str) -> bool:
        """Whether the newest version may be evaluated in int8; warns about the first one that may not.

        The evaluations are compared as by `agreement`, on positions held back from calibration. `reference` is the
        dtype of the expected ones, in which refused versions are evaluated.
        """
        found = agreement(expected, quantized, legal)
        accepted = found.is_close
        metrics = {f"int8/{name}": value for name, value in found._asdict().items()}
        # One assignment, since other threads read it.
        self._metrics = metrics | {"int8/quantized": float(accepted)}
        if not accepted and not self._warned:
            self._warned = True
            log.warning(
                "int8 differs too much from %s: policy KL %.4g (at most %g), value error %.4g "
                "(at most %g); such versions are evaluated in %s (metric int8/quantized)",
                reference, found.policy_kl, MAX_POLICY_KL, found.value_error, MAX_VALUE_ERROR, reference,
            )  # fmt: skip
        return accepted

    def metrics(self) -> dict[str, float]:
        """The newest version's `Agreement`, and `int8/quantized`, 1 if it was accepted; empty before the first one."""
        return dict(self._metrics)


def agreement(reference: Rows, quantized: Rows, legal: Rows) -> Agreement:
    """Compares evaluations `[N, A + 1]` (logits, then the value) of the same N positions.

    The divergence is `sum_a p(a) (log p(a) - log q(a))` over the legal actions a, with the reference's policy p and the
    quantized policy q. Positions without legal actions, which are terminal, are left out; if none remain, the result is
    NaN. `legal` is `[N, A]` bool.
    """
    open_ = legal.any(axis=1)
    if not open_.any():
        return Agreement(math.nan, math.nan, math.nan)
    reference, quantized, legal = reference[open_], quantized[open_], legal[open_]
    masked = (np.where(legal, each[:, :-1], _ILLEGAL) for each in (reference, quantized))
    log_p, log_q = (special.log_softmax(logits, axis=1) for logits in masked)
    return Agreement(
        policy_kl=float(np.mean(np.sum(np.where(legal, np.exp(log_p) * (log_p - log_q), 0.0), axis=1))),
        value_error=float(np.mean(np.abs(reference[:, -1] - quantized[:, -1]))),
        same_move=float(np.mean(log_p.argmax(axis=1) == log_q.argmax(axis=1))),
    )
