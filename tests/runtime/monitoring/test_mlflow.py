"""MLflow with its store in files: metrics, settings, and one run however often it is resumed."""

import pytest

from podzero.config import load
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.workdir import Workdir, read_json

pytest.importorskip("mlflow")


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    workdir = Workdir(tmp_path / "run")
    workdir.open(load("tic_tac_toe"))
    return workdir


def test_metrics_are_logged_at_their_step_by_one_run(workdir, tmp_path):
    from mlflow import MlflowClient

    from podzero.runtime.monitoring.mlflow import MlflowWriter

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


def test_a_server_that_does_not_answer_is_an_error(workdir, monkeypatch):
    from podzero.runtime.monitoring.mlflow import MlflowWriter

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(Exception, match=r"127\.0\.0\.1"):
        MlflowWriter("http://127.0.0.1:1", load("tic_tac_toe"), workdir)
    assert not workdir.writers_file.exists()
