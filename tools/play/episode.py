"""Episodes of an agent, recorded to be watched: frames, rewards, values, and curves.

Player, search and seeds are those of `podzero evaluate --games 1`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from PIL import Image

from podzero.config import GymnasiumConfig, SimulatorConfig
from podzero.envs import (
    SimulatorReplay,
    VectorEnv,
    VectorStep,
    make_env,
    make_vector_env,
    observed_picture,
    rendering,
    simulator_errors,
)
from podzero.errors import ConfigError
from podzero.evaluation.arena import Interrupted
from podzero.evaluation.episodes import (
    BASELINES,
    ActAndValue,
    Choose,
    baseline,
    play_alone,
    play_episodes,
    reward_scale,
)
from podzero.evaluation.players import MovesPlayer, Player, SearchPlayer
from podzero.evaluation.resolve import acting, resolve
from podzero.tools.play.picture import png_of
from podzero.types import Array, EnvState

MAX_FRAMES = 10_000
"""Most frames of an episode that are kept. Its later steps have values and rewards, but no frames."""
MAX_FRAME_BYTES = 256 * 2**20
"""Size of the frames of an episode, as PNG, after which no more are kept."""

Numbers = np.ndarray[Any, Any]


class WatchedAgent(NamedTuple):
    """The agent and the environment that are shown."""

    player: str
    """The full name, as RUN@STEP."""
    environment: str
    discount: float
    """The discount of `values`, per step."""
    steps_per_second: float
    """The speed at which the environment wants to be shown."""


class Episode(NamedTuple):
    """One episode of T steps, of which the first F positions (F at most T + 1) have frames."""

    subject: WatchedAgent
    seed: int
    frames: tuple[bytes, ...]
    """PNG files; frame t shows what the agent saw before step t, and frame T the end."""
    values: Numbers | None
    """`[T]` float64, the agent's estimate before each step of the discounted rewards to come, in the units of the
    rewards; None of players without values."""
    rewards: Numbers
    """`[T]` float64."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.rewards)

    @property
    def returns(self) -> Numbers:
        """`[T + 1]` float64, the undiscounted sum of rewards before each step, and of all."""
        return np.concatenate([[0.0], np.cumsum(self.rewards)])

    @property
    def frame_size(self) -> tuple[int, int]:
        """Width and height of the frames."""
        size: tuple[int, int] = Image.open(io.BytesIO(self.frames[0])).size
        return size

    @property
    def cut(self) -> str | None:
        """A sentence that says how many frames are missing; None if all are there."""
        if len(self.frames) > self.steps:
            return None
        return f"frames of the first {len(self.frames):,} of {self.steps:,} steps only: more are not kept"


class FrameLog:
    """Collects the frames of an episode, until there are too many.

    Args:
      most_frames: number of frames to keep.
      most_bytes: size of the frames after which no more are kept.
    """

    def __init__(self, most_frames: int = MAX_FRAMES, most_bytes: int = MAX_FRAME_BYTES) -> None:
        self._most = most_frames, most_bytes
        self.clear()

    def clear(self) -> None:
        """Forgets all frames."""
        self._frames: list[bytes] = []
        self._bytes = 0
        self.full = False
        """Whether later frames are dropped."""

    def add(self, pixels: Numbers) -> None:
        """Keeps a frame `[H, W, 3]` uint8, or drops it if there are too many."""
        if self.full:
            return
        self._frames.append(png_of(pixels))
        self._bytes += len(self._frames[-1])
        self.full = len(self._frames) >= self._most[0] or self._bytes >= self._most[1]

    @property
    def frames(self) -> tuple[bytes, ...]:
        """The frames kept so far."""
        return tuple(self._frames)


VALUE_COLOUR, RETURN_COLOUR = "#2563eb", "#059669"


class Curve(NamedTuple):
    """One number over the steps of an episode."""

    name: str
    unit: str
    """What the number counts."""
    colour: str
    heights: Numbers
    """`[N]` float64, one for each step from 0."""


def curves_of(episode: Episode) -> list[Curve]:
    """The agent's value, if it has any, and the return so far."""
    returns = Curve("return", "rewards so far", RETURN_COLOUR, episode.returns)
    if episode.values is None:
        return [returns]
    discount = episode.subject.discount
    unit = "rewards to come" if discount == 1.0 else f"rewards to come, discounted by {discount:g} per step"
    return [Curve("value", unit, VALUE_COLOUR, episode.values), returns]


def described(episode: Episode, step: int) -> str:
    """What is known at a step, in words."""
    parts = [f"step {step:,} of {episode.steps:,}"]
    if episode.values is not None and step < episode.steps:
        parts.append(f"value {number(episode.values[step])}")
    if step:
        parts.append(f"reward {number(episode.rewards[step - 1])}")
    return ", ".join([*parts, f"return {number(episode.returns[step])}"])


def number(value: float) -> str:
    """A value for people, in about three digits."""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text


GoesOn = Callable[[int], bool]
"""Called before every step with the number of steps so far; the episode is abandoned (`Interrupted`) when it returns
False."""

ValuedPolicy = Callable[[Array, Array], tuple[Array, Array | None]]
"""`ActAndValue`, or a policy without values."""


class Watcher(Protocol):
    """Records episodes of one player in one environment."""

    @property
    def subject(self) -> WatchedAgent:
        """The agent and the environment that are shown."""
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
        self._decide: ActAndValue | None = None
        name = who
        if who not in BASELINES:
            name, self._decide = acting(who, env, simulations)
        self._rendering = rendering(env)
        self._who = who
        self.subject = WatchedAgent(name, env.title, env.discount, self._rendering.steps_per_second)

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

    def watch(self, step: VectorStep) -> None:
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
        with closing(SimulatorReplay(config)) as replay:
            self.subject = WatchedAgent(player.name, config.title, config.discount, replay.steps_per_second)

    @simulator_errors()
    def episode(self, seed: int, goes_on: GoesOn) -> Episode:
        """See `Watcher`."""
        played = _Played(self._player)
        play_alone(self._env, played, 1, jax.random.key(seed), lambda: goes_on(len(played.moves)))
        log, rewards = FrameLog(), []
        with closing(SimulatorReplay(self._config)) as replay:
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
