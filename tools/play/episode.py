"""Episodes recorded for watching: frames, rewards, values and curves.

They are those of `podzero evaluate --games 1` with the same player, simulations and seed.
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
from podzero.core.errors import ConfigError
from podzero.core.types import Array, EnvState
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

MAX_FRAMES = 10_000
"""Most frames kept of an episode; later steps have only values and rewards."""
MAX_FRAME_BYTES = 256 * 2**20
"""Total size of an episode's PNG files after which no more are kept."""

Numbers = np.ndarray[Any, Any]
KeepGoing = Callable[[int], bool]
"""Called before every step with the number of steps so far; False abandons the episode (`Interrupted`)."""
ShowFrame = Callable[[bytes], None]
"""Called with each frame of an episode, a PNG file, while it is recorded."""


class WatchedAgent(NamedTuple):
    """An agent and its environment."""

    player: str
    """The agent's full name, such as RUN@STEP."""
    environment: str
    discount: float
    """The discount per step in `PlayedEpisode.values`."""
    steps_per_second: float
    """The environment's own frame rate."""


class PlayedEpisode(NamedTuple):
    """An episode of T steps; its first F positions (F at most T + 1) have frames."""

    subject: WatchedAgent
    seed: int
    frames: tuple[bytes, ...]
    """`[F]` PNG files: frame t shows the position before step t, frame T the terminal one."""
    values: Numbers | None
    """`[T]` float64, the agent's estimate of the discounted return before each step, in units of the rewards; None if
    the player does not estimate values."""
    rewards: Numbers
    """`[T]` float64."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.rewards)

    @property
    def returns(self) -> Numbers:
        """`[T + 1]` float64, the undiscounted sum of the rewards before each step and at the end."""
        return np.concatenate([[0.0], np.cumsum(self.rewards)])

    @property
    def cut(self) -> str | None:
        """A message about missing frames; None if all were kept."""
        if len(self.frames) > self.steps:
            return None
        return f"frames of the first {len(self.frames):,} of {self.steps:,} steps only: more are not kept"


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height of a picture in pixels."""
    size: tuple[int, int] = Image.open(io.BytesIO(png)).size
    return size


class FrameLog:
    """Collects an episode's frames up to a number and a total size.

    Args:
      most_frames: most frames to keep.
      most_bytes: total size of the PNG files after which no more are kept.
      show: called with each frame that is kept.
    """

    def __init__(
        self, most_frames: int = MAX_FRAMES, most_bytes: int = MAX_FRAME_BYTES, show: ShowFrame | None = None
    ) -> None:
        self._most = most_frames, most_bytes
        self._show = show
        self.clear()

    def clear(self) -> None:
        """Removes all frames."""
        self._frames: list[bytes] = []
        self._bytes = 0
        self.full = False
        """Whether further frames are dropped."""

    def add(self, pixels: Numbers) -> None:
        """Keeps a frame `[H, W, 3]` uint8; drops it if the log is full."""
        if self.full:
            return
        self._frames.append(png_of(pixels))
        if self._show is not None:
            self._show(self._frames[-1])
        self._bytes += len(self._frames[-1])
        self.full = len(self._frames) >= self._most[0] or self._bytes >= self._most[1]

    @property
    def frames(self) -> tuple[bytes, ...]:
        """The frames kept so far."""
        return tuple(self._frames)


VALUE_COLOUR, RETURN_COLOUR = "#2563eb", "#059669"


class Curve(NamedTuple):
    """A quantity over the steps of an episode."""

    name: str
    unit: str
    colour: str
    heights: Numbers
    """`[N]` float64, the quantity at steps 0 to N - 1."""


def curves_of(episode: PlayedEpisode) -> list[Curve]:
    """The curves of the agent's value, if it estimates one, and of the return so far."""
    returns = Curve("return", "rewards so far", RETURN_COLOUR, episode.returns)
    if episode.values is None:
        return [returns]
    discount = episode.subject.discount
    unit = "rewards to come" if discount == 1.0 else f"rewards to come, discounted by {discount:g} per step"
    return [Curve("value", unit, VALUE_COLOUR, episode.values), returns]


def described(episode: PlayedEpisode, step: int) -> str:
    """The step, value, reward and return at `step`, as text."""
    parts = [f"step {step:,} of {episode.steps:,}"]
    if episode.values is not None and step < episode.steps:
        parts.append(f"value {number(episode.values[step])}")
    if step:
        parts.append(f"reward {number(episode.rewards[step - 1])}")
    return ", ".join([*parts, f"return {number(episode.returns[step])}"])


def number(value: float) -> str:
    """Formats a value with about three digits."""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    text = f"{value:,.{digits}f}"
    # Not "-0.00".
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text


ValuedPolicy = Callable[[Array, VectorStep], tuple[Array, Array | None]]
"""`(PRNG key, newest step)` to the action and its value, as `ActAndValue`; None from policies without values."""


