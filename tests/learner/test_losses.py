from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import LearnerConfig
from podzero.core.types import Network, Prediction, Sample, SoftTargets
from podzero.learner.losses import AUXILIARY_WEIGHT, alphazero_loss, auxiliary_losses
from podzero.networks.layers import VALUE_BINS


def constant_network(logits, value):
    """A network whose outputs are its parameters."""
    return Network(
        init=lambda key: {"logits": np.float32(logits), "value": np.float32(value)},
        apply=lambda params, observation: (params["logits"], params["value"]),
    )


def loss_of(logits, value, legal, target, outcome, *, value_weight=1.0, soft_targets=None, weight=None):
    network = constant_network(logits, value)
    batch = Sample(
        observation=np.zeros((len(value), 1), np.float32),
        legal=np.asarray(legal),
        policy_target=np.float32(target),
        value_target=np.float32(outcome),
        version=np.zeros(len(value), np.int32),
    )

    def objective(params):
        config = LearnerConfig(value_weight=value_weight)
        loss = alphazero_loss(network, config, params, batch, weight, soft_targets)
        return loss.total, loss

    return jax.jit(jax.value_and_grad(objective, has_aux=True))(network.init(None))


def test_loss_is_cross_entropy_plus_weighted_squared_error():
    # Logits (ln 3, 0) give p = (3/4, 1/4); the target (1/2, 1/2) gives -(ln(3/4) + ln(1/4)) / 2 = 0.8369882.
    # The value -0.5 against the outcome 1 gives 2.25.
    (total, loss), _ = loss_of([[np.log(3.0), 0.0]], [-0.5], [[True, True]], [[0.5, 0.5]], [1.0], value_weight=2.0)
    np.testing.assert_allclose(loss.metrics["policy_loss"], 0.8369882, rtol=1e-6)
    np.testing.assert_allclose(loss.metrics["value_loss"], 2.25, rtol=1e-6)
    np.testing.assert_allclose(total, 0.8369882 + 2 * 2.25, rtol=1e-6)


def test_kl_is_cross_entropy_minus_the_entropy_of_the_target():
    # 0.8369882 - ln 2 = 0.1438410.
    (_, loss), _ = loss_of([[np.log(3.0), 0.0]], [0.0], [[True, True]], [[0.5, 0.5]], [0.0])
    np.testing.assert_allclose(loss.metrics["policy_kl"], 0.1438410, rtol=1e-5)


def test_kl_of_the_target_itself_is_zero_with_finite_gradients():
    (_, loss), gradient = loss_of([[0.0, 0.0, -1e9]], [0.0], [[True, True, True]], [[0.5, 0.5, 0.0]], [0.0])
    np.testing.assert_allclose(loss.metrics["policy_kl"], 0.0, atol=1e-6)
    assert np.isfinite(gradient["logits"]).all()


def test_illegal_actions_have_no_effect_and_no_gradient():
    # The large logit is illegal; the policy over the two legal actions is (1/2, 1/2).
    (_, loss), gradient = loss_of([[0.0, 0.0, 50.0]], [0.0], [[True, True, False]], [[1.0, 0.0, 0.0]], [0.0])
    np.testing.assert_allclose(loss.metrics["policy_loss"], np.log(2.0), rtol=1e-6)
    np.testing.assert_allclose(gradient["logits"], [[-0.5, 0.5, 0.0]], atol=1e-6)


def test_the_gradient_of_the_policy_is_policy_minus_target_and_of_the_value_twice_the_error():
    _, gradient = loss_of([[np.log(3.0), 0.0]], [0.25], [[True, True]], [[0.5, 0.5]], [1.0])
    np.testing.assert_allclose(gradient["logits"], [[0.25, -0.25]], atol=1e-6)
    np.testing.assert_allclose(gradient["value"], [-1.5], atol=1e-6)


