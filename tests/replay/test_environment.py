"""The replay server's environment: named, made once, made again after an interruption, and why it cannot be made."""

import threading
import time
from pathlib import Path

import pytest
import uv

from podzero.replay import EnvironmentUnusable, process, server_python
from podzero.replay.process import VARIABLE, environment_folder

MAKE = 'mkdir -p "$UV_PROJECT_ENVIRONMENT/bin"; touch "$UV_PROJECT_ENVIRONMENT/bin/python"'
"""What uv does, in shell."""


@pytest.fixture
def cache(tmp_path):
    """Variables that name an empty cache."""
    return {"XDG_CACHE_HOME": str(tmp_path)}


@pytest.fixture
def made(monkeypatch):
    """Stands in for uv; the folders that it was to make."""
    folders = []

    def sync(folder, lock):
        del lock
        folders.append(folder)
        make(folder)

    monkeypatch.setattr(process, "_sync", sync)
    return folders


def make(folder):
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()


def uv_that(monkeypatch, tmp_path, script):
    """Replaces the program uv by a shell script."""
    program = tmp_path / "uv"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(uv, "find_uv_bin", lambda: str(program))


def test_a_named_interpreter_is_taken(tmp_path, made):
    python = tmp_path / "python"
    python.touch(0o755)
    assert server_python({VARIABLE: str(python)}) == python
    assert made == []


def test_a_named_interpreter_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(EnvironmentUnusable, match=f"{VARIABLE}={tmp_path}/none"):
        server_python({VARIABLE: f"{tmp_path}/none"})


def test_it_is_made_once(cache, made):
    first, second = server_python(cache), server_python(cache)
    assert first == second == environment_folder(cache) / "bin" / "python"
    assert first.exists()
    assert len(made) == 1


def test_what_an_interrupted_installation_left_is_made_anew(cache, made):
    folder = environment_folder(cache)
    for leftover in (folder.with_name(folder.name + ".new"), folder):
        (leftover / "lib").mkdir(parents=True)
    assert server_python(cache).exists()
    assert not (folder / "lib").exists()
    assert [path.name for path in folder.parent.iterdir() if path.name.endswith(".new")] == []


def test_an_installation_that_fails_leaves_nothing(cache, monkeypatch):
    def fail(folder, lock):
        del lock
        (folder / "lib").mkdir(parents=True)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(process, "_sync", fail)
    with pytest.raises(EnvironmentUnusable, match="No space left on device"):
        server_python(cache)
    assert [path for path in environment_folder(cache).parent.iterdir() if path.is_dir()] == []


def test_of_two_processes_one_makes_it_and_the_other_waits_and_says_so(cache, monkeypatch, caplog):
    monkeypatch.setattr(process, "_MESSAGE_S", 0.01)
    caplog.set_level("INFO", "podzero")
    begun, go_on, folders = threading.Event(), threading.Event(), []

    def slow(folder, lock):
        del lock
        folders.append(folder)
        begun.set()
        go_on.wait(10)
        make(folder)

    monkeypatch.setattr(process, "_sync", slow)
    found = []
    threads = [threading.Thread(target=lambda: found.append(server_python(cache))) for _ in range(2)]
    threads[0].start()
    begun.wait(10)
    threads[1].start()
    until = time.monotonic() + 10
    while "has waited" not in caplog.text and time.monotonic() < until:
        threads[1].join(0.05)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(folders) == 1
    assert found == [environment_folder(cache) / "bin" / "python"] * 2


def test_without_a_network_the_message_says_what_to_do(cache, monkeypatch, tmp_path):
    uv_that(monkeypatch, tmp_path, "echo 'error: failed to fetch dm-reverb' >&2; exit 2")
    with pytest.raises(EnvironmentUnusable, match=f"{VARIABLE}.*failed to fetch dm-reverb"):
        server_python(cache)


def test_a_missing_python_is_named_with_the_remedy(cache, monkeypatch, tmp_path):
    uv_that(monkeypatch, tmp_path, "echo 'error: No interpreter found for Python 3.11' >&2; exit 2")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(EnvironmentUnusable, match=r"needs Python 3\.11.*uv python install 3\.11"):
        server_python(cache)


def test_the_python_of_pyenv_is_found_where_uv_finds_none(cache, monkeypatch, tmp_path):
    python = tmp_path / "versions" / "3.11.9" / "bin" / "python3.11"
    python.parent.mkdir(parents=True)
    python.touch(0o755)
    fail = "echo 'error: No interpreter found for Python 3.11' >&2; exit 2"
    script = f'case "$*" in *{python}*) {MAKE};; *) {fail};; esac'
    uv_that(monkeypatch, tmp_path, script)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert server_python(cache).exists()


def test_uv_installs_the_locked_project_into_the_folder_that_is_wanted(cache, monkeypatch, tmp_path):
    said = tmp_path / "said"
    uv_that(monkeypatch, tmp_path, f'echo "$@" "[$VIRTUAL_ENV]" > {said}; {MAKE}')
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    assert server_python(cache).exists()
    words = said.read_text().split()
    assert words[0] == "sync"
    assert "--frozen" in words
    project = Path(words[words.index("--project") + 1])
    assert (project / "uv.lock").is_file()
    assert words[words.index("--python") + 1] == "3.11"
    assert words[-1] == "[]"


def test_uv_holds_the_lock_so_that_nobody_begins_while_it_runs(cache, monkeypatch, tmp_path):
    """Also if the process that called it is killed."""
    uv_that(monkeypatch, tmp_path, f"readlink /proc/self/fd/* > {tmp_path}/open; {MAKE}")
    server_python(cache)
    assert str(environment_folder(cache)) + ".lock" in (tmp_path / "open").read_text().splitlines()


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "podzero").touch()  # where a folder should be
    with pytest.raises(EnvironmentUnusable, match="XDG_CACHE_HOME"):
        server_python({"XDG_CACHE_HOME": str(tmp_path)})
