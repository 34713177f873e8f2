"""The schema of an experiment, and every check that needs no device.

Models are frozen and refuse unknown keys. `load` reads a YAML file, with those that it extends, and applies
`section.field=value` overrides.
One `ConfigError` reports all faults: each field, its value and the most similar valid name.
"""

from podzero.config.acting import ActorsConfig as ActorsConfig
from podzero.config.acting import OwnAlgorithmConfig as OwnAlgorithmConfig
from podzero.config.acting import ReplayConfig as ReplayConfig
from podzero.config.acting import SearchConfig as SearchConfig
from podzero.config.acting import ServerConfig as ServerConfig
from podzero.config.checks import schedule_note as schedule_note
from podzero.config.environments import BUILTIN_GAMES as BUILTIN_GAMES
from podzero.config.environments import KOMI as KOMI
from podzero.config.environments import LARGEST_KOMI as LARGEST_KOMI
from podzero.config.environments import ChanceGameConfig as ChanceGameConfig
from podzero.config.environments import EnvConfig as EnvConfig
from podzero.config.environments import Game as Game
from podzero.config.environments import GameConfig as GameConfig
from podzero.config.environments import GymnasiumConfig as GymnasiumConfig
from podzero.config.environments import JaxGameConfig as JaxGameConfig
from podzero.config.environments import JaxLibrary as JaxLibrary
from podzero.config.environments import JaxLibraryConfig as JaxLibraryConfig
from podzero.config.environments import Komi as Komi
from podzero.config.environments import OwnGameConfig as OwnGameConfig
from podzero.config.environments import SimulatorConfig as SimulatorConfig
from podzero.config.environments import import_paths as import_paths
from podzero.config.environments import in_matches as in_matches
from podzero.config.environments import is_learned as is_learned
from podzero.config.environments import observes_komi as observes_komi
from podzero.config.experiment import Experiment as Experiment
from podzero.config.layers import FOR_SLICES as FOR_SLICES
from podzero.config.layers import Layers as Layers
from podzero.config.layers import builtin_configs as builtin_configs
from podzero.config.layers import flatten as flatten
from podzero.config.layers import read_layers as read_layers
from podzero.config.layers import read_tree as read_tree
from podzero.config.layers import read_yaml as read_yaml
from podzero.config.loading import load as load
from podzero.config.loading import parse as parse
from podzero.config.networks import MLPConfig as MLPConfig
from podzero.config.networks import ModelNetworkConfig as ModelNetworkConfig
from podzero.config.networks import MuZeroMLPConfig as MuZeroMLPConfig
from podzero.config.networks import MuZeroResNetConfig as MuZeroResNetConfig
from podzero.config.networks import NestedConfig as NestedConfig
from podzero.config.networks import NetworkConfig as NetworkConfig
from podzero.config.networks import OwnModelConfig as OwnModelConfig
from podzero.config.networks import OwnNetworkConfig as OwnNetworkConfig
from podzero.config.networks import ResNetConfig as ResNetConfig
from podzero.config.networks import TransformerConfig as TransformerConfig
from podzero.config.running import SCORES as SCORES
from podzero.config.running import ClusterConfig as ClusterConfig
from podzero.config.running import EvaluationConfig as EvaluationConfig
from podzero.config.running import MetricsConfig as MetricsConfig
from podzero.config.running import StopConfig as StopConfig
from podzero.config.section import OwnFile as OwnFile
from podzero.config.training import AnyOptimizerConfig as AnyOptimizerConfig
from podzero.config.training import LearnerConfig as LearnerConfig
from podzero.config.training import MeshConfig as MeshConfig
from podzero.config.training import MuZeroConfig as MuZeroConfig
from podzero.config.training import OptimizerConfig as OptimizerConfig
from podzero.config.training import OwnObjectiveConfig as OwnObjectiveConfig
from podzero.config.training import OwnOptimizerConfig as OwnOptimizerConfig
from podzero.config.training import SplitRule as SplitRule
