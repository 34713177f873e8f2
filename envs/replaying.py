"""Replays games of simulators to render them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from podzero.config import GymnasiumConfig, SimulatorConfig, environments
from podzero.core.errors import ConfigError, PodzeroError, described
from podzero.core.importing import import_class
from podzero.envs.faults import DeadlineThread, SimulatorError
from podzero.envs.gymnasium_envs.making import picture, rendering_of
from podzero.envs.registry import make_simulator
from podzero.envs.simulator import RenderedSimulator

STEPS_PER_SECOND = 5.0
"""Speed of simulators that declare none."""


class SimulatorReplay:
    """Replays games of one simulator from their seeds and moves, and renders the positions."""

    def __init__(self, config: SimulatorConfig) -> None:
        """Makes the simulator; a `PodzeroError` says why it cannot be made in time, or rendered."""
        self._config = config
        self._thread = DeadlineThread(config.title)
        try:
            # In the thread that renders: a context of OpenGL belongs to the thread that has made it.
            self._simulator = self._call(partial(_rendering_simulator, config), environments.BUILD_TIMEOUT_S, "")
        except BaseException:
            self.close()
            raise
        self.steps_per_second: float = getattr(self._simulator, "steps_per_second", STEPS_PER_SECOND)
        """The speed at which to show the game."""

    def play(self, seed: int, moves: Iterable[int]) -> Iterator[float]:
        """Plays a game; yields its unscaled rewards: 0 at the start, then that of each move."""
        self._call(lambda: self._simulator.reset(seed))
        yield 0.0
        for move in moves:
            self._call(partial(self._simulator.step, move))
            yield float(self._call(self._simulator.rewards)[0])

    def frame(self) -> Any:
        """The position that the game has reached, as pixels `[H, W, 3]` uint8."""
        return picture(self._call(self._simulator.render), self._config.title)

    def close(self) -> None:
        """Ends the thread that calls the simulator."""
        self._thread.stop()

    def _call[Answer](
        self, function: Callable[[], Answer], limit_s: float | None = None, setting: str = "env.step_timeout_s"
    ) -> Answer:
        try:
            return self._thread.call(function, limit_s or self._config.step_timeout_s, setting)
        except PodzeroError:
            raise
        except TimeoutError as error:
            raise SimulatorError(f"{self._config.title}: {error}") from None
        except Exception as error:
            raise SimulatorError(f"{self._config.title} cannot be shown: {described(error)}") from error


def renders(config: SimulatorConfig) -> bool:
    """Whether a simulator can render its positions, judged without making it."""
    own = config.name == "simulator" and hasattr(import_class(config.place, "env.id"), "render")
    return own or config.name == "gymnasium_simulator"


def _rendering_simulator(config: SimulatorConfig) -> RenderedSimulator:
    if config.name == "gymnasium_simulator":
        env = GymnasiumConfig(name="gymnasium", id=config.id, kwargs=config.kwargs, module=config.place or None)
        config = config.model_copy(update={"kwargs": rendering_of(env).config.kwargs})
    simulator = make_simulator(config)
    if not isinstance(simulator, RenderedSimulator):
        raise ConfigError(
            f"{config.title} cannot be shown: it has no method render(), which returns pixels [height, width, 3] uint8 "
            "(podzero.envs.RenderedSimulator). `podzero evaluate` reports its returns"
        )
    return simulator
