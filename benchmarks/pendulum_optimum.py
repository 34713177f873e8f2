"""The best mean return that any policy gets in Pendulum-v1, by dynamic programming over its 200 steps.

    uv run --group dev python benchmarks/pendulum_optimum.py [--discount 0.98]

Values are interpolated on a grid of angles and velocities. The greedy policy of these values then plays the exact
dynamics from random starts, so that its return is a lower bound of the optimum; the values themselves are close to it.
With a discount below 1 it is the best policy of an agent that discounts rewards by it at each step and does not know
how many steps are left, as podzero's do; the returns that are told are not discounted.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
from numpy.typing import NDArray

STEPS = 200
ANGLES, VELOCITIES, TORQUES = 361, 301, 21
"""Points of the grid; angles from -pi to pi, velocities from -8 to 8, torques from -2 to 2."""

Floats = NDArray[np.float64]


def moved(angle: Floats, velocity: Floats, torque: float | Floats) -> tuple[Floats, Floats, Floats]:
    """The next angle and velocity, and the reward, as gymnasium's Pendulum-v1 computes them."""
    reward = -(angle**2 + 0.1 * velocity**2 + 0.001 * np.square(torque))
    velocity = np.clip(velocity + (15.0 * np.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
    return (angle + 0.05 * velocity + np.pi) % (2 * np.pi) - np.pi, velocity, reward


def interpolated(values: Floats, angle: Floats, velocity: Floats) -> Floats:
    """The values of states between the points of the grid, bilinearly."""
    x, y = (angle + np.pi) / (2 * np.pi) * (ANGLES - 1), (velocity + 8.0) / 16.0 * (VELOCITIES - 1)
    left, low = np.minimum(x.astype(int), ANGLES - 2), np.minimum(y.astype(int), VELOCITIES - 2)
    x, y = x - left, y - low
    below = values[left, low] * (1 - x) + values[left + 1, low] * x
    above = values[left, low + 1] * (1 - x) + values[left + 1, low + 1] * x
    between: Floats = below * (1 - y) + above * y
    return between


def optimum(discount: float = 1.0) -> Floats:
    """The best returns of the remaining steps, from each point of the grid: `[STEPS + 1, ANGLES, VELOCITIES]`."""
    grid = np.meshgrid(np.linspace(-np.pi, np.pi, ANGLES), np.linspace(-8.0, 8.0, VELOCITIES), indexing="ij")
    moves = [moved(*grid, torque) for torque in np.linspace(-2.0, 2.0, TORQUES)]
    values: list[Floats] = [np.zeros_like(grid[0])]
    for _ in range(STEPS):
        best = np.stack([reward + discount * interpolated(values[-1], *state) for *state, reward in moves])
        values.append(best.max(axis=0))
    return np.stack(values)


def played(values: Floats, angle: Floats, velocity: Floats, discount: float = 1.0) -> Floats:
    """The undiscounted returns, from these states, of the policy that is greedy in the discounted `values`."""
    returns = np.zeros_like(angle)
    for left in reversed(range(STEPS)):
        # Discounted values of many steps are those of any number of steps.
        later = values[left if discount == 1.0 else STEPS]
        moves = [moved(angle, velocity, torque) for torque in np.linspace(-2.0, 2.0, TORQUES)]
        best = np.argmax([reward + discount * interpolated(later, *state) for *state, reward in moves], axis=0)
        angle, velocity, reward = (np.choose(best, each) for each in zip(*moves, strict=True))
        returns += reward
    return returns


def main() -> None:
    """Prints the mean return of the greedy policy, with the interval of its mean, and the mean value."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--discount", type=float, default=1.0)
    chosen = parser.parse_args()
    episodes = chosen.episodes
    random = np.random.default_rng(0)
    starts = random.uniform(-np.pi, np.pi, episodes), random.uniform(-1.0, 1.0, episodes)
    values = optimum(chosen.discount)
    returns = played(values, *starts, chosen.discount)
    half = 1.96 * returns.std() / episodes**0.5
    print(json.dumps({
        "discount": chosen.discount,
        "episodes": episodes,
        "mean_return": returns.mean(),
        "std_return": returns.std(),
        "interval": [returns.mean() - half, returns.mean() + half],
        "mean_value": interpolated(values[STEPS], *starts).mean(),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
