"""Fast network evaluation: int8 and bfloat16 on CPUs by OpenVINO, int8 on TPUs, and inference servers (`serving/`)."""

from podzero.inference.agreement import random_positions as random_positions
from podzero.inference.openvino_network import QuantizedNetwork as QuantizedNetwork
from podzero.inference.openvino_network import quantized_network as quantized_network
from podzero.inference.sources import BackgroundSource as BackgroundSource
from podzero.inference.sources import FoldedSource as FoldedSource
