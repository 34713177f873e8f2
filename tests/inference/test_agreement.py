"""Agreement against numbers computed by hand."""

import math

import numpy as np
import pytest

from podzero.config import Int8Config
from podzero.inference import Agreement, agreement


def test_hand_computed_evaluations():
    """First position: p = (3/4, 1/4), q = (1/2, 1/2); second: equal policies."""
    reference = np.array([[math.log(3.0), 0.0, 0.5], [5.0, 7.0, -1.0]], np.float32)
    quantized = np.array([[0.0, 0.0, 0.25], [0.0, 2.0, -0.75]], np.float32)
    found = agreement(reference, quantized)
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert found == pytest.approx((kl / 2, 0.25, 1.0), rel=1e-5)


def test_another_preferred_action_is_counted():
    found = agreement(np.array([[1.0, 0.0, 0.0]] * 4), np.array([[0.0, 1.0, 0.0]] * 1 + [[2.0, 0.0, 0.0]] * 3))
    assert found.same_move == 0.75


@pytest.mark.parametrize(
    ("kl", "error", "within"), [(0.1, 0.2, True), (0.11, 0.2, False), (0.1, 0.21, False), (math.nan, 0.0, False)]
)
def test_both_limits_hold(kl, error, within):
    assert Agreement(kl, error, 1.0).within(Int8Config(max_policy_kl=0.1, max_value_error=0.2)) is within
