"""Agreement against numbers computed by hand."""

import math

import numpy as np
import pytest

from podzero.inference.agreement import Agreement, agreement


def test_hand_computed_evaluations():
    """First position: p = (3/4, 1/4), q = (1/2, 1/2); second: equal policies."""
    reference = np.array([[math.log(3.0), 0.0, 0.5], [5.0, 7.0, -1.0]], np.float32)
    quantized = np.array([[0.0, 0.0, 0.25], [0.0, 2.0, -0.75]], np.float32)
    found = agreement(reference, quantized, np.ones((2, 2), bool))
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert found == pytest.approx((kl / 2, 0.25, 1.0), rel=1e-5)


def test_another_preferred_action_is_counted():
    reference, quantized = [[1.0, 0.0, 0.0]] * 4, [[0.0, 1.0, 0.0]] * 1 + [[2.0, 0.0, 0.0]] * 3
    found = agreement(np.array(reference), np.array(quantized), np.ones((4, 2), bool))
    assert found.same_move == 0.75


def test_logits_of_illegal_actions_neither_hide_nor_make_errors():
    """The third action is illegal. Over the legal ones p = (3/4, 1/4) and q = (1/2, 1/2) at first, though the illegal
    one would have all the mass; then policies are equal, though illegal logits differ."""
    reference = np.array([[math.log(3.0), 0.0, 50.0, 0.0], [1.0, 2.0, -9.0, 0.0]])
    quantized = np.array([[0.0, 0.0, 50.0, 0.0], [1.0, 2.0, 9.0, 0.0]])
    found = agreement(reference, quantized, np.array([[True, True, False]] * 2))
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert found.policy_kl == pytest.approx(kl / 2)
    assert found.same_move == 1.0


def test_positions_at_the_end_of_a_game_do_not_count():
    reference, quantized = np.zeros((2, 3)), np.array([[0.0, 0.0, 0.5], [0.0, 0.0, 9.0]])
    assert agreement(reference, quantized, np.array([[True, True], [False, False]])) == (0.0, 0.5, 1.0)
    assert not agreement(reference, quantized, np.zeros((2, 2), bool)).is_close


@pytest.mark.parametrize(
    ("kl", "error", "within"), [(0.1, 0.2, True), (0.11, 0.2, False), (0.1, 0.21, False), (math.nan, 0.0, False)]
)
def test_both_limits_hold(limits, kl, error, within):
    limits(0.1, 0.2)
    assert Agreement(kl, error, 1.0).is_close is within
