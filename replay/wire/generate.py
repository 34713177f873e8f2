"""Generates `reverb_pb2.py` and `reverb_pb2.pyi` from `reverb.proto`; needs grpcio-tools of the development group.

uv run --group dev python replay/wire/generate.py
"""

from __future__ import annotations

import sys
from pathlib import Path

_FOLDER = Path(__file__).parent


def generate(into: Path) -> None:
    """Writes the two modules into the folder `into`."""
    from grpc_tools import protoc

    arguments = ["protoc", f"--proto_path={_FOLDER}", f"--python_out={into}", f"--pyi_out={into}", "reverb.proto"]
    if protoc.main(arguments):
        raise RuntimeError(f"protoc failed: {' '.join(arguments)}")


if __name__ == "__main__":
    generate(_FOLDER)
    sys.exit(0)
