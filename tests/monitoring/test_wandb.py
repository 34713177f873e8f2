"""Weights & Biases, offline: the files that it would send hold the metrics, and a resumed run keeps its id."""

import pytest

from podzero.config import load
from podzero.monitoring.reports import MetricsReport
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


def records(workdir):
    """The metrics in wandb's files: a dictionary for each call of `log`."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    found = []
    for file in sorted(workdir.root.glob("wandb/offline-run-*/*.wandb")):
        store = DataStore()
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                found.append({item.key or "/".join(item.nested_key): float(item.value_json) for item in items})
    return found


def test_metrics_are_logged_over_the_learner_step_by_one_run(workdir):
    from podzero.monitoring.wandb import STEP, WandbWriter

    for step in (7, 3):  # a resumption goes back to an earlier step
        writer = WandbWriter("someone/project", load("tic_tac_toe"), workdir)
        writer.write(MetricsReport(1.0, "learner", {"learner/loss": step / 10}), step)
        writer.close()
    logged = [(record["learner/learner/loss"], record[STEP]) for record in records(workdir)]
    assert sorted(logged) == [(0.3, 3.0), (0.7, 7.0)]
    held = read_json(workdir.writers_file)["wandb"]
    files = [file.name for file in workdir.root.glob("wandb/offline-run-*/*.wandb")]
    assert files
    assert all(held in file for file in files)
