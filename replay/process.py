"""A Reverb server as a child process, in an environment of its own."""

from __future__ import annotations

import json
import logging
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from podzero.replay.environment import PROJECT
from podzero.replay.errors import CheckpointRefused, ServerFailed

log = logging.getLogger(__name__)

_STOP_S = 10.0
"""Longest wait for a server that was asked to end, before it is killed."""
_KNOWN = ("0.14.", "0.15.")
"""Versions of Reverb whose wire protocol and checkpoints podzero speaks and reads."""


class ServerProcess:
    """A server that runs until `stop`, or until this process ends, however it does.

    Attributes:
      loopback: whether only this machine can connect.
    """

    def __init__(self, python: Path, wanted: Mapping[str, Any], timeout_s: float) -> None:
        """Starts a server and waits until it listens.

        Args:
          python: the interpreter of an environment with dm-reverb.
          wanted: the server's tables and folders, as `reverb_server/serve.py` takes them.
          timeout_s: longest wait.

        Raises:
          ServerFailed: it has ended, does not listen within `timeout_s`, or has an unknown version of Reverb.
          CheckpointRefused: it says that it cannot read the checkpoint.
        """
        self._child = subprocess.Popen(
            [str(python), "-P", "-u", str(PROJECT / "serve.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"TF_CPP_MIN_LOG_LEVEL": "2"} | _variables(),
        )
        try:
            answer = self._ask(json.dumps(dict(wanted)), timeout_s)
            if "error" in answer:
                failure = CheckpointRefused if answer.get("restoring") else ServerFailed
                raise failure(f"the replay server did not start: {answer['error']}")
            version = str(answer["ready"]["reverb"])
            if not version.startswith(_KNOWN):
                raise ServerFailed(
                    f"{python} has dm-reverb {version}; podzero speaks the protocol of "
                    f"{' and '.join(f'{known}x' for known in _KNOWN)}"
                )
            self.loopback = bool(answer["ready"]["loopback"])
        except BaseException:
            self.stop()
            raise

    @property
    def exit_code(self) -> int | None:
        """With which the server has ended, negative for a signal; None while it runs."""
        return self._child.poll()

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the server, which runs, has used."""
        times = psutil.Process(self._child.pid).cpu_times()
        return float(times.user + times.system)

    def stop(self) -> None:
        """Ends the server; may be called twice."""
        if self._child.stdin is not None and not self._child.stdin.closed:
            with suppress(BrokenPipeError):  # it has ended
                self._child.stdin.close()
        try:
            self._child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            log.warning("the replay server did not end within %g s and is killed", _STOP_S)
            self._child.kill()
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()

    def _ask(self, wanted: str, timeout_s: float) -> dict[str, Any]:
        """Gives the child its one line of input; returns its one line of output."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=lambda out: lines.put(out.readline()), args=(self._child.stdout,), daemon=True)
        reader.start()
        try:
            self._child.stdin.write(wanted + "\n")
            self._child.stdin.flush()
            line = lines.get(timeout=timeout_s)
        except BrokenPipeError:
            line = ""
        except queue.Empty:
            self._child.kill()
            raise ServerFailed(f"the replay server did not listen within {timeout_s:g} s and was killed") from None
        if not line:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_STOP_S)
            raise ServerFailed(
                f"the replay server ended before it listened, with exit code {self.exit_code}; what it said is in the "
                "standard error of this process, which Ray keeps in the folder `logs` of its session"
            )
        try:
            answer: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            raise ServerFailed(f"the replay server said {line[:200]!r} where it should say that it listens") from None
        return answer


def free_port(port: int = 0) -> int:
    """`port` if nothing listens there; by default any such port.

    Raises:
      OSError: something listens at `port`.
    """
    with socket.socket() as probe:
        # The connections of a server that was killed linger for a minute.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
        return int(probe.getsockname()[1])


def _variables() -> dict[str, str]:
    """The variables of this process without those that lead Python to this environment's packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
