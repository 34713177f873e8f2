"""Where actors evaluate the network: quantized to int8 by OpenVINO."""

from podzero.inference.agreement import Agreement as Agreement
from podzero.inference.agreement import agreement as agreement
from podzero.inference.background import BackgroundSource as BackgroundSource
from podzero.inference.instructions import has_int8_instructions as has_int8_instructions
from podzero.inference.openvino_model import openvino as openvino
from podzero.inference.positions import random_positions as random_positions
from podzero.inference.quantized import QuantizedNetwork as QuantizedNetwork
from podzero.inference.quantized import calibration_size as calibration_size
