"""How far a quantized evaluation is from float32."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from podzero.config import Int8Config


class Agreement(NamedTuple):
    """How far two evaluations of the same positions differ. Policies range over all actions."""

    policy_kl: float
    """Mean KL divergence of the quantized from the float32 policy, in nats."""
    value_error: float
    """Mean absolute difference of the values."""
    same_move: float
    """Share of positions where both policies prefer the same action."""

    def within(self, limits: Int8Config) -> bool:
        """Whether the errors are within the limits; False if one is not a number."""
        return self.policy_kl <= limits.max_policy_kl and self.value_error <= limits.max_value_error


def agreement(reference: np.ndarray[Any, Any], quantized: np.ndarray[Any, Any]) -> Agreement:
    """Compares evaluations `[N, A + 1]`, logits and value side by side, of the same N positions.

    The divergence is `sum_a p(a) (log p(a) - log q(a))` with the float32 policy p and the quantized policy q.
    """
    log_p, log_q = _log_softmax(reference[:, :-1]), _log_softmax(quantized[:, :-1])
    return Agreement(
        policy_kl=float(np.mean(np.sum(np.exp(log_p) * (log_p - log_q), axis=1))),
        value_error=float(np.mean(np.abs(reference[:, -1] - quantized[:, -1]))),
        same_move=float(np.mean(log_p.argmax(axis=1) == log_q.argmax(axis=1))),
    )


def _log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    normalized: np.ndarray[Any, Any] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalized
