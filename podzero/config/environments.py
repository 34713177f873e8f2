"""The section `env`: a game in JAX, a gymnasium environment, or a simulator on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import pydantic
from pydantic import Field, PositiveFloat, PositiveInt

from podzero.config.section import ByName, Fraction, OwnFile, Section

Game = Literal[
    "animal_shogi", "chess", "connect_four", "gardner_chess", "go_7x7", "go_9x9",
    "go_19x19", "hex", "othello", "shogi", "tic_tac_toe",
]  # fmt: skip

BUILD_TIMEOUT_S = 300.0
"""Time limit for importing, compiling and checking a game or environment that is not podzero's own."""
KOMI = 7.5
"""Points that compensate the second player of Go in matches."""
LARGEST_KOMI = 31
"""The largest absolute value of a komi."""
LEARNED_DISCOUNT = 0.997
"""MuZero's discount in Atari (Schrittwieser et al. 2020), the default where a model is learned."""
HEX_SIZES = range(5, 12)
"""Rows and columns of the boards of Hex, whose squares are numbered in int8."""
Komi = Annotated[float, Field(ge=-LARGEST_KOMI, le=LARGEST_KOMI, multiple_of=0.5)]


class JaxGameConfig(Section):
    """A game written in JAX, which is played on any device."""

    if TYPE_CHECKING:
        name: str

    @property
    def title(self) -> str:
        """The name of the game, in messages and as `EnvSpec.name`."""
        return self.name


class GameConfig(JaxGameConfig):
    """A two-player game written in JAX."""

    name: Game
    """The game."""
    komi: tuple[Komi, Komi] | None = None
    """Only for Go: the least and the largest komi. Each game of self-play draws its own, a multiple of 0.5, and the
    network observes it. By default the komi is 7.5 and not observed."""
    size: Annotated[int, Field(ge=HEX_SIZES[0], le=HEX_SIZES[-1])] | None = None
    """Only for Hex: rows and columns of the board, 5 to 11. By default 11."""

    @property
    def title(self) -> str:
        """The name; that of Hex has the size of the board, as those of Go."""
        return "hex_{0}x{0}".format(self.size or HEX_SIZES[-1]) if self.name == "hex" else self.name

    @property
    def discount(self) -> float:
        """Discount per move: 1, because the length of a game does not matter."""
        return 1.0

    @pydantic.model_validator(mode="after")
    def _komi_is_for_go_and_size_for_hex(self) -> GameConfig:
        if self.size is not None and self.name != "hex":
            raise ValueError(f"size is only for Hex, not for '{self.name}', whose name is that of a board; remove it")
        if self.komi is None:
            return self
        if not self.name.startswith("go_"):
            raise ValueError(f"komi is only for Go, not for '{self.name}'; remove it")
        if self.komi[0] > self.komi[1]:
            raise ValueError(f"komi is given as [least, largest], not {list(self.komi)}")
        return self


ChanceGame = Literal["2048", "backgammon"]


class ChanceGameConfig(JaxGameConfig):
    """A game of chance written in JAX, for one (2048) or two players (backgammon)."""

    name: ChanceGame
    """The game."""
    reward_scale: PositiveFloat | None = None
    """Factor applied to rewards, which are the sum of merged tiles in 2048, and 1 to 3 points in backgammon. Discounted
    sums of rewards above 1 count as 1. By default 1/50,000 in 2048 and 1/3 in backgammon."""
    discount: Fraction = 1.0
    """Discount per move."""

    @property
    def scale(self) -> float:
        """`reward_scale`, or its default."""
        return self.reward_scale or {"2048": 1 / 50_000, "backgammon": 1 / 3}[self.name]


BUILTIN_GAMES: dict[str, GameConfig | ChanceGameConfig] = {
    **{name: GameConfig(name=name) for name in get_args(Game)},
    **{name: ChanceGameConfig(name=name) for name in get_args(ChanceGame)},
}
"""The games that come with podzero, by name, with default settings."""


class _SimulatorInJax(JaxGameConfig):
    """Fields of what is written in JAX and not podzero's own."""

    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""
    model: Literal["rules", "learned"] = "rules"
    """What the search follows: the `rules`, or with `learned` a model that the network learns (MuZero). Only then may
    steps depend on chance, and rewards have any size; there is one player."""
    discount: Fraction = 1.0
    """Discount per move; with `model: learned` by default 0.997."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _learned_models_discount(cls, section: Any) -> Any:
        match section:
            case {"model": "learned"}:
                return {"discount": LEARNED_DISCOUNT} | section
        return section

    def _called(self, name: str) -> str:
        """`name` with its keyword arguments; trained agents of both kinds of models differ by it."""
        return called(name, self.kwargs) + (", learned" if self.model == "learned" else "")


class OwnGameConfig(_SimulatorInJax, OwnFile):
    """A game of your own, written in JAX."""

    name: str
    """The `file.py:Class` or `module:Class` of a `podzero.envs.JaxGame`, or with `model: learned` also of a
    `podzero.envs.JaxSimulator`. Files are found next to the experiment."""

    @property
    def title(self) -> str:
        """The name of the game, in messages and as `EnvSpec.name`."""
        return self._called(f"jax/{self.name.rpartition(':')[2]}")


JaxLibrary = Literal["jumanji", "gymnax"]


class JaxLibraryConfig(_SimulatorInJax):
    """An environment for one player of a library written in JAX."""

    name: JaxLibrary
    """The library: jumanji (extra `envs`) or gymnax (`uv pip install --no-deps gymnax`)."""
    id: str
    """The id that the library's `make` takes, for example `RubiksCube-partly-scrambled-v0` or `CartPole-v1`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of `make`; in gymnax also fields of the environment's parameters."""
    reward_scale: PositiveFloat = 1.0
    """Factor applied to rewards. Choose it so that every sum of rewards lies in [-1, 1]; a learned model needs none."""

    @property
    def title(self) -> str:
        """The name of the environment, in messages and as `EnvSpec.name`."""
        return self._called(f"{self.name}/{self.id}")


class WrapperConfig(Section):
    """A gymnasium wrapper around each environment."""

    name: str
    """A class of `gymnasium.wrappers`, or any other class as `module:Class` or `file.py:Class`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""