def test_loss_is_the_mean_over_the_batch():
    (_, loss), _ = loss_of(
        [[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0], [[True, True]] * 2, [[1.0, 0.0], [0.5, 0.5]], [0.0, 0.5]
    )
    np.testing.assert_allclose(loss.metrics["value_loss"], (1.0 + 0.25) / 2, rtol=1e-6)
    np.testing.assert_allclose(loss.metrics["policy_kl"], np.log(2.0) / 2, rtol=1e-6)


def test_metrics_are_divided_by_the_sum_of_the_weights_and_the_loss_by_the_size_of_the_batch():
    """Squared errors 4 and 1 with weights 1/4 and 1: their sum of 2 is divided by 2 samples, or by 5/4. Both policies
    equal their targets, whose entropy ln 2 adds 5/4 ln 2 to the sum.
    """
    (total, loss), gradient = loss_of(
        [[0.0, 0.0]] * 2, [0.0, 0.0], [[True, True]] * 2, [[0.5, 0.5]] * 2, [2.0, 1.0], weight=np.float32([0.25, 1.0])
    )
    np.testing.assert_allclose(total, 1.0 + 5 / 8 * np.log(2.0), rtol=1e-6)
    np.testing.assert_allclose(gradient["value"], [-2 * 2 / 8, -2 / 2], rtol=1e-6)
    expected = {"loss": 1.6 + np.log(2.0), "policy_loss": np.log(2.0), "policy_kl": 0.0, "value_loss": 1.6}
    assert {name: float(found) for name, found in loss.metrics.items()} == pytest.approx(expected, abs=1e-6)


def test_with_a_value_for_each_player_the_squared_error_is_their_mean():
    # Errors 1 - 0.5, -0.5 - 0 and -0.5 - (-1): squares 0.25 each in the first row; 0, 0.09 and 0 in the second.
    values, outcomes = [[0.5, 0.0, -1.0], [0.0, 0.3, 0.0]], [[1.0, -0.5, -0.5], [0.0, 0.0, 0.0]]
    logits, legal, policy = [[0.0, 0.0]] * 2, [[True, True]] * 2, [[0.5, 0.5]] * 2
    (_, loss), gradient = loss_of(logits, values, legal, policy, outcomes)
    np.testing.assert_allclose(loss.metrics["value_loss"], (0.25 + 0.03) / 2, rtol=1e-6)
    np.testing.assert_allclose(loss.errors, [0.5, 0.1], rtol=1e-6)
    np.testing.assert_allclose(gradient["value"][0], np.array([-0.5, 0.5, -0.5]) * 2 / 3 / 2, rtol=1e-6)


def test_distillation_adds_the_weighted_loss_against_the_teacher_s_policy_and_value():
    # The policy (3/4, 1/4) against the teacher's (1/3, 2/3): (-ln(3/4) - 2 ln(1/4)) / 3 = 1.0200903; against the
    # search's (1/2, 1/2): 0.8369882. The value -0.5 against the teacher's 0.5 gives 1, against the outcome 1 it gives
    # 2.25.
    soft_targets = SoftTargets(jnp.array([[1 / 3, 2 / 3, 0.0]]), jnp.array([0.5]), jnp.float32(0.1))
    logits, legal = [[np.log(3.0), 0.0, 50.0]], [[True, True, False]]
    (total, loss), gradient = loss_of(
        logits, [-0.5], legal, [[0.5, 0.5, 0.0]], [1.0], value_weight=2.0, soft_targets=soft_targets
    )
    np.testing.assert_allclose(loss.metrics["teacher_policy_loss"], 1.0200903, rtol=1e-6)
    np.testing.assert_allclose(loss.metrics["teacher_value_loss"], 1.0, rtol=1e-6)
    np.testing.assert_allclose(total, 0.8369882 + 2 * 2.25 + 0.1 * (1.0200903 + 2 * 1.0), rtol=1e-6)
    np.testing.assert_allclose(loss.metrics["loss"], total)
    # Policy minus target, of both targets; the illegal action has no gradient.
    expected = 0.25 + 0.1 * (0.75 - 1 / 3)
    np.testing.assert_allclose(gradient["logits"], [[expected, -expected, 0.0]], atol=1e-6)


def future(outcome, moves_left, reply):
    """Samples of which nothing but the rest of their games matters."""
    numbers = (np.array(numbers, np.int32) for numbers in (outcome, moves_left, reply))
    return Sample(*[np.zeros((len(outcome), 2), np.float32)] * 3, *[np.zeros(len(outcome), np.float32)] * 2, *numbers)


PREDICTION = Prediction(
    outcome=np.log(np.float32([[1.0, 1.0, 2.0]] * 2)),  # won with probability 1/2
    moves_left=np.float32([10.0, 10.0]),
    reply=np.log(np.float32([[3.0, 1.0]] * 2)),
)


def test_auxiliary_losses_by_hand():
    """`-ln(1/2)` and `-ln(1/4)` for the outcomes, `-ln(3/4)` and `-ln(1/4)` for the replies. Moves left are off by 10
    and 40 of the unit 20: `0.5 * 0.5**2` and `2 - 0.5`."""
    losses = jax.jit(auxiliary_losses)(PREDICTION, future([2, 0], [20, 50], [0, 1]))
    np.testing.assert_allclose(losses["outcome"], [np.log(2), np.log(4)], rtol=1e-6)
    np.testing.assert_allclose(losses["moves_left"], [0.125, 1.5], rtol=1e-6)
    np.testing.assert_allclose(losses["reply"], [np.log(4 / 3), np.log(4)], rtol=1e-6)


def test_the_loss_of_ownership_is_the_mean_over_the_squares_by_hand():
    """Two squares: `-ln(1/2)` for one's own, `-ln(1/4)` for nobody's; in the other sample nothing is known."""
    logits = jnp.broadcast_to(jnp.log(jnp.float32([1.0, 1.0, 2.0])), (2, 2, 3))
    samples = future([-1, -1], [-1, -1], [-1, -1])._replace(ownership=np.int8([[2, 1], [-1, -1]]))
    losses = jax.jit(auxiliary_losses)(PREDICTION._replace(ownership=logits), samples)
    np.testing.assert_allclose(losses["ownership"], [(np.log(2) + np.log(4)) / 2, 0.0], rtol=1e-6)


def test_unknown_targets_have_no_loss_and_no_gradient():
    def total(prediction):
        return sum(
            jnp.sum(loss) for loss in auxiliary_losses(prediction, future([-1, -1], [-1, -1], [-1, -1])).values()
        )

    loss, gradient = jax.jit(jax.value_and_grad(total))(PREDICTION)
    assert loss == 0
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(gradient))


