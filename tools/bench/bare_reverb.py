"""Reverb's own client and tables, without `podzero.replay` around them: the limit of the replay bench.

The client runs in the environment of the replay server (`tools/bench/reverb_client.py`).
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from podzero.config import Experiment
from podzero.replay import SampleSignature, server_python
from podzero.replay.process import ServerProcess, free_port
from podzero.replay.server import LOOPBACK
from podzero.samples import sample_like
from podzero.tools.bench.child_processes import START_S, STOP_S, BenchError
from podzero.types import EnvSpec, Sample, Window

_PROGRAM = Path(__file__).with_name("reverb_client.py")
_START_S = 120.0
"""Longest wait for the server to listen."""
Column = tuple[str, list[int], str]
"""Name, shape and dtype of a column of an item."""


class Layout(NamedTuple):
    """How samples are stored as items with named columns."""

    table: str
    """The first part of the table's name."""
    columns: list[Column]
    samples_per_item: int
    signature: SampleSignature
    """Packs samples into the bytes of items."""

    def rows(self, samples: Sample | Window) -> list[str]:
        """The items of samples `[T, ...]`, as `reverb_client.py` takes them."""
        return [item.tobytes().hex() for item in self.signature.pack(samples)]


def one_sample_items(experiment: Experiment, spec: EnvSpec) -> Layout:
    """Each sample is an item, and each of its fields that the experiment stores is a column."""
    signature = SampleSignature(spec.name, sample_like(experiment, spec), 1)
    columns: list[Column] = [(field.name, list(field.shape), field.dtype.name) for field in signature.fields]
    return Layout("one-sample-items", columns, 1, signature)


def packed_items(experiment: Experiment, spec: EnvSpec) -> Layout:
    """The layout of `podzero.replay`: `replay.samples_per_item` samples are packed into an item of one column."""
    samples_per_item = experiment.replay.samples_per_item
    signature = SampleSignature(spec.name, sample_like(experiment, spec), samples_per_item)
    return Layout("packed-items", [("rows", [signature.item_bytes], "uint8")], samples_per_item, signature)


@contextmanager
def bare_server(layouts: Iterable[Layout], capacity: int) -> Iterator[str]:
    """A Reverb server with a table for writing and a table for reading for each layout; its `host:port`."""
    limiter = {"samples_per_insert": None, "min_size": 1, "min_diff": None, "max_diff": None}
    names = [layout.table + purpose for layout in layouts for purpose in ("-write", "-read")]
    tables = [
        {"name": name, "max_size": capacity, "signature": None, "priority_exponent": None, "limiter": limiter}
        for name in names
    ]
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        wanted = {"port": port, "loopback": True, "checkpoints": folder, "restore": None, "tables": tables}
        server = ServerProcess(server_python(), wanted, _START_S)
        try:
            yield f"{LOOPBACK}:{port}"
        finally:
            server.stop()


class BareClient:
    """Reverb's own client in a process of its own; commands are those of `reverb_client.py`."""

    def __init__(self, address: str) -> None:
        command = [str(server_python()), "-P", str(_PROGRAM), address]  # no module beside the program hides another
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: str, table: str, **arguments: Any) -> Any:
        """Gives a command; returns its answer.

        Raises:
          BenchError: the client did not answer in time, or has ended; then its traceback is on the error output.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, so that there is no answer
            self._child.stdin.write(json.dumps({command: table} | arguments) + "\n")
            self._child.stdin.flush()
        if not select.select([self._child.stdout], [], [], START_S)[0]:
            raise BenchError(f"Reverb's own client has not answered for {START_S:g} s")
        line = self._child.stdout.readline()
        if not line:
            code = self._child.wait(STOP_S)
            raise BenchError(f"Reverb's own client ended with exit code {code}; what it printed above says why")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self._child.stdin.close()
        try:
            self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
