"""Vectors of gymnasium environments.

This package does not import JAX. The code that the processes of `vectorization: async` run is pickled by value, so that
they import only gymnasium and the environment itself.
"""

from podzero.envs.gymnasium_envs.interface import Interface as Interface
from podzero.envs.gymnasium_envs.making import Rendering as Rendering
from podzero.envs.gymnasium_envs.making import interface_of as interface_of
from podzero.envs.gymnasium_envs.making import observed_picture as observed_picture
from podzero.envs.gymnasium_envs.making import picture as picture
from podzero.envs.gymnasium_envs.making import rendering_of as rendering_of
from podzero.envs.gymnasium_envs.making import spec_to as spec_to
from podzero.envs.gymnasium_envs.spaces import is_truth as is_truth
from podzero.envs.gymnasium_envs.vector import VectorEnv as VectorEnv
from podzero.envs.gymnasium_envs.vector import VectorStep as VectorStep
from podzero.envs.gymnasium_envs.vector import check_steps as check_steps