class Watcher(Protocol):
    """Records episodes of one player in one environment."""

    @property
    def subject(self) -> WatchedAgent:
        """The agent and its environment."""
        ...

    def episode(self, seed: int, keep_going: KeepGoing, show: ShowFrame | None = None) -> PlayedEpisode:
        """Records the episode that `podzero evaluate WHO --games 1 --seed SEED` plays.

        Raises:
          Interrupted: `keep_going` returned False.
          ConfigError: the environment cannot be rendered.
          EnvironmentFailed, SimulatorError: the environment failed.
        """
        ...


def watcher_of(who: str, where: GymnasiumConfig | SimulatorConfig, simulations: int | None) -> Watcher:
    """Makes the watcher of a player in a single-player environment.

    Args:
      who: the player, see `podzero.files.players`.
      where: the environment.
      simulations: simulations per step; None for the number used in training.

    Raises:
      ConfigError, WorkdirError, SnapshotError: the player cannot act there, or the environment cannot be rendered.
    """
    make = GymnasiumWatcher if isinstance(where, GymnasiumConfig) else SimulatorWatcher
    watcher: Watcher = make(who, where, simulations)  # type: ignore[arg-type]
    return watcher


class GymnasiumWatcher:
    """Renders a gymnasium environment while the episode is played."""

    def __init__(self, who: str, env: GymnasiumConfig, simulations: int | None) -> None:
        # `greedy` tries actions in copies of the environments, which must therefore be in this process.
        if who == "greedy":
            env = env.model_copy(update={"vectorization": "sync"})
        self._decide: ActAndValue | None = None
        name = who
        if who not in BASELINES:
            name, self._decide = acting(who, env, simulations)
        self._rendering = rendering(env)
        self._who = who
        self.subject = WatchedAgent(name, env.title, env.discount, self._rendering.steps_per_second)

    def episode(self, seed: int, keep_going: KeepGoing, show: ShowFrame | None = None) -> PlayedEpisode:
        """See `Watcher`; an episode that fails is discarded and played again, as in evaluations."""
        with closing(make_vector_env(self._rendering.config, 1, seed)) as environments:
            decide = self._decide or _without_values(baseline(self._who, environments))
            recording = _Recording(environments, self._rendering.renders, decide, show)
            play_episodes(
                environments,
                recording.choose,
                1,
                jax.random.key(seed),
                lambda: keep_going(len(recording.rewards)),
                watch=recording.watch,
            )
            recording.finish()
        values = np.array(recording.values, float) if self._decide else None
        return PlayedEpisode(self.subject, seed, recording.log.frames, values, np.array(recording.rewards))


class _Recording:
    """Acts in a single environment and records frames, values and rewards."""

    def __init__(self, environments: VectorEnv, renders: bool, decide: ValuedPolicy, show: ShowFrame | None) -> None:
        self._environments = environments
        self._renders = renders
        self._decide = decide
        self._newest: Array | None = None
        self.log = FrameLog(show=show)
        self.values: list[float | None] = []
        self.rewards: list[float] = []

    def choose(self, key: Array, step: VectorStep) -> Array:
        """Chooses the next action, and keeps its value and the newest observation; a `Choose`."""
        self._newest = step.observation
        self._show()
        action, value = self._decide(key, step)
        self.values.append(None if value is None else float(value[0]))
        return action

    def watch(self, step: VectorStep) -> None:
        """Records the result of a step; a failed step discards the episode so far."""
        self._newest = step.observation
        if step.failed[0]:
            self.log.clear()
            self.values.clear()
            self.rewards.clear()
        else:
            self.rewards.append(float(step.reward[0]))

    def finish(self) -> None:
        """Adds the terminal frame."""
        self._show()

    def _show(self) -> None:
        # Rendering is slow: skip it once frames are dropped.
        if not self.log.full:
            assert self._newest is not None
            frame = self._environments.render()[0] if self._renders else observed_picture(np.asarray(self._newest)[0])
            self.log.add(frame)


def _without_values(choose: Choose) -> ValuedPolicy:
    return lambda key, step: (choose(key, step), None)


class SimulatorWatcher:
    """Plays a game of a single-player simulator, then renders it move by move."""

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
    def episode(self, seed: int, keep_going: KeepGoing, show: ShowFrame | None = None) -> PlayedEpisode:
        """See `Watcher`; frames come once the game has been played."""
        played = _Played(self._player)
        play_alone(self._env, played, 1, jax.random.key(seed), lambda: keep_going(len(played.moves)))
        log, rewards = FrameLog(show=show), []
        with closing(SimulatorReplay(self._config)) as replay:
            for ply, position in enumerate(replay.positions(played.seed, played.moves, MAX_FRAMES)):
                if not keep_going(ply):
                    raise Interrupted
                if position.frame is not None:
                    log.add(position.frame)
                rewards.append(position.reward)
        # Searches see rewards scaled in float32; people read those of the game.
        scaled = np.array(played.values, np.float32)
        values = (scaled / reward_scale(self._config)).astype(float) if played.values else None
        return PlayedEpisode(self.subject, seed, log.frames, values, np.array(rewards[1:]))


class _Played:
    """A player that records one game: its seed, moves and values."""

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
