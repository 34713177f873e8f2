"""Imports of code that an experiment names."""

import logging
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from podzero.core import importing
from podzero.core.importing import import_named, without_current_folder


@pytest.mark.parametrize(("seconds", "named"), [(0.5, True), (0.0, False)])
def test_an_import_that_takes_long_is_named_while_it_is_waited_for(tmp_path, monkeypatch, caplog, seconds, named):
    monkeypatch.setattr(importing, "SLOW_IMPORT_S", 0.1)
    file = tmp_path / "my_net.py"
    file.write_text(f"import time\ntime.sleep({seconds})\nmade = 1\n")
    with caplog.at_level(logging.WARNING):
        assert import_named(f"{file}:made", "network.name") == 1
    assert (str(file) in caplog.text) is named


PODZERO = Path(sys.executable).with_name("podzero")


def test_processes_start_without_the_current_folder_on_their_path(monkeypatch):
    """The methods of `multiprocessing` put it there, first."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with without_current_folder(), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(os.getenv, "PYTHONSAFEPATH").result(60) == "1"
    assert "PYTHONSAFEPATH" not in os.environ
    monkeypatch.setenv("PYTHONSAFEPATH", "yes")
    with without_current_folder():
        pass
    assert os.environ["PYTHONSAFEPATH"] == "yes"


@pytest.mark.slow
def test_environments_are_made_in_a_folder_with_files_that_have_names_of_libraries(tmp_path):
    """Each of these is imported by a process of `multiprocessing`, or by the one that forks environments."""
    for name in ("linecache", "numpy", "gymnasium", "signal", "jax", "tracemalloc", "selectors"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the library')")
    done = subprocess.run(
        [PODZERO, "train", "cartpole", "env.vectorization=async", "--check"],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
