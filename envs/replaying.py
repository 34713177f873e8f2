"""Replays games of simulators to render them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from podzero.config import GymnasiumConfig, SimulatorConfig, environments
from podzero.core.errors import ConfigError, PodzeroError, described
from podzero.core.importing import import_class
from podzero.envs.faults import DeadlineThread, SimulatorError
from podzero.envs.gymnasium_envs import picture, rendering_of
from podzero.envs.registry import make_simulator
from podzero.envs.simulator import RenderedSimulator

STEPS_PER_SECOND = 5.0
"""Speed of simulators that declare none."""


class SimulatorReplay:
    """Replays games of one simulator from their seeds and moves, and renders the positions."""

    def __init__(self, config: SimulatorConfig) -> None:
        """Makes the simulator.

        Raises:
          ConfigError: it cannot be made, or not within `environments.BUILD_TIMEOUT_S`, or it cannot be rendered.
        """
        self._config = config
        self._thread = DeadlineThread(config.title)
        try:
            self._simulator = self._call(partial(_rendering_simulator, config), environments.BUILD_TIMEOUT_S)
        except BaseException:
            self._thread.stop()
            raise
        self.steps_per_second: float = getattr(self._simulator, "steps_per_second", STEPS_PER_SECOND)
        """The speed at which to show the game."""

    def play(self, seed: int, moves: Iterable[int]) -> Iterator[float]:
        """Plays a game; yields its unscaled rewards: 0 at the start, then that of each move.

        Raises:
          SimulatorError: the game failed, or a move took longer than `env.step_timeout_s`.
        """
        self._call(partial(self._simulator.reset, seed))
        yield 0.0
        for move in moves:
            self._call(partial(self._simulator.step, move))
            yield float(self._call(self._simulator.rewards)[0])

    def frame(self) -> Any:
        """The position that the game has reached, as pixels `[H, W, 3]` uint8.

        Raises:
          ConfigError: `render` did not return an image.
          SimulatorError: it failed, or took longer than `env.step_timeout_s`.
        """
        return picture(self._call(self._simulator.render), self._config.title)

    def close(self) -> None:
        """Ends the thread that calls the simulator."""
        self._thread.stop()

    def _call(self, function: Any, limit_s: float | None = None) -> Any:
        """Calls `function` within `limit_s`, or else `env.step_timeout_s`."""
        of_step = self._config.step_timeout_s
        try:
            return self._thread.call(lambda _: function(), None, of_step if limit_s is None else limit_s)
        except PodzeroError:
            raise
        except TimeoutError as error:
            setting = " (env.step_timeout_s)" if limit_s is None else ""
            raise SimulatorError(f"{self._config.title}: {error}{setting}") from None
        except Exception as error:
            raise SimulatorError(f"{self._config.title} cannot be shown: {described(error)}") from error


def renders(config: SimulatorConfig) -> bool:
    """Whether a simulator can render its positions, judged without making it."""
    own = config.name == "simulator" and hasattr(import_class(config.place, "env.id"), "render")
    return own or config.name == "gymnasium_simulator"


def _rendering_simulator(config: SimulatorConfig) -> RenderedSimulator:
    simulator = make_simulator(_rendering_config(config))
    if not isinstance(simulator, RenderedSimulator):
        raise ConfigError(
            f"{config.title} cannot be shown: it has no method render(), which returns pixels [height, width, 3] uint8 "
            "(podzero.envs.RenderedSimulator). `podzero evaluate` reports its returns"
        )
    return simulator


def _rendering_config(config: SimulatorConfig) -> SimulatorConfig:
    if config.name != "gymnasium_simulator":
        return config
    env = GymnasiumConfig(name="gymnasium", id=config.id, kwargs=config.kwargs, module=config.place or None)
    return config.model_copy(update={"kwargs": rendering_of(env).config.kwargs})
