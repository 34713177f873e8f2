"""The neural networks, in Flax and Haiku: `make_network`, `make_inference` and `make_model_network` build them."""

from podzero.networks.registry import make_inference as make_inference
from podzero.networks.registry import make_model_network as make_model_network
from podzero.networks.registry import make_network as make_network
