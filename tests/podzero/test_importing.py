"""Imports of code that an experiment names."""

import logging

import pytest

from podzero import importing
from podzero.importing import import_named


@pytest.mark.parametrize(("seconds", "named"), [(0.5, True), (0.0, False)])
def test_an_import_that_takes_long_is_named_while_it_is_waited_for(tmp_path, monkeypatch, caplog, seconds, named):
    monkeypatch.setattr(importing, "SLOW_IMPORT_S", 0.1)
    file = tmp_path / "my_net.py"
    file.write_text(f"import time\ntime.sleep({seconds})\nmade = 1\n")
    with caplog.at_level(logging.WARNING):
        assert import_named(f"{file}:made", "network.name") == 1
    assert (str(file) in caplog.text) is named
