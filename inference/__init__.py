"""Fast network evaluation: int8 and bfloat16 on CPUs by OpenVINO, int8 on TPUs, and inference servers (`serving/`)."""

from podzero.inference.agreement import Agreement as Agreement
from podzero.inference.agreement import CalibrationPositions as CalibrationPositions
from podzero.inference.agreement import RecentPositions as RecentPositions
from podzero.inference.agreement import agreement as agreement
from podzero.inference.agreement import random_positions as random_positions
from podzero.inference.int8_network import Int8Network as Int8Network
from podzero.inference.openvino_model import has_bfloat16_instructions as has_bfloat16_instructions
from podzero.inference.openvino_model import has_int8_instructions as has_int8_instructions
from podzero.inference.quantized import QuantizedNetwork as QuantizedNetwork
from podzero.inference.quantized import calibration_size as calibration_size
from podzero.inference.quantized import quantized_network as quantized_network
from podzero.inference.sources import BackgroundSource as BackgroundSource
from podzero.inference.sources import FoldedSource as FoldedSource
