"""Temporary folders of replay servers, and what becomes of those that a killed server leaves behind."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

from podzero.replay.checkpoint import CheckpointLink

HOLD = """
import sys, tempfile
from podzero.replay.checkpoint import CheckpointLink

tempfile.tempdir = sys.argv[1]
link = CheckpointLink()
(link.path / "chunk").write_text("samples")
print(link.path.parent.name, flush=True)
input()
"""


@pytest.fixture
def parent(tmp_path, monkeypatch):
    """The folder in which this process makes temporary ones."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder(parent):
    """Another process with such a folder there, and the name of that folder."""
    command = [sys.executable, "-c", HOLD, str(parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process, process.stdout.readline().strip()
        process.kill()


def names(parent):
    return {folder.name for folder in parent.iterdir()}


def test_the_folder_of_a_killed_process_is_deleted_by_the_next(parent, holder):
    process, name = holder
    assert names(parent) == {name}
    process.kill()
    process.wait(30)
    own = CheckpointLink()
    assert names(parent) == {own.path.parent.name}
    own.remove()
    own.remove()
    assert names(parent) == set()


def test_folders_of_living_processes_and_of_others_stay(parent, holder):
    _, name = holder
    (parent / "podzero-replay-of-an-older-version").mkdir()
    first, second = CheckpointLink(), CheckpointLink()
    own = {first.path.parent.name, second.path.parent.name}
    assert names(parent) == {name, "podzero-replay-of-an-older-version", *own}
    first.remove()
    second.remove()
