"""Weights & Biases, offline: the files that it would send hold the metrics, and a resumed run keeps its id."""

import json
import struct
import time

import pytest

from podzero.config import load
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.workdir import Workdir, read_json

pytest.importorskip("wandb")


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for folder in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / "wandb"))
    workdir = Workdir(tmp_path / "run")
    workdir.open(load("tic_tac_toe"))
    return workdir


def logged(file):
    """The metrics of each call of `log` in a file of wandb that is smaller than a block of LevelDB's log format.

    A header of 7 bytes, then for each record a checksum, its length, its kind (1: whole) and a protocol buffer.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, found = file.read_bytes(), 7, []
    assert len(data) < 2**15
    while place + 7 <= len(data):
        _, length, kind = struct.unpack_from("<IHB", data, place)
        assert kind == 1
        if place + 7 + length > len(data):
            break  # it is being written
        record = Record.FromString(data[place + 7 : place + 7 + length])
        place += 7 + length
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    return found


def test_metrics_are_logged_over_the_learner_step_by_one_run(workdir):
    from podzero.runtime.monitoring.wandb import STEP, WandbWriter

    for step in (7, 3):  # a resumption goes back to an earlier step
        writer = WandbWriter("someone/project", load("tic_tac_toe"), workdir)
        writer.write(MetricsReport(1.0, "learner", {"learner/loss": step / 10}), step)
        writer.close()
    deadline = time.monotonic() + 60
    while True:  # wandb's own process writes the files
        files = sorted(workdir.root.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns)
        found = [record for file in files for record in logged(file)]
        if len(found) == 2 or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    found.sort(key=lambda record: -record[STEP])
    assert [(record["learner/learner/loss"], record[STEP]) for record in found] == [(0.7, 7), (0.3, 3)]
    held = read_json(workdir.writers_file)["wandb"]
    assert [file.name for file in files] == [f"run-{held}.wandb"] * 2
