"""A Reverb server as a child process, and the Python environment in which it runs.

Reverb needs TensorFlow and Python 3.11. To keep both out of the rest of a run, its server has its own environment,
which uv makes in the user's cache from the project `replay/reverb_server/` and its lock file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil
import uv

from podzero.core.machine import user_cache
from podzero.core.waiting import Wait, in_thread
from podzero.replay.errors import EnvironmentUnusable, ReplayRestoreError, ServerFailed, ServerKilled

log = logging.getLogger(__name__)

VARIABLE = "PODZERO_REPLAY_PYTHON"
"""Environment variable that names the interpreter of an existing environment, for example in a container image."""
PROJECT = Path(__file__).parent / "reverb_server"
"""The project of the environment, with its lock file and the server program."""
_PYTHON = "3.11"
_MAKE_S = 1800.0
"""Longest time that uv may take; it may have to download 600 MB."""
MESSAGE_S = 10.0
"""A wait of this length for another process that makes the environment is logged."""
_POLL_S = 0.2


def server_python(environment: Mapping[str, str] = os.environ) -> Path:
    """The interpreter of the replay server's environment, which is made if it does not exist.

    Of the variables, `PODZERO_REPLAY_PYTHON` and `XDG_CACHE_HOME` are used. Raises `EnvironmentUnusable` if the named
    interpreter does not exist, the environment could not be made, or Reverb does not exist for this machine.
    """
    if named := environment.get(VARIABLE):
        if not os.access(named, os.X_OK):
            raise EnvironmentUnusable(
                f"{VARIABLE}={named}: there is no such program; name the Python of an environment with dm-reverb and "
                "TensorFlow, or unset the variable, and podzero makes one"
            )
        return Path(named)
    if (machine := (platform.system(), platform.machine())) != ("Linux", "x86_64"):
        raise EnvironmentUnusable(
            "Reverb, which holds replay, exists for Linux on x86-64 alone, and this machine is "
            f"{' on '.join(machine)}: train elsewhere, for example on a cluster with --address that has such nodes "
            "for replay; agents play and are judged here"
        )
    folder = environment_folder(environment)
    python = folder / "bin" / "python"
    try:
        if not python.exists():
            with _alone(folder) as lock:
                # Another process may have made it meanwhile.
                if not python.exists():
                    _make(folder, lock)
    except OSError as error:
        raise EnvironmentUnusable(
            f"the environment of the replay server cannot be made in {folder}: {error}; free some space (it needs "
            f"1.2 GB), name another cache with XDG_CACHE_HOME, or an environment made from {PROJECT} with {VARIABLE}"
        ) from None
    return python


def environment_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of the environment; its name contains a digest of the lock file."""
    digest = hashlib.sha256((PROJECT / "uv.lock").read_bytes()).hexdigest()
    return user_cache(environment) / f"replay-server-{digest[:12]}"


