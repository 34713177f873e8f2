"""The services that take metrics: Weights & Biases offline, MLflow with its store in files, Prometheus over HTTP."""

import json
import struct
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.files.workdir import Workdir, read_json
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.runtime.monitoring.writers import WANDB_STEP, MlflowWriter, PrometheusWriter, WandbWriter


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path / "run")
    workdir.open(load("tic_tac_toe"))
    return workdir


@pytest.fixture
def wandb_workdir(workdir, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for folder in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / "wandb"))
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


def test_metrics_are_logged_over_the_learner_step_by_one_wandb_run(wandb_workdir):
    workdir = wandb_workdir
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
    found.sort(key=lambda record: -record[WANDB_STEP])
    assert [(record["learner/learner/loss"], record[WANDB_STEP]) for record in found] == [(0.7, 7), (0.3, 3)]
    held = read_json(workdir.writers_file)["wandb"]
    assert [file.name for file in files] == [f"run-{held}.wandb"] * 2


@pytest.fixture
def mlflow_workdir(workdir, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return workdir


def test_metrics_are_logged_at_their_step_by_one_mlflow_run(mlflow_workdir, tmp_path):
    from mlflow import MlflowClient

    workdir = mlflow_workdir
    uri = (tmp_path / "store").as_uri()
    for step in (3, 7):
        writer = MlflowWriter(uri, load("tic_tac_toe"), workdir)
        metrics = {"learner/loss": step / 10, "evaluation/score_mcts:100": 0.5, "x": float("nan")}
        writer.write(MetricsReport(1.5, "learner", metrics), step)
        writer.close()
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("tic_tac_toe")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == read_json(workdir.writers_file)["mlflow"]
    assert run.info.status == "FINISHED"
    losses = client.get_metric_history(run.info.run_id, "learner/learner/loss")
    assert [(loss.step, loss.value, loss.timestamp) for loss in losses] == [(3, 0.3, 1500), (7, 0.7, 1500)]
    assert run.data.metrics.keys() == {"learner/learner/loss", "learner/evaluation/score_mcts_100"}
    assert run.data.params["learner.batch_size"] == str(load("tic_tac_toe").learner.batch_size)
    assert run.data.tags["workdir"] == str(workdir.root)


def test_a_server_that_does_not_answer_is_an_error(mlflow_workdir, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(Exception, match=r"127\.0\.0\.1"):
        MlflowWriter("http://127.0.0.1:1", load("tic_tac_toe"), mlflow_workdir)
    assert not mlflow_workdir.writers_file.exists()


@pytest.fixture
def writer():
    writer = PrometheusWriter("127.0.0.1:0", "a run")
    yield writer
    writer.close()


def scraped(writer):
    with urllib.request.urlopen(f"http://127.0.0.1:{writer._server.server_port}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, sample.labels["worker"]): sample.value for family in families for sample in family.samples
        }


def test_gauges_are_replaced_and_counts_are_summed_up(writer):
    for step, size, moves in ((1, 10.0, 5.0), (2, 20.0, 7.0)):
        writer.write(MetricsReport(0.0, "actor", {"replay/size": size, "count/moves": moves}), step)
    writer.write(MetricsReport(0.0, "reanalyser", {"count/moves": 1.0}), 2)
    found = scraped(writer)
    assert found["podzero_replay_size", "actor"] == 20.0
    assert found["podzero_moves_total", "actor"] == 12.0
    assert found["podzero_moves_total", "reanalyser"] == 1.0
    assert found["podzero_step", "actor"] == 2.0


def test_values_that_are_not_finite_and_odd_names_are_taken(writer):
    metrics = {"learner/loss": float("nan"), "evaluation/score_mcts:100": 0.5, "count/x": float("nan"), "count/y": -1.0}
    writer.write(MetricsReport(0.0, "learner", metrics), 1)
    assert scraped(writer)["podzero_evaluation_score_mcts_100", "learner"] == 0.5


def test_names_are_letters_digits_and_underscores(writer):
    writer.write(MetricsReport(0.0, "learner", {"time/wait_replay": 0.5, "evaluation/score_@5!": 0.25}), 1)
    found = scraped(writer)
    assert found["podzero_time_wait_replay", "learner"] == 0.5
    assert found["podzero_evaluation_score_5", "learner"] == 0.25


def test_a_closed_endpoint_releases_its_port(writer):
    port = writer._server.server_port
    writer.close()
    PrometheusWriter(f"127.0.0.1:{port}", "another").close()


def test_a_port_that_is_in_use_is_refused(writer):
    with pytest.raises(ConfigError, match=r"metrics\.prometheus"):
        PrometheusWriter(f"127.0.0.1:{writer._server.server_port}", "another")
