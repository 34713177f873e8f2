"""Gymnasium environments side by side: one vector interface with one way to begin, end and fail an episode.

Nothing here needs JAX. What runs in the processes of `vectorization: async` travels there by value, so that they
import no more than gymnasium and the environment itself.
"""

from podzero.envs.gymnasium_envs.interface import interface_of as interface_of
from podzero.envs.gymnasium_envs.vector import Step as Step
from podzero.envs.gymnasium_envs.vector import VectorEnv as VectorEnv
