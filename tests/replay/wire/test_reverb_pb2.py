"""The checked-in code is what `reverb.proto` gives."""

from pathlib import Path

import pytest

from podzero.replay.wire.generate import generate

FOLDER = Path(__file__).resolve().parents[3] / "replay" / "wire"


@pytest.mark.parametrize("name", ["reverb_pb2.py", "reverb_pb2.pyi"])
def test_generated_code_is_that_of_the_protocol_file(tmp_path, name):
    generate(tmp_path)
    assert (tmp_path / name).read_text() == (FOLDER / name).read_text()
