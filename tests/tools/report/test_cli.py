"""`podzero report`."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest
from run_files import evaluation

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


def test_the_curves_of_a_run_are_written_as_csv(command, tmp_path):
    workdir = make_run(tmp_path / "run")
    workdir.metrics_file.write_bytes(evaluation(10, 20, keeps_value=0.5) + b"\n")
    assert command("report", str(workdir.root), "--output", str(tmp_path / "run.csv"))[0] == 0
    header, row = (tmp_path / "run.csv").read_text().splitlines()
    assert header == "figure,unit,curve,hours,steps,games,value,low,high"
    assert row.startswith("Moves that keep the value,share,all plies,")


@pytest.mark.parametrize("file", ["run.csv", "run.html"])
def test_the_axis_of_a_file_that_has_none_to_choose_is_refused(command, tmp_path, file):
    workdir = make_run(tmp_path / "run")
    code, _, err = command("report", str(workdir.root), "--over", "steps", "--output", str(tmp_path / file))
    assert code == 2
    assert "--output FILE.pdf" in err


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
