"""OpenVINO on the host's CPU: how models are compiled and called."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from podzero.importing import import_openvino

FROM_CHANNELS_LAST, TO_CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations between JAX's `[B, H, W, C]` and OpenVINO's `[B, C, H, W]`."""


class CpuCompiler:
    """Compiles models for the CPU.

    Args:
      threads: compute threads.
      precision: of everything that is not quantized; OpenVINO's own default is bfloat16 where the CPU has it.

    Raises:
      ConfigError: OpenVINO is not installed.
    """

    def __init__(self, threads: int, precision: Literal["f32", "bf16"]) -> None:
        self._core = import_openvino().Core()
        self._settings = {
            "PERFORMANCE_HINT": "LATENCY",  # all threads share one batch; "THROUGHPUT" would divide them over several
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": precision,
            "ENABLE_CPU_PINNING": False,  # several processes would be pinned to the same cores
        }

    def compile(self, model: Any) -> Any:
        """The inference request of an `openvino.Model`, for `infer`."""
        return self._core.compile_model(model, "CPU", self._settings).create_infer_request()


def infer(request: Any, *inputs: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs of a model, copied out of the request."""
    outputs = request.infer(dict(enumerate(inputs)), share_inputs=True)
    return [outputs[index] for index in range(len(outputs))]