def test_the_outcome_that_a_value_is_the_expectation_of_has_the_weight_of_the_value_unless_a_limit_ended_the_game():
    constant = constant_network([[0.0, 0.0]] * 2, [0.25, 0.25])
    outcome = Prediction(PREDICTION.outcome)
    network = constant._replace(
        apply_all=lambda params, seen: (*constant.apply(params, seen), outcome), values_from="outcome"
    )
    batch = future([2, -1], [20, -1], [0, -1])._replace(legal=np.ones((2, 2), bool), policy_target=np.full((2, 2), 0.5))
    loss = jax.jit(partial(alphazero_loss, network, LearnerConfig(value_weight=3.0)))(network.init(None), batch)
    assert {name for name in loss.metrics if name.endswith("_loss")} == {"policy_loss", "value_loss", "outcome_loss"}
    # -ln(1/2) of the game that was won, halved by the mean over both; the squared error against 0 is 1/16.
    np.testing.assert_allclose(loss.metrics["outcome_loss"], np.log(2) / 2, rtol=1e-6)
    np.testing.assert_allclose(loss.total, np.log(2) + 3 * (1 / 16 + np.log(2) / 2), rtol=1e-6)


def test_the_loss_of_a_predicted_distribution_of_the_value_has_the_weight_of_the_value():
    """Uniform logits: whatever the target, its cross-entropy is the logarithm of the number of bins."""
    constant = constant_network([[0.0, 0.0]], [0.0])
    uniform = Prediction(distribution=jnp.zeros((1, len(VALUE_BINS))))
    network = constant._replace(
        apply_all=lambda params, seen: (*constant.apply(params, seen), uniform), values_from="distribution"
    )
    batch = future([2], [20], [0])._replace(
        legal=np.ones((1, 2), bool), policy_target=np.full((1, 2), 0.5), value_target=np.float32([0.25])
    )
    loss = jax.jit(partial(alphazero_loss, network, LearnerConfig(value_weight=3.0)))(network.init(None), batch)
    of_bins = np.log(len(VALUE_BINS))
    np.testing.assert_allclose(loss.metrics["distribution_loss"], of_bins, rtol=1e-6)
    np.testing.assert_allclose(loss.total, np.log(2) + 3 * (1 / 16 + of_bins), rtol=1e-6)


def test_auxiliary_losses_are_added_with_their_weight():
    constant = constant_network([[0.0, 0.0]] * 2, [0.0, 0.0])
    network = constant._replace(apply_all=lambda params, seen: (*constant.apply(params, seen), PREDICTION))
    batch = future([2, 2], [20, 20], [0, 0])._replace(legal=np.ones((2, 2), bool), policy_target=np.full((2, 2), 0.5))
    loss = jax.jit(partial(alphazero_loss, network, LearnerConfig()))(network.init(None), batch)
    np.testing.assert_allclose(loss.metrics["reply_loss"], np.log(4 / 3), rtol=1e-6)
    expected = np.log(2) + AUXILIARY_WEIGHT * (np.log(2) + 0.125 + np.log(4 / 3))
    np.testing.assert_allclose(loss.total, expected, rtol=1e-6)
    np.testing.assert_allclose(loss.metrics["loss"], expected, rtol=1e-6)
