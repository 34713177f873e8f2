import importlib.metadata
import sys

import pytest

from podzero.launch import cli, doctor
from podzero.launch.doctor import Check


def test_no_check_fails_on_this_machine():
    for check in (doctor.python(), doctor.packages(), doctor.cores(), doctor.ports(), doctor.memory(), doctor.disk()):
        assert check.verdict != "fail", check
        assert check.found
        assert (check.verdict == "ok") == (not check.hint), check


def test_the_devices_of_jax_are_named():
    check = doctor.jax_devices()
    assert check.verdict == "ok"
    assert "cpu" in check.found


def test_a_library_that_cannot_be_imported_fails_with_its_error(monkeypatch):
    monkeypatch.setattr(
        doctor, "probe", lambda *probe: Check(probe[0], "fail", "ImportError: no such library", probe[2])
    )
    for check in (doctor.ray(), doctor.replay_server(), doctor.jax_devices()):
        assert check.verdict == "fail"
        assert check.found == "ImportError: no such library"
        assert check.hint


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("import os; os._exit(9)", "exit code 9"),
    ],
)
def test_a_probe_that_fails_has_the_last_line_of_the_error(code, found):
    assert doctor.probe("library", code, "install it") == Check("library", "fail", found, "install it")


def test_a_probe_that_answers_has_the_last_line_of_the_answer():
    found = doctor.probe("library", "print('noise'); print('answer')", "install it")
    assert found == Check("library", "ok", "answer")


SHADOWS = ("jax", "numpy", "ray", "reverb", "types", "random", "linecache", "podzero")
"""Names of libraries that files of the user's own may have."""


def test_a_probe_imports_what_training_does_whatever_is_in_the_current_folder(tmp_path, monkeypatch):
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the library')")
    monkeypatch.chdir(tmp_path)
    found = doctor.probe("library", "import random, types, numpy; print('found')", "install it")
    assert found == Check("library", "ok", "found")


def test_the_disk_is_looked_at_where_ray_keeps_its_files(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "later"))
    assert f"free in {tmp_path / 'later'}" in doctor.disk().found


def test_a_folder_whose_path_is_too_long_for_ray_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", f"/tmp/{'x' * 90}")
    check = doctor.ray()
    assert check.verdict == "fail"
    assert "TMPDIR" in check.found


def test_a_probe_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(doctor, "PROBE_TIMEOUT_S", 0.5)
    assert doctor.probe("library", "import time; time.sleep(60)", "wait").found == "no answer within 0 s"


def test_a_package_of_another_version_and_a_missing_one_are_named(monkeypatch):
    real = importlib.metadata.version

    def version(name):
        if name == "jax":
            return "0.1.0"
        if name == "mctx":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    check = doctor.packages()
    assert check.verdict == "warn"
    assert "jax 0.1.0, expected <0.13,>=0.12.0.1" in check.found
    assert "mctx is missing, expected ==0.0.71" in check.found
    assert "uv sync" in check.hint


def test_the_environment_of_the_replay_server_is_named_with_its_reverb(tmp_path, monkeypatch):
    # As ROS and conda set it; the replay server has a Python of its own.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("PODZERO_REPLAY_PYTHON", raising=False)  # tests of replay may have left one
    (tmp_path / "reverb.py").write_text("raise RuntimeError('not the library')")
    check = doctor.replay_server()
    assert check.verdict == "ok"
    assert "dm-reverb 0.14" in check.found


def test_an_environment_of_the_replay_server_that_cannot_be_made_fails_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("PODZERO_REPLAY_PYTHON", str(tmp_path / "none"))
    assert doctor.replay_server().verdict == "fail"
    assert "PODZERO_REPLAY_PYTHON" in doctor.replay_server().found


@pytest.mark.parametrize(("verdict", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
@pytest.mark.parametrize("as_json", [True, False])
def test_only_a_failed_check_is_code_1(monkeypatch, capsys, verdict, code, as_json):
    monkeypatch.setattr(doctor, "examine", lambda: [Check("Ray", verdict, "found [this]", "do that")])
    monkeypatch.setattr(sys, "argv", ["podzero", "doctor", *(["--json"] if as_json else [])])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code or 0) == code
    out = capsys.readouterr().out
    assert "found [this]" in out
    assert "do that" in out
