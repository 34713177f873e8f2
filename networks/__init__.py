"""Networks. `make_network` and `make_inference` are the door; everything behind it is JAX, Flax and Haiku only."""

from podzero.networks.registry import make_inference as make_inference
from podzero.networks.registry import make_network as make_network
