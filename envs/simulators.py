"""Makes the simulator that a `SimulatorConfig` names."""

from __future__ import annotations

from podzero.config import SimulatorConfig
from podzero.envs.gymnasium_simulator import GymnasiumSimulator
from podzero.envs.host import HostEnv
from podzero.envs.open_spiel import OpenSpielGame
from podzero.envs.pettingzoo_games import PettingZooGame
from podzero.envs.simulator import Simulator
from podzero.envs.simulator_check import check_simulator
from podzero.errors import ConfigError
from podzero.importing import import_class


def make_host_env(config: SimulatorConfig) -> HostEnv:
    """Makes the game of `config` and checks it with two short random games.

    Raises:
      ConfigError: the game is unknown, tree search cannot play it, or it violates the contract (`check_simulator`).
    """
    simulator = make_simulator(config)
    check_simulator(
        simulator, config.title, games=2, max_plies=12, discount=config.discount, reward_scale=config.reward_scale
    )
    max_plies = simulator.max_length if isinstance(simulator, OpenSpielGame) else config.max_plies
    return HostEnv(
        simulator,
        config.title,
        max_plies=min(max_plies, config.max_plies),
        reward_scale=config.reward_scale,
        step_timeout_s=config.step_timeout_s,
        cache_size=config.kept_positions,
    )


def make_simulator(config: SimulatorConfig) -> Simulator:
    """Makes the game of `config` without checking it.

    Raises:
      ConfigError: the game is unknown, or tree search cannot play it.
    """
    match config.name:
        case "open_spiel":
            return OpenSpielGame(config.id, config.kwargs)
        case "pettingzoo":
            return PettingZooGame(config.id, config.kwargs)
        case "gymnasium_simulator":
            return GymnasiumSimulator(config.id, config.kwargs, config.module)
        case "simulator":
            return _own_game(config)


def _own_game(config: SimulatorConfig) -> Simulator:
    game = import_class(config.id, "env.id")
    try:
        simulator: Simulator = game(**config.kwargs)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise ConfigError(f"env.id = '{config.id}': {game.__name__}(**{config.kwargs}) raised {found}") from error
    expected = (name for name in vars(Simulator) if not name.startswith("_"))
    if missing := sorted(name for name in expected if not hasattr(simulator, name)):
        raise ConfigError(f"env.id = '{config.id}' is not a podzero.envs.Simulator: it lacks {', '.join(missing)}")
    return simulator
