"""Environments: `make_env` and `make_vector_env` create them. This package imports neither Ray nor Reverb."""

from podzero.envs.faults import EnvironmentFailed as EnvironmentFailed
from podzero.envs.faults import SimulatorError as SimulatorError
from podzero.envs.faults import faults_of as faults_of
from podzero.envs.faults import simulator_errors as simulator_errors
from podzero.envs.gymnasium_envs import Rendering as Rendering
from podzero.envs.gymnasium_envs import VectorEnv as VectorEnv
from podzero.envs.gymnasium_envs import VectorStep as VectorStep
from podzero.envs.gymnasium_envs import observed_picture as observed_picture
from podzero.envs.host import HostEnv as HostEnv
from podzero.envs.notation.registry import notation_for as notation_for
from podzero.envs.packing import pack_states as pack_states
from podzero.envs.packing import unpack_states as unpack_states
from podzero.envs.registry import GAMES as GAMES
from podzero.envs.registry import make_env as make_env
from podzero.envs.registry import make_vector_env as make_vector_env
from podzero.envs.registry import rendering as rendering
from podzero.envs.registry import spec_of as spec_of
from podzero.envs.replaying import SimulatorReplay as SimulatorReplay
from podzero.envs.replaying import renders as renders
from podzero.envs.simulator import NamedSimulator as NamedSimulator
from podzero.envs.simulator import RenderedSimulator as RenderedSimulator
from podzero.envs.simulator import Simulator as Simulator
from podzero.envs.simulator import check_simulator as check_simulator
