"""Pictures as PNG."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image


def png_of(pixels: np.ndarray[Any, Any]) -> bytes:
    """Pixels `[H, W, 3]` uint8 as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def data_address(png: bytes) -> str:
    """The address of an image that contains it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
