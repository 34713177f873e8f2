"""Episodes of single-player environments, recorded with their frames, rewards and values.

They are those of `podzero evaluate --games 1` with the same player, simulations and seed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.config import GymnasiumConfig, SimulatorConfig
from podzero.core.errors import ConfigError
from podzero.core.types import Array, EnvState
from podzero.envs import (
    SimulatorReplay,
    VectorStep,
    make_env,
    make_vector_env,
    observed_picture,
    rendering,
    simulator_errors,
)
from podzero.evaluation.episodes import BASELINES, ActAndValue, baseline, play_alone, play_episodes, reward_scale
from podzero.evaluation.players import MovesPlayer, Player, SearchPlayer
from podzero.evaluation.resolve import acting, resolve
from podzero.tools.play.picture import png_of

MAX_FRAMES = 10_000
"""Most frames of an episode; later steps have only rewards and values."""

Progress = Callable[[str], object]
"""Called with what is being done, in words."""


class Episode(NamedTuple):
    """An episode of T steps; its first F positions (F at most T + 1) have frames."""

    seed: int
    frames: list[bytes]
    """`[F]` PNG files: frame t shows the position before step t, frame T the terminal one."""
    rewards: list[float]
    """`[T]`."""
    values: list[float]
    """`[T]`, the agent's estimate of the discounted return before each step, in units of the rewards; empty if the
    player does not estimate values."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.rewards)

    def add_frame(self, pixels: np.ndarray[Any, Any]) -> None:
        """Adds a frame `[H, W, 3]` uint8, unless there are `MAX_FRAMES`."""
        if len(self.frames) < MAX_FRAMES:
            self.frames.append(png_of(pixels))


class GymnasiumWatcher:
    """Records an agent in a gymnasium environment, which is rendered while the episode is played.

    Args:
      who: the player, see `podzero.files.players`.
      env: the environment.
      simulations: simulations per step; None for the number used in training.

    Raises:
      ConfigError, WorkdirError, SnapshotError: the player cannot act there, or the environment cannot be rendered.
    """

    def __init__(self, who: str, env: GymnasiumConfig, simulations: int | None) -> None:
        # `greedy` tries actions in copies of the environments, which must therefore be in this process.
        if who == "greedy":
            env = env.model_copy(update={"vectorization": "sync"})
        self._decide: ActAndValue | None = None
        self.player, self.discount = who, env.discount
        if who not in BASELINES:
            self.player, self._decide = acting(who, env, simulations)
        self._rendering = rendering(env)
        self.steps_per_second = self._rendering.steps_per_second

    def episode(self, seed: int, progress: Progress) -> Episode:
        """Records an episode; one that fails is discarded and played again, as in evaluations."""
        recorded = Episode(seed, [], [], [])
        with closing(make_vector_env(self._rendering.config, 1, seed)) as environments:
            by_name = None if self._decide else baseline(self.player, environments)

            def show(step: VectorStep) -> None:
                renders = self._rendering.renders
                recorded.add_frame(environments.render()[0] if renders else observed_picture(step.observation[0]))

            def choose(key: Array, step: VectorStep) -> Array:
                progress(f"seed {seed}: step {recorded.steps:,}")
                if not recorded.frames:
                    show(step)
                if self._decide is None:
                    assert by_name is not None
                    return by_name(key, step)
                action, value = self._decide(key, step)
                recorded.values.append(float(value[0]))
                return action

            def watch(step: VectorStep) -> None:
                if step.failed[0]:
                    for field in (recorded.frames, recorded.rewards, recorded.values):
                        field.clear()
                else:
                    recorded.rewards.append(float(step.reward[0]))
                    show(step)

            play_episodes(environments, choose, 1, jax.random.key(seed), watch=watch)
        return recorded


class SimulatorWatcher:
    """Records a player in a single-player simulator: plays a game, then renders it move by move.

    The arguments and errors are those of `GymnasiumWatcher`.
    """

    def __init__(self, who: str, config: SimulatorConfig, simulations: int | None) -> None:
        self._env = make_env(config)
        if self._env.spec.players != 1:
            raise ConfigError(f"{config.title} has two players; episodes are shown of environments for one")
        player = resolve(who, self._env, simulations, config.discount)
        if isinstance(player, MovesPlayer):
            raise ConfigError(f"player '{who}' only plays matches; it cannot act in {config.title}")
        self._played_by, self._config = player, config
        self.player, self.discount = player.name, config.discount
        with closing(SimulatorReplay(config)) as replay:
            self.steps_per_second = replay.steps_per_second

    @simulator_errors()
    def episode(self, seed: int, progress: Progress) -> Episode:
        """Records an episode."""
        player = _RecordedPlayer(self._played_by, lambda moves: progress(f"seed {seed}: step {moves:,}"))
        play_alone(self._env, player, 1, jax.random.key(seed))
        # Searches see rewards scaled in float32; people read those of the game.
        values = np.array(player.values, np.float32) / reward_scale(self._config)
        recorded = Episode(seed, [], [], values.astype(float).tolist())
        with closing(SimulatorReplay(self._config)) as replay:
            for reward in replay.play(player.seed, player.moves):
                recorded.rewards.append(reward)
                recorded.add_frame(replay.frame())
        # The reward of the start, which no move led to.
        del recorded.rewards[0]
        return recorded


class _RecordedPlayer:
    """A `Player` that records one game: its seed, moves and values."""

    def __init__(self, player: Player, progress: Callable[[int], object]) -> None:
        self._player, self._progress = player, progress
        self.name, self.deterministic = player.name, player.deterministic
        self.seed = 0
        self.moves: list[int] = []
        self.values: list[float] = []

    def choose(self, key: Array, states: EnvState) -> Array:
        """See `Player`."""
        self.seed = int(states.seed[0])
        if isinstance(self._player, SearchPlayer):
            found = self._player.search(key, states)
            self.values.append(float(found.value[0]))
            action = found.action
        else:
            action = self._player.choose(key, states)
        self.moves.append(int(action[0]))
        self._progress(len(self.moves))
        return action
