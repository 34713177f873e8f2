"""How far a quantized evaluation is from the one that it stands for."""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple

import numpy as np

from podzero.config import Int8Config

log = logging.getLogger(__name__)

_ILLEGAL = -1e30
"""The logit of an illegal action; finite, so that differences are numbers."""


class Agreement(NamedTuple):
    """How far two evaluations of the same positions differ. Policies range over the legal actions."""

    policy_kl: float
    """Mean KL divergence of the quantized policy from the other, in nats."""
    value_error: float
    """Mean absolute difference of the values."""
    same_move: float
    """Share of positions where both policies prefer the same action."""

    def within(self, limits: Int8Config) -> bool:
        """Whether the errors are within the limits; False if one is not a number."""
        return self.policy_kl <= limits.max_policy_kl and self.value_error <= limits.max_value_error


class AgreementCheck:
    """Decides for each version of the parameters whether int8 may evaluate it, and reports how far it was off.

    Args:
      limits: of the differences.
    """

    def __init__(self, limits: Int8Config) -> None:
        self._limits = limits
        self._metrics: dict[str, float] = {}
        self._warned = False

    def accepts(self, found: Agreement, reference: str) -> bool:
        """Whether the newest version may be evaluated in int8; the first one that may not is a warning.

        Args:
          found: on positions that were held back from calibration.
          reference: the dtype that int8 is compared with, and in which a version that differs more is evaluated.
        """
        accepted = found.within(self._limits)
        metrics = {f"int8/{name}": value for name, value in found._asdict().items()}
        self._metrics = metrics | {"int8/quantized": float(accepted)}  # at once: other threads read it
        if not accepted and not self._warned:
            self._warned = True
            log.warning(
                "int8 differs too much from %s: policy KL %.4g (int8.max_policy_kl %g), value error %.4g "
                "(int8.max_value_error %g); such versions are evaluated in %s (metric int8/quantized)",
                reference, found.policy_kl, self._limits.max_policy_kl, found.value_error,
                self._limits.max_value_error, reference,
            )  # fmt: skip
        return accepted

    def metrics(self) -> dict[str, float]:
        """The newest version's agreement; `int8/quantized`: 1, or 0 if it was not accepted. Empty before the first."""
        return dict(self._metrics)


def agreement(
    reference: np.ndarray[Any, Any], quantized: np.ndarray[Any, Any], legal: np.ndarray[Any, Any]
) -> Agreement:
    """Compares evaluations `[N, A + 1]`, logits and value side by side, of the same N positions.

    The divergence is `sum_a p(a) (log p(a) - log q(a))` over the legal actions a, with the reference's policy p and the
    quantized policy q. Logits of illegal actions are not trained, and a search does not use them.

    Args:
      reference: the evaluations of which the others are to be near.
      quantized: the others.
      legal: `[N, A]` bool. Positions without a legal action, where a game is over, are left out; if there are no
        others, nothing is known (NaN).
    """
    goes_on = legal.any(axis=1)
    if not goes_on.any():
        return Agreement(math.nan, math.nan, math.nan)
    reference, quantized, legal = reference[goes_on], quantized[goes_on], legal[goes_on]
    log_p, log_q = _log_policy(reference[:, :-1], legal), _log_policy(quantized[:, :-1], legal)
    return Agreement(
        policy_kl=float(np.mean(np.sum(np.where(legal, np.exp(log_p) * (log_p - log_q), 0.0), axis=1))),
        value_error=float(np.mean(np.abs(reference[:, -1] - quantized[:, -1]))),
        same_move=float(np.mean(log_p.argmax(axis=1) == log_q.argmax(axis=1))),
    )


def _log_policy(logits: np.ndarray[Any, Any], legal: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Log-probabilities of the legal actions; those of illegal ones are very small numbers."""
    masked = np.where(legal, logits, _ILLEGAL)
    shifted = masked - masked.max(axis=1, keepdims=True)
    normalized: np.ndarray[Any, Any] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalized
