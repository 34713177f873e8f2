"""Makes the environment of an experiment's `env` section."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_args

from podzero.config import (
    ChanceGameConfig,
    EnvConfig,
    Experiment,
    Game,
    GameConfig,
    GymnasiumConfig,
    JaxLibraryConfig,
    OwnGameConfig,
    SimulatorConfig,
    environments,
    import_paths,
    is_learned,
)
from podzero.config.section import check_digest
from podzero.core.errors import ConfigError, nearest
from podzero.core.importing import approve, import_class
from podzero.core.protocols import Env, JaxGame
from podzero.core.types import EnvSpec
from podzero.envs.boards import BOARD_GAMES, CHANCE_GAMES, GO_GAMES
from podzero.envs.boards.go import Go
from podzero.envs.boards.hex import Hex
from podzero.envs.faults import DeadlineThread
from podzero.envs.gymnasium_envs.interface import Interface
from podzero.envs.gymnasium_envs.making import Rendering, explained, interface_of, rendering_of, spec_to
from podzero.envs.gymnasium_envs.vector import check_steps
from podzero.envs.host import HostEnv
from podzero.envs.jax_game import GameOfChance, OwnGame, Simulation, check_game
from podzero.envs.jax_libraries import GymnaxEnv, JumanjiEnv, PgxGame
from podzero.envs.simulator import Simulator, check_simulator
from podzero.envs.simulator_libraries import GymnasiumSimulator, OpenSpielGame


def make_host_env(config: SimulatorConfig) -> HostEnv:
    """Makes the game of `config` and checks it with two short random games."""
    simulator = make_simulator(config)
    check_simulator(simulator, config.title, 2, 12, config.discount, config.reward_scale)
    max_plies = simulator.max_length if isinstance(simulator, OpenSpielGame) else config.max_plies
    return HostEnv(
        simulator,
        config.title,
        max_plies=min(max_plies, config.max_plies),
        reward_scale=config.reward_scale,
        step_timeout_s=config.step_timeout_s,
    )


def make_simulator(config: SimulatorConfig) -> Simulator:
    """Makes the game of `config` without checking it."""
    match config.name:
        case "open_spiel":
            return OpenSpielGame(config.id, config.kwargs)
        case "gymnasium_simulator":
            check_digest(config, "env.module")
            return GymnasiumSimulator(config.id, config.kwargs, config.place or None)
        case "simulator":
            simulator: Simulator = _instance(config, "env.id", Simulator)
            return simulator


def _instance(config: OwnGameConfig | SimulatorConfig, field: str, protocol: type) -> Any:
    """An object of the user's class, which has what the protocol asks for; `field` is the setting that names it."""
    check_digest(config, field)
    kind = import_class(config.place, field)
    with explained(f"{field} = '{config.import_path}'", config.kwargs):
        made = kind(**config.kwargs)
    expected = (name for name in vars(protocol) if not name.startswith("_"))
    if missing := sorted(name for name in expected if not hasattr(made, name)):
        raise ConfigError(
            f"{field} = '{config.import_path}' is not a podzero.envs.{protocol.__name__}: it lacks {', '.join(missing)}"
        )
    return made


def make_jax_env(config: OwnGameConfig | JaxLibraryConfig) -> OwnGame | GameOfChance | Simulation:
    """Makes a game in JAX that is not podzero's own, and checks its contract in random games."""
    learned = is_learned(config)
    if isinstance(config, OwnGameConfig):
        game = _instance(config, "env.name", JaxGame)
        draws = len(inspect.signature(game.step).parameters) > 2
        if draws and not learned:
            raise ConfigError(
                f"env.name = '{config.name}': its step takes a key to draw from, and a search of its states would "
                "foresee that; set env.model=learned, with a network that learns a model"
            )
    else:
        kind = JumanjiEnv if config.name == "jumanji" else GymnaxEnv
        game, draws = kind(config.id, config.kwargs, config.reward_scale, learned), learned
    env: OwnGame | GameOfChance | Simulation = OwnGame(game, config.title)
    if hasattr(game, "chance") or draws:
        env = GameOfChance(game, config.title) if hasattr(game, "chance") else Simulation(game, config.title)
    if learned and env.spec.players != 1:
        raise ConfigError(f"env.model = learned is for one player, and {config.title} has {env.spec.players}")
    check_game(env, learned=learned)
    return env


GAMES: tuple[str, ...] = get_args(Game)
"""The supported pgx games: two players, perfect information."""


