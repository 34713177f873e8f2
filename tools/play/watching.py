"""Episodes of agents, with frames: the player, search and seeds of `podzero evaluate --games 1`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Protocol

import jax
import numpy as np

from podzero.config import GymnasiumConfig, SimulatorConfig
from podzero.envs import (
    Replay,
    Step,
    VectorEnv,
    make_env,
    make_vector_env,
    observed_picture,
    rendering,
    simulator_errors,
)
from podzero.errors import ConfigError
from podzero.evaluation.arena import Interrupted
from podzero.evaluation.episodes import BASELINES, Choose, Decide, baseline, play_episodes
from podzero.evaluation.players import MovesPlayer, Player, SearchPlayer
from podzero.evaluation.returns import play_alone, reward_scale
from podzero.evaluation.who import acting, resolve
from podzero.tools.play.episode import MAX_FRAMES, Episode, FrameLog, Subject
from podzero.types import Array, EnvState

GoesOn = Callable[[int], bool]
"""Called before every step with the number of steps so far; the episode is abandoned (`Interrupted`) when it returns
False."""

ValuedPolicy = Callable[[Array, Array], tuple[Array, Array | None]]
"""`Decide`, or a policy without values."""


class Watcher(Protocol):
    """Records episodes of one player in one environment."""

    @property
    def subject(self) -> Subject:
        """Who acts where."""
        ...

    def episode(self, seed: int, goes_on: GoesOn) -> Episode:
        """The episode that `podzero evaluate WHO --games 1 --seed SEED` plays.

        Raises:
          Interrupted: `goes_on` returned False.
          ConfigError: the environment cannot be rendered.
          EnvironmentFailed, SimulatorError: it failed.
        """
        ...


def watcher_of(who: str, where: GymnasiumConfig | SimulatorConfig, simulations: int | None) -> Watcher:
    """The watcher of a player in an environment for one.

    Args:
      who: see `podzero.player_names`.
      where: the environment.
      simulations: per step; None takes as many as in training.

    Raises:
      ConfigError, WorkdirError, SnapshotError: the player cannot act there, or the environment cannot be rendered.
    """
    make = GymnasiumWatcher if isinstance(where, GymnasiumConfig) else SimulatorWatcher
    watcher: Watcher = make(who, where, simulations)  # type: ignore[arg-type]
    return watcher


class GymnasiumWatcher:
    """A `Watcher` in a gymnasium environment, which renders while the episode is played."""

    def __init__(self, who: str, env: GymnasiumConfig, simulations: int | None) -> None:
        if who == "greedy":
            env = env.model_copy(update={"vectorization": "sync"})  # as `podzero evaluate greedy` does
        self._decide: Decide | None = None
        name = who
        if who not in BASELINES:
            name, self._decide = acting(who, env, simulations)
        self._rendering = rendering(env)
        self._who = who
        self.subject = Subject(name, env.title, env.discount, self._rendering.steps_per_second)

    def episode(self, seed: int, goes_on: GoesOn) -> Episode:
        """See `Watcher`. An episode that fails is forgotten and played again, as in evaluations."""
        with closing(make_vector_env(self._rendering.config, 1, seed)) as environments:
            decide = self._decide or _without_values(baseline(self._who, environments))
            seen = _Recording(environments, self._rendering.renders, decide)
            play_episodes(
                environments, seen.choose, 1, jax.random.key(seed), lambda: goes_on(len(seen.rewards)), watch=seen.watch
            )
            seen.finish()
        values = np.array(seen.values, float) if self._decide else None
        return Episode(self.subject, seed, seen.log.frames, values, np.array(seen.rewards))


class _Recording:
    """What happens in a single environment: the policy that acts in it, and its observer."""

    def __init__(self, environments: VectorEnv, renders: bool, decide: ValuedPolicy) -> None:
        self._environments = environments
        self._renders = renders
        self._decide = decide
        self._newest: Array | None = None
        self.log = FrameLog()
        self.values: list[float | None] = []
        self.rewards: list[float] = []

    def choose(self, key: Array, observation: Array) -> Array:
        """A `Choose`."""
        self._newest = observation
        self._show()
        action, value = self._decide(key, observation)
        self.values.append(None if value is None else float(value[0]))
        return action

    def watch(self, step: Step) -> None:
        """Takes the result of a step."""
        self._newest = step.observation
        if step.failed[0]:
            self.log.clear()
            self.values.clear()
            self.rewards.clear()
        else:
            self.rewards.append(float(step.reward[0]))

    def finish(self) -> None:
        """Shows the end."""
        self._show()

    def _show(self) -> None:
        if not self.log.full:
            assert self._newest is not None
            frame = self._environments.render()[0] if self._renders else observed_picture(np.asarray(self._newest)[0])
            self.log.add(frame)


def _without_values(choose: Choose) -> ValuedPolicy:
    return lambda key, observation: (choose(key, observation), None)


class SimulatorWatcher:
    """A `Watcher` in a simulator for one player: the game is played first and then, move by move, rendered."""

    def __init__(self, who: str, config: SimulatorConfig, simulations: int | None) -> None:
        self._env = make_env(config)
        if self._env.spec.players != 1:
            raise ConfigError(f"{config.title} has two players; episodes are shown of environments for one")
        player = resolve(who, self._env, simulations, config.discount)
        if isinstance(player, MovesPlayer):
            raise ConfigError(f"player '{who}' only plays matches; it cannot act in {config.title}")
        self._player, self._config = player, config
        with closing(Replay(config)) as replay:
            self.subject = Subject(player.name, config.title, config.discount, replay.steps_per_second)

    @simulator_errors()
    def episode(self, seed: int, goes_on: GoesOn) -> Episode:
        """See `Watcher`."""
        played = _Played(self._player)
        play_alone(self._env, played, 1, jax.random.key(seed), lambda: goes_on(len(played.moves)))
        log, rewards = FrameLog(), []
        with closing(Replay(self._config)) as replay:
            for ply, position in enumerate(replay.positions(played.seed, played.moves, MAX_FRAMES)):
                if not goes_on(ply):
                    raise Interrupted
                if position.frame is not None:
                    log.add(position.frame)
                rewards.append(position.reward)
        # Searches see scaled rewards; people read those of the game.
        values = np.array(played.values) / reward_scale(self._config) if played.values else None
        return Episode(self.subject, seed, log.frames, values, np.array(rewards[1:]))


class _Played:
    """A player that remembers one game: the seed of its start, its moves, and their values."""

    def __init__(self, player: Player) -> None:
        self._player = player
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
        return action