class _HostConfig(OwnFile):
    """Fields of all environments that run on the host."""

    id: str
    """The id that `gymnasium.make` takes, for example `CartPole-v1`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the game or environment."""
    module: str | None = None
    """A module, or the path of a Python file, that registers an id of gymnasium when it is imported."""
    step_timeout_s: PositiveFloat = 60.0
    """Time limit in seconds of a step or reset of all games or environments of a process, including the replacement of
    failed ones. When it is exceeded, all of them are lost and begin anew."""


class GymnasiumConfig(_HostConfig):
    """A gymnasium environment, of which MuZero learns a model. It is never copied or reset to a state."""

    name: Literal["gymnasium"]
    """Selects this kind of environment."""
    wrappers: tuple[WrapperConfig, ...] = ()
    """Wrappers around each environment, innermost first."""
    vectorization: Literal["sync", "async", "own"] = "sync"
    """How an actor steps its environments: `sync` one after another, `async` each in its own process, `own` with the
    vector environment registered for the id."""
    discount: Fraction = LEARNED_DISCOUNT
    """Discount per step."""
    metrics: tuple[str, ...] = ()
    """Numbers that `info` has at the end of an episode, such as `success`: the mean over the actors' episodes is the
    metric `acting/info_NAME`."""

    @property
    def title(self) -> str:
        """The name of the environment, in messages and as `EnvSpec.name`."""
        return f"gymnasium/{self.id}"

    @pydantic.model_validator(mode="after")
    def _own_vectors_have_no_wrappers(self) -> GymnasiumConfig:
        if self.vectorization == "own" and self.wrappers:
            raise ValueError(
                "vectorization 'own' steps the registered vector environment, which cannot be wrapped; "
                "remove the wrappers, or set vectorization to sync or async"
            )
        return self


class SimulatorConfig(_HostConfig):
    """A game or environment on the host whose clones the search steps through JAX callbacks."""

    name: Literal["simulator", "open_spiel", "gymnasium_simulator"]
    """`simulator` is a class of your own; the others name the game's library."""
    id: str
    """For `simulator`, the `module:Class` or `file.py:Class` of a `podzero.envs.Simulator`. Otherwise the name of an
    OpenSpiel game, or a gymnasium id."""
    # AlphaZero's limit in chess and shogi.
    max_plies: PositiveInt = 512
    """Plies after which a game is truncated: its value targets bootstrap from the last root value, and matches score it
    by the rewards so far."""
    discount: Fraction = 1.0
    """Discount per move."""
    reward_scale: PositiveFloat = 1.0
    """Factor applied to rewards. Choose it so that every discounted sum of rewards lies in [-1, 1]."""

    @pydantic.model_validator(mode="after")
    def _module_is_for_gymnasium(self) -> SimulatorConfig:
        if self.module is not None and self.name != "gymnasium_simulator":
            raise ValueError(f"module is only for gymnasium_simulator, not for '{self.name}'; remove it")
        return self

    @property
    def title(self) -> str:
        """The name of the game, in messages and as `EnvSpec.name`."""
        kind = self.name.removesuffix("_simulator")
        return called(f"{kind}/{self.id.rpartition(':')[2] if kind == 'simulator' else self.id}", self.kwargs)


def called(name: str, kwargs: dict[str, Any]) -> str:
    """`name`, followed by its keyword arguments if there are any."""
    arguments = ", ".join(f"{name}={value}" for name, value in kwargs.items())
    return f"{name}({arguments})" if arguments else name


EnvConfig = Annotated[
    GameConfig | ChanceGameConfig | OwnGameConfig | JaxLibraryConfig | GymnasiumConfig | SimulatorConfig,
    ByName(own=lambda _: OwnGameConfig),
]


_FROM_ELSEWHERE = ("GymV21Environment", "GymV26Environment")
"""Ids of gymnasium that make an environment of OpenAI's gym, from any module that `kwargs` name."""


def import_paths(env: EnvConfig) -> list[str]:
    """The import paths of all code that an environment names, as `podzero.core.importing.approve` takes them."""
    own = [env.place] if isinstance(env, OwnFile) and (":" in env.place or env.path_field == "module") else []
    wrappers = (wrapper.name for wrapper in getattr(env, "wrappers", ()))
    named = (name if ":" in name else f"gymnasium.wrappers:{name}" for name in wrappers)
    elsewhere = [env.id] if isinstance(env, GymnasiumConfig) and env.id.startswith(_FROM_ELSEWHERE) else []
    return [path for path in (*own, *named, *elsewhere) if path]


def is_learned(env: EnvConfig) -> bool:
    """Whether networks learn a model of the environment, whose rules no search follows."""
    return isinstance(env, GymnasiumConfig) or getattr(env, "model", "rules") == "learned"


def observes_komi(env: EnvConfig) -> bool:
    """Whether it is Go with many komis, each of which the network observes."""
    return isinstance(env, GameConfig) and env.komi is not None


def in_matches(env: EnvConfig) -> EnvConfig:
    """The environment of matches and engines: games of Go begin with `KOMI`, also if self-play draws theirs."""
    return env.model_copy(update={"komi": (KOMI, KOMI)}) if observes_komi(env) else env
