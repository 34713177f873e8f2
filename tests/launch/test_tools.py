"""`podzero report` and `podzero export`."""

import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from podzero.config import load
from podzero.files.workdir import Workdir


def make_run(folder):
    workdir = Workdir(folder)
    workdir.open(load("tic_tac_toe"))
    return workdir


def test_the_report_is_written_into_the_working_directory(command, tmp_path):
    workdir = make_run(tmp_path / "run")
    code, out, _ = command("report", str(workdir.root), "--json")
    assert code == 0
    file = workdir.root / "report.html"
    assert json.loads(out) == {"report": str(file), "bytes": file.stat().st_size}
    assert file.read_text().startswith("<!doctype html>")


def test_the_report_is_written_where_the_user_wants_it(command, tmp_path):
    workdir = make_run(tmp_path / "run")
    assert command("report", str(workdir.root), "--output", str(tmp_path / "page.html"))[0] == 0
    assert (tmp_path / "page.html").exists()
    assert not (workdir.root / "report.html").exists()


def test_a_directory_without_a_run_is_refused(command, tmp_path):
    code, _, err = command("report", str(tmp_path))
    assert code == 2
    assert "holds no experiment.yaml" in err


def test_a_file_that_cannot_be_written_is_an_error_with_advice(command, tmp_path):
    workdir = make_run(tmp_path / "run")
    code, _, err = command("report", str(workdir.root), "--output", str(tmp_path / "missing" / "page.html"))
    assert code == 2
    assert "--output" in err


def test_a_served_report_goes_on_until_it_is_interrupted(tmp_path):
    workdir = make_run(tmp_path / "run")
    arguments = ["report", str(workdir.root), "--serve", "--json"]
    command = [sys.executable, "-c", "from podzero.launch.main import main; main()", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = json.loads(process.stdout.readline())["address"]
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert "<h1>tic_tac_toe</h1>" in answer.read().decode()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("options", [["--serve", "--output", "x.html"], ["--port", "8000"]])
def test_options_that_do_not_go_together_are_refused(command, tmp_path, options):
    code, _, err = command("report", str(make_run(tmp_path / "run").root), *options)
    assert code == 2
    assert options[-2].removesuffix("x.html") in err


def test_an_agent_of_the_zoo_is_exported(command, tmp_path):
    code, out, _ = command("export", "zoo:go_9x9", "--to", str(tmp_path / "go.onnx"), "--json")
    assert code == 0
    result = json.loads(out)
    assert result["files"] == [str(tmp_path / "go.onnx")]
    assert result["metadata"]["game"] == "go_9x9"
    assert result["metadata"]["trained_with_commit"]
    assert max(result["differences"].values()) < result["bound"]
    assert (tmp_path / "go.onnx").stat().st_size > 1e6


def test_people_see_where_the_file_is_and_how_far_it_is_from_jax(command, tmp_path):
    code, out, _ = command("export", "zoo:go_9x9", "--to", str(tmp_path / "go.stablehlo"))
    assert code == 0
    shown = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert shown["files"] == str(tmp_path / "go.stablehlo")
    assert re.search(r"by at most \d\S* \((policy_logits|value)\)", shown["checked"])


def test_errors_are_messages(command, tmp_path):
    code, _, err = command("export", "zoo:go_9x9", "--to", str(tmp_path / "go.pb"))
    assert code == 2
    assert err.startswith("podzero: --to ")
    code, out, _ = command("export", "mcts:3", "--to", str(tmp_path / "go.onnx"), "--json")
    assert code == 2
    assert json.loads(out)["kind"] == "ConfigError"
