"""What is played or solved: a game in JAX, a gymnasium environment, or a simulator on the host."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, PositiveFloat, PositiveInt

from podzero.config.section import Fraction, Section

Game = Literal[
    "animal_shogi", "chess", "connect_four", "gardner_chess", "go_9x9", "go_19x19",
    "hex", "othello", "shogi", "tic_tac_toe",
]  # fmt: skip


class GameConfig(Section):
    """A two-player game written in JAX."""

    name: Game

    @property
    def title(self) -> str:
        """The name of the game, in messages and as `EnvSpec.name`."""
        return self.name

    @property
    def discount(self) -> float:
        """What a reward one move later is worth: games are won whenever they are won."""
        return 1.0


class WrapperConfig(Section):
    """A gymnasium wrapper around each environment."""

    name: str
    """A class of `gymnasium.wrappers`, or `module:Class` or `file.py:Class` for any other."""
    kwargs: dict[str, Any] = Field(default_factory=dict)


class GymnasiumConfig(Section):
    """A gymnasium environment, met by acting in it only; its model is learned."""

    name: Literal["gymnasium"]
    id: str
    """As `gymnasium.make` takes it: `CartPole-v1`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    module: str | None = None
    """Imported first, for the registrations that it makes: a module, or the path of a Python file."""
    wrappers: tuple[WrapperConfig, ...] = ()
    """Applied in this order, the first one innermost."""
    vectorization: Literal["sync", "async", "own"] = "sync"
    """Whether an actor's environments step one after the other, each in a process of its own, or as the vector
    environment that comes with the id."""
    discount: Fraction = 0.997
    """What a reward one step later is worth."""
    step_timeout_s: PositiveFloat = 60.0
    """How long one step or reset of all environments of an actor may take before they are given up and rebuilt; making
    those anew that failed in it is part of it."""
    build_timeout_s: PositiveFloat = 120.0
    """How long it may take to make all environments of an actor, and to start their processes."""
    max_failures: PositiveInt = 100
    """Steps of an actor's environments that may fail one after the other, with no episode complete between them,
    before it gives up."""

    @property
    def title(self) -> str:
        """The name of the environment, in messages and as `EnvSpec.name`."""
        return f"gymnasium/{self.id}"

    @pydantic.model_validator(mode="after")
    def _own_vectors_take_no_wrappers(self) -> GymnasiumConfig:
        if self.vectorization == "own" and self.wrappers:
            raise ValueError("vectorization 'own' is the environment's own vector code, which takes no wrappers")
        return self


class SimulatorConfig(Section):
    """A game or environment on the host that can be cloned: search plays it forward through callbacks."""

    name: Literal["simulator", "open_spiel", "pettingzoo", "gymnasium_simulator"]
    id: str
    """`module:Class` or `file.py:Class` of a `podzero.envs.Simulator`; or the name of an OpenSpiel game, of a module of
    `pettingzoo.classic` (as `tictactoe_v3`), or of a gymnasium environment."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    module: str | None = None
    """Of a gymnasium environment: imported first, for the registrations that it makes; a module, or the path of a
    Python file."""
    max_plies: PositiveInt = 512
    """Longest game. One that is not over by then is cut off and counts as drawn."""
    discount: Fraction = 1.0
    """What a reward one move later is worth."""
    reward_scale: PositiveFloat = 1.0
    """What rewards are multiplied by, so that no discounted sum of them leaves [-1, 1]."""
    step_timeout_s: PositiveFloat = 60.0
    """How long one step of all games of a process may take before these games are given up."""
    build_timeout_s: PositiveFloat = 120.0
    """How long it may take to make the game and to check it by some random games."""
    max_failures: PositiveInt = 100
    """How often an actor's games may fail one after the other, with no game complete between, before it gives up."""
    kept_positions: PositiveInt = 32_768
    """Positions whose simulators a process keeps; one that was dropped is played again when a search returns to it. A
    search visits `games * simulations` of them."""

    @pydantic.model_validator(mode="after")
    def _only_gymnasium_registers(self) -> SimulatorConfig:
        if self.module is not None and self.name != "gymnasium_simulator":
            raise ValueError(f"module is for gymnasium_simulator only; '{self.name}' finds its games by id")
        return self

    @property
    def title(self) -> str:
        """The name of the game, in messages and as `EnvSpec.name`."""
        kind = self.name.removesuffix("_simulator")
        game = self.id.rpartition(":")[2] if kind == "simulator" else self.id
        arguments = ", ".join(f"{name}={value}" for name, value in self.kwargs.items())
        return f"{kind}/{game}({arguments})" if arguments else f"{kind}/{game}"


EnvConfig = Annotated[GameConfig | GymnasiumConfig | SimulatorConfig, Field(discriminator="name")]