def make_env(env: str | EnvConfig) -> Env:
    """Makes a game or simulator for tree search; a string is the name of a game in JAX.

    Raises:
      ConfigError: the name is unknown (the message suggests the closest known one), or the environment cannot be made,
        or not within `environments.BUILD_TIMEOUT_S`.
    """
    match env:
        case GameConfig(name="hex", size=int(size)):
            return Hex(size)
        case GameConfig(name=name):
            return make_env(name) if env.komi is None else Go(GO_GAMES[name], env.komi)
        case str() if env in GAMES:
            return BOARD_GAMES[env]() if env in BOARD_GAMES else OwnGame(PgxGame(env), env)
        case str():
            raise ConfigError(f"unknown game '{env}'{nearest(env, GAMES)}; known: {', '.join(GAMES)}")
        case ChanceGameConfig():
            return GameOfChance(CHANCE_GAMES[env.name](env.scale), env.title)
        case OwnGameConfig() | JaxLibraryConfig():
            return _in_time(make_jax_env, env)
        case SimulatorConfig():
            return _in_time(make_host_env, env)
        case GymnasiumConfig():
            raise ConfigError(f"{env.id} of gymnasium cannot be cloned: tree search needs a game or a simulator")


def check_env(env: EnvConfig, games: int, max_plies: int) -> EnvSpec:
    """Checks the contract of a game, simulator or environment in random games or episodes of at most `max_plies`.

    Returns its shapes and dtypes. A `ConfigError` says what is wrong.
    """
    if isinstance(env, GymnasiumConfig):
        return check_steps(env, games, max_plies)
    made = make_env(env)
    if isinstance(env, SimulatorConfig):
        check_simulator(make_simulator(env), env.title, games, max_plies, env.discount, env.reward_scale)
    else:
        check_game(made, games, max_plies, learned=is_learned(env))
    return made.spec


def own_env(identifier: str) -> EnvConfig:
    """The section `env` of a class by its path: a `JaxGame` if it has `view`, else a `Simulator`."""
    if hasattr(import_class(identifier, "environment"), "view"):
        return OwnGameConfig(name=identifier)
    return SimulatorConfig(name="simulator", id=identifier)


def spec_of(env: EnvConfig) -> EnvSpec:
    """Shapes and dtypes of an environment of any kind.

    Raises:
      ConfigError: the environment is unknown, its spaces are not supported, or it is not made in time.
    """
    return spec_to(gymnasium_interface(env)) if isinstance(env, GymnasiumConfig) else make_env(env).spec


def check_values(experiment: Experiment, spec: EnvSpec) -> None:
    """Refuses settings that need a single value per position, or owners of squares, in a game that has none."""
    if experiment.predicts_ownership and not spec.squares:
        raise ConfigError(
            f"network.ownership: {spec.name} does not tell who owns a square; set network.ownership=false"
        )
    if experiment.actors.resign_value is not None and spec.players != 2:
        raise ConfigError(
            f"actors.resign_value: {spec.name} has {spec.players} player(s), and one of two resigns; set "
            "actors.resign_value=null"
        )
    if spec.values == 1:
        return
    actors = experiment.actors
    refused = {
        "actors.root_value_weight": actors.root_value_weight > 0,
        "actors.td_lambda": actors.td_lambda < 1,
        "actors.opponents": bool(actors.opponents),
        "actors.inference=int8": actors.inference == "int8",
        "int8.on_tpu": experiment.int8.on_tpu,
        "network.auxiliary or network.name=nested": experiment.has_auxiliary_heads,
        "reanalyse.share": experiment.reanalyse.share > 0,
        "data.records": experiment.data.records is not None,
    }
    if found := [name for name, is_set in refused.items() if is_set]:
        raise ConfigError(
            f"{', '.join(found)}: supported only in games for one player and zero-sum games for two; in {spec.name} "
            f"each of {spec.players} players has a value of its own. Remove these settings"
        )


def gymnasium_interface(env: GymnasiumConfig) -> Interface:
    """How observations and actions of an environment are checked and converted; raises as `spec_of` does."""
    return _in_time(interface_of, env)


def rendering(config: GymnasiumConfig) -> Rendering:
    """How to make an environment that renders; see `rendering_of`."""
    return _in_time(rendering_of, config)


def _in_time[C: (GymnasiumConfig, SimulatorConfig, OwnGameConfig | JaxLibraryConfig), Made](
    make: Callable[[C], Made], config: C
) -> Made:
    """Calls `make(config)` within `environments.BUILD_TIMEOUT_S`."""
    approve(*import_paths(config))  # here, since the user may think about the answer for as long as they like
    # It runs foreign code, which may hang.
    thread = DeadlineThread(config.title)
    try:
        return thread.call(lambda: make(config), environments.BUILD_TIMEOUT_S)
    except TimeoutError as error:
        raise ConfigError(f"{config.title} cannot be made: {error}") from None
    finally:
        thread.stop()
