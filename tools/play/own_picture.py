"""Positions as the game's own program draws them."""

from __future__ import annotations

from podzero.config import SimulatorConfig
from podzero.envs import Replay
from podzero.tools.play.game import Game
from podzero.tools.play.png import data_address, png_of


class OwnPicture:
    """Draws the position that a game shows by the method `render` of its simulator (`podzero.envs.RenderedSimulator`).

    Raises:
      ConfigError: the simulator has no such method, or cannot be made.
    """

    def __init__(self, config: SimulatorConfig) -> None:
        self._replay = Replay(config)

    def __call__(self, game: Game) -> str:
        """The address of an image of the position.

        Raises:
          ConfigError: the picture is not one.
          SimulatorError: `render` failed, or took longer than `env.step_timeout_s`.
        """
        return data_address(png_of(self._replay.frame(int(game.state.seed), game.moves[: game.ply])))
