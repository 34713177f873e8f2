"""The dynamics of the optimum are gymnasium's, and interpolation is exact on the grid."""

import gymnasium
import numpy as np
import pytest

from podzero.benchmarks.pendulum_optimum import ANGLES, VELOCITIES, interpolated, moved


def test_states_move_and_are_rewarded_as_in_gymnasium():
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=0)
    angle, velocity = np.array([3.0]), np.array([0.5])
    env.unwrapped.state = np.array([3.0, 0.5])
    for torque in (2.0, -2.0, 0.5, 2.0, 2.0, -1.0):
        observed, rewarded, *_ = env.step(np.array([torque], np.float32))
        angle, velocity, reward = moved(angle, velocity, torque)
        np.testing.assert_allclose(observed, [np.cos(angle[0]), np.sin(angle[0]), velocity[0]], rtol=1e-5)
        assert reward[0] == pytest.approx(rewarded, rel=1e-5)


def test_a_plane_is_interpolated_exactly():
    """4 angles and 3 velocities to the value: 4 * 1.0 - 3 * 2.5 = -3.5."""
    angles, velocities = np.linspace(-np.pi, np.pi, ANGLES), np.linspace(-8, 8, VELOCITIES)
    plane = 4 * angles[:, None] - 3 * velocities[None]
    np.testing.assert_allclose(interpolated(plane, np.array([1.0]), np.array([2.5])), [-3.5])
    assert interpolated(plane, np.array([np.pi]), np.array([8.0]))[0] == pytest.approx(4 * np.pi - 24)
