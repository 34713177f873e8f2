"""Networks: `make_network`, `make_inference` and `make_model_network`. Behind them are JAX, Flax and Haiku only."""

from podzero.networks.registry import make_inference as make_inference
from podzero.networks.registry import make_model_network as make_model_network
from podzero.networks.registry import make_network as make_network
