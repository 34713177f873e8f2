"""Builds the network that the learner trains."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from podzero.config import Experiment, ModelNetworkConfig, ResNetConfig
from podzero.core.types import EnvSpec, ModelNetwork, Network, Symmetry
from podzero.envs import check_values, make_env, spec_of
from podzero.inference import has_bfloat16_instructions
from podzero.learner.openvino_tower import host_resnet
from podzero.networks import make_model_network, make_network

log = logging.getLogger(__name__)


def learner_parts(experiment: Experiment) -> tuple[Network | ModelNetwork, EnvSpec, Sequence[Symmetry]]:
    """The network of an experiment, and its environment's specification and symmetries.

    Raises:
      ConfigError: a setting needs one value per position and each player of the game has one, or OpenVINO, which
        computes the network's tower, is not installed.
    """
    if isinstance(experiment.network, ModelNetworkConfig):
        spec = spec_of(experiment.env)
        return make_model_network(experiment.network, spec), spec, ()
    env = make_env(experiment.env)
    check_values(experiment, env.spec)
    if experiment.learner.cpu_convolutions == "openvino" and experiment.cluster.tpu is None:
        assert isinstance(experiment.network, ResNetConfig)
        if has_bfloat16_instructions():
            return host_resnet(experiment.network, env.spec), env.spec, env.symmetries
        log.warning("this CPU has no bfloat16 instructions: learner.cpu_convolutions = openvino uses XLA here")
    return make_network(experiment.network, env.spec), env.spec, env.symmetries
