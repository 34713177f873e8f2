"""Recorded episodes in a folder: `podzero import` writes them, the learner of a MuZero run reads batches of windows.

The folder is that of `podzero.replay.records`; a row is one position of an episode.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from podzero.config import Experiment
from podzero.config.samples import UNSEARCHED, observations_kept, window_steps
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec, Window
from podzero.replay.records import open_rows


class Episode(NamedTuple):
    """A recorded episode of T steps."""

    observation: NDArray[Any]
    """`[T + 1, *observation_shape]`, before each action and at the end."""
    action: NDArray[np.int32]
    """`[T]`."""
    reward: NDArray[np.float32]
    """`[T]`."""
    terminated: bool
    """Whether the episode terminated; otherwise a limit truncated it, or the recording stopped."""


class EpisodeLayout:
    """The row of one position.

    Attributes:
      text: what rows hold, as one line; folders with equal lines are interchangeable.
      row: the dtype of a row. `value` is the discounted sum of the later rewards of the episode, `left` the number of
        steps until its end.
    """

    def __init__(self, spec: EnvSpec, discount: float) -> None:
        """Takes the environment's specification, and the discount per step.

        Raises:
          ConfigError: the environment has continuous actions or action masks.
        """
        if spec.action_bounds is not None or spec.masked:
            what = "action masks" if spec.masked else "continuous actions"
            raise ConfigError(
                f"{spec.name} has {what}; episodes are learned from only with discrete actions, all legal"
            )
        shape, dtype = spec.observation_shape, np.dtype(spec.observation_dtype)
        self._discount = discount
        self.text = (
            f"{spec.name} episodes observation:{dtype}{list(shape)} actions:{spec.num_actions} discount:{discount:g}"
        )
        self.row = np.dtype(
            [
                ("observation", dtype, shape),
                ("action", np.int32),
                ("reward", np.float32),
                ("value", np.float32),
                ("left", np.int32),
                ("terminated", np.bool_),
            ]
        )

    def pack(self, episode: Episode) -> NDArray[Any]:
        """The rows `[T + 1]` of an episode."""
        steps = len(episode.action)
        rows = np.zeros(steps + 1, self.row)
        rows["observation"] = episode.observation
        rows["action"][:-1], rows["reward"][:-1] = episode.action, episode.reward
        rows["left"], rows["terminated"] = np.arange(steps, -1, -1), episode.terminated
        for step in reversed(range(steps)):
            rows["value"][step] = rows["reward"][step] + np.float32(self._discount) * rows["value"][step + 1]
        return rows


def open_episodes(experiment: Experiment, spec: EnvSpec) -> NDArray[Any]:
    """The rows `[N]` of `data.records`, mapped into memory."""
    return open_rows(experiment.data.records, EpisodeLayout(spec, experiment.env.discount))[1]


class RecordedEpisodes:
    """The episodes of `data.records`, of which windows are drawn, which begin at any step.

    The policy target is the action that was taken, the value of a position its return. Neither is the result of a
    search, so what is learned is the recorded behaviour; a search with the learned model improves on it.
    """

    def __init__(self, experiment: Experiment, spec: EnvSpec) -> None:
        """Opens the folder."""
        self._rows = open_episodes(experiment, spec)
        self._starts = np.flatnonzero(self._rows["left"] > 0)
        self._unroll, self._steps = experiment.muzero.unroll_steps, window_steps(experiment)
        self._kept, self._smoothing = observations_kept(experiment), experiment.data.smoothing
        self._actions = spec.num_actions

    def draw(self, random: np.random.Generator, count: int) -> Window:
        """See `podzero.replay.records.Records`."""
        return self._windows(self._starts[random.integers(len(self._starts), size=count)], random)

    def _windows(self, starts: NDArray[np.intp], random: np.random.Generator) -> Window:
        """The windows `[N, ...]` whose first positions are the rows `starts`."""
        left = self._rows["left"][starts]
        ahead = np.arange(self._steps + 1)
        step_exists, position_exists = ahead < left[:, None], ahead <= left[:, None]
        # Positions after the end stay at the last row of the episode, and are cleared below.
        index = starts[:, None] + np.minimum(ahead, left[:, None])

        def gathered(name: str, count: int, exists: NDArray[np.bool_]) -> NDArray[Any]:
            found: NDArray[Any] = self._rows[name][index[:, :count]]
            found[~exists[:, :count]] = 0
            return found

        action = gathered("action", self._unroll, step_exists)
        # As in `WindowCutter`: no action leaves the absorbing state after the end.
        missing = ~step_exists[:, : self._unroll]
        action[missing] = random.integers(self._actions, size=int(missing.sum()))
        taken = np.eye(self._actions, dtype=np.float32)[gathered("action", self._unroll + 1, step_exists)]
        policy = (1 - self._smoothing) * taken + self._smoothing / self._actions
        policy[~step_exists[:, : self._unroll + 1]] = 0
        return Window(
            observation=gathered("observation", self._kept, position_exists),
            action=action,
            reward=gathered("reward", self._steps, step_exists),
            value=gathered("value", self._steps + 1, position_exists),
            policy=policy.astype(np.float32),
            candidates=np.zeros((len(starts), self._unroll + 1, 0), np.float32),
            length=np.minimum(left, self._steps).astype(np.int32),
            terminated=self._rows["terminated"][starts] & (left <= self._steps),
            version=np.full(len(starts), UNSEARCHED, np.int32),
        )