def _make(folder: Path, lock: IO[str]) -> None:
    """Lets uv make the environment under another name, and renames it at the end."""
    # uv takes a half-installed package for an installed one, so only the rename makes the folder complete or absent.
    began = folder.with_name(folder.name + ".new")
    for leftover in (began, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    log.info("making the environment of the replay server, once, in %s", folder)
    command = [uv.find_uv_bin(), "sync", "--project", str(PROJECT), "--frozen", "--no-progress", "--python", _PYTHON]
    variables = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_PYTHON")}
    # Of pyenv's versions, uv itself finds only the active one.
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv").glob(f"versions/{_PYTHON}*/bin")
    variables["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *sorted(map(str, pyenv))])
    variables["UV_PROJECT_ENVIRONMENT"] = str(began)
    by_hand = f"UV_PROJECT_ENVIRONMENT={folder} uv sync --project {PROJECT} --frozen"
    # uv inherits the lock: if this process is killed, nobody else begins before uv has ended.
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, encoding="utf-8", errors="replace", timeout=_MAKE_S,
            check=False, pass_fds=(lock.fileno(),),
        )  # fmt: skip
        if done.returncode:
            raise EnvironmentUnusable(
                f"the environment of the replay server could not be made. It needs Python {_PYTHON} (`uv python "
                f"install {_PYTHON}`, or your system's package python{_PYTHON}) and the network, once; without a "
                f"network, make it elsewhere and name its Python with {VARIABLE}. By hand: {by_hand}. "
                f"uv said: {' '.join(done.stderr.split())[-800:]}"
            )
        began.rename(folder)
    except subprocess.TimeoutExpired:
        raise EnvironmentUnusable(
            f"the environment of the replay server was not made within {_MAKE_S / 60:.0f} minutes: is the network "
            f"slow? Try it by hand: {by_hand}"
        ) from None
    finally:
        shutil.rmtree(began, ignore_errors=True)


@contextmanager
def _alone(folder: Path) -> Iterator[IO[str]]:
    """Waits until no other process makes the environment, then locks it."""
    wait = Wait(MESSAGE_S, _MAKE_S)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w", encoding="utf-8") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if wait.over:
                    raise EnvironmentUnusable(
                        f"another process has been making {folder} for {_MAKE_S / 60:.0f} minutes; end it, or wait"
                    ) from None
                if wait.message_due():
                    log.info("has waited %s for another process that makes %s", wait, folder)
                time.sleep(_POLL_S)
        yield lock


_STOP_S = 10.0
"""Longest wait for a server that was asked to end; then it is killed."""
_KNOWN = ("0.14.", "0.15.")
"""Versions of Reverb whose wire protocol and checkpoints podzero knows."""


class JsonProcess:
    """A child process that answers each line of its standard input by a line, and ends when this input is closed."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="utf-8", env=environment)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._requests, self._answers = self._child.stdin, self._child.stdout

    @property
    def exit_code(self) -> int | None:
        """The process's exit code, negative for a signal; None while it runs."""
        return self._child.poll()

    def exchange(self, request: Mapping[str, Any], timeout_s: float) -> str:
        """Sends a request as a line of JSON; returns the answer, empty if the process has ended.

        Raises `TimeoutError` if there is none in time.
        """
        reader = in_thread("answer", self._answers.readline)  # which has no timeout
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            line = reader.result(timeout_s)
        except BrokenPipeError:
            line = ""
        if not line:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_STOP_S)
        return line

    def stop(self) -> None:
        """Ends the process; may be called twice."""
        with suppress(BrokenPipeError):  # if the process has ended already
            self._requests.close()
        try:
            self._child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            log.warning("process %d did not end within %g s and is killed", self._child.pid, _STOP_S)
            self._child.kill()
            self._child.wait()
        self._answers.close()


class ServerProcess(JsonProcess):
    """A server that runs until `stop`, or until this process ends for whatever reason."""

    def __init__(self, python: Path, wanted: Mapping[str, Any], timeout_s: float) -> None:
        """Starts a server, to which it gives what is `wanted` (see `serve.py`), and waits until it listens.

        Raises `ReplayRestoreError` if it cannot read the checkpoint to restore, else `ServerFailed`.
        """
        command = [str(python), "-P", "-u", str(PROJECT / "serve.py")]
        super().__init__(command, {"TF_CPP_MIN_LOG_LEVEL": "2"} | server_variables())
        try:
            answer = self._answer(wanted, timeout_s)
            error = answer.get("error")
            if answer.get("restoring"):
                raise ReplayRestoreError(f"replay checkpoint {wanted.get('restore')}: Reverb cannot read it: {error}")
            if error is not None:
                raise ServerFailed(f"the replay server did not start: {error}")
            version = str(answer["ready"]["reverb"])
            if not version.startswith(_KNOWN):
                raise ServerFailed(
                    f"{python} has dm-reverb {version}; podzero speaks the protocol of "
                    f"{' and '.join(f'{known}x' for known in _KNOWN)}"
                )
            self.loopback = bool(answer["ready"]["loopback"])
            """Whether only this machine can connect."""
        except BaseException:
            self.stop()
            raise

    def check_runs(self) -> None:
        """Raises `ServerFailed` if the server has ended."""
        if self.exit_code is not None:
            raise ServerFailed(f"the replay server has ended with exit code {self.exit_code}")

    @property
    def state(self) -> str:
        """What the system says of the process, such as `stopped`."""
        return str(psutil.Process(self._child.pid).status())

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the running server has used."""
        times = psutil.Process(self._child.pid).cpu_times()
        return float(times.user + times.system)

    def _answer(self, wanted: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        try:
            line = self.exchange(wanted, timeout_s)
        except TimeoutError:
            self._child.kill()
            raise ServerFailed(f"the replay server did not listen within {timeout_s:g} s and was killed") from None
        if not line:
            raise (ServerKilled if (self.exit_code or 0) < 0 else ServerFailed)(
                f"the replay server ended before it listened, with exit code {self.exit_code}; its output is in the "
                "standard error of this process, which Ray keeps in the folder `logs` of its session"
            )
        try:
            answer: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            raise ServerFailed(f"the replay server answered {line[:200]!r} instead of saying that it listens") from None
        return answer


def server_variables() -> dict[str, str]:
    """The environment variables of the replay server: this process's, without those that name Python's packages.

    Its bytecode is kept also where containers forbid that: each start would compile TensorFlow anew for 6 s.
    """
    left_out = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in left_out}
