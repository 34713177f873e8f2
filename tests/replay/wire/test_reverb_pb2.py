"""The checked-in code is what `reverb.proto` gives."""

from pathlib import Path

import pytest
from grpc_tools import protoc

FOLDER = Path(__file__).resolve().parents[3] / "replay"


@pytest.mark.parametrize("name", ["reverb_pb2.py", "reverb_pb2.pyi"])
def test_generated_code_is_that_of_the_protocol_file(tmp_path, name):
    command = ["protoc", f"--proto_path={FOLDER}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", "reverb.proto"]
    assert protoc.main(command) == 0
    assert (tmp_path / name).read_text() == (FOLDER / name).read_text()
