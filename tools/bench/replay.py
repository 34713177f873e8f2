"""The stage of replay: samples/s written and read through `podzero.replay`, in turn with Reverb's own client.

Reverb's own client stores the same samples in two layouts: packed as `podzero.replay` packs them, and each sample as an
item of its fields, as is usual with Reverb. All write in confirmed pieces and read batches of equal shape. Servers and
Reverb's own client run in separate processes, the client (`tools/bench/reverb_client.py`) in the environment of the
replay server.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from podzero.config import Experiment
from podzero.config.samples import sample_like
from podzero.core.types import EnvSpec, Sample, Window
from podzero.envs import sample_packing, spec_of
from podzero.replay import ReplayServer, SampleSignature, ShardedWriter, make_reader, server_python
from podzero.replay.process import JsonProcess, ServerProcess
from podzero.replay.server import LOOPBACK, reserved_port
from podzero.tools.bench.measuring import (
    START_S,
    BenchError,
    Side,
    calls_per_s,
    compare,
    fill,
    random_samples,
    with_replay,
    without_insert_limit,
    without_sample_limit,
)

_PIECE = 48
"""Items that are sent before they are confirmed. With 50 or more, Reverb's client floods the log."""
_FILL_S = 0.05
"""The length of a turn that only fills a table."""
_ROUND_S = 0.5
"""The longest turn of a side: short enough that the machine is equally fast for both sides."""
_DRAIN_S = 0.1
"""How long batches are read before a round counts them."""
_ROUNDS = 2
"""Turns are shortened until this number of rounds fits."""
_LIMITS = "bare Reverb client with the same packed items"


def bench_replay(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the cost of `podzero.replay` compared with Reverb's own client.

    A round of reading begins with batches that may have been read ahead, which are not counted.

    Returns:
      `ratio`, the lower of the ratios of writing and reading to the bare client with packed items; and for each of
      `write` and `read` what `compare` returns for `podzero`, `bare_packed` and `bare_unpacked`.
    """
    spec = spec_of(experiment.env)
    experiment = with_replay(experiment, sampler="uniform")
    layouts = {
        "bare_packed": packed_items(experiment, spec),
        "bare_unpacked": one_sample_items(experiment, spec),
    }
    with (
        bare_server(layouts.values(), experiment.replay.capacity) as address,
        closing(BareClient(address)) as bare,
    ):
        written = _write(experiment, spec, bare, layouts, seconds / 2)
        read = _read(experiment, spec, bare, layouts, seconds / 2)
    return {
        "ratio": min(written["ratio"], read["ratio"]),
        "ratio_of": f"samples/s, podzero.replay over {_LIMITS}, the lower of writing and reading",
        "write": written,
        "read": read,
        "sample_bytes": sample_packing(experiment, spec).row_bytes,
        "samples_per_item": experiment.replay.samples_per_item,
        "batch_size": experiment.learner.batch_size,
        "steps_per_dispatch": experiment.learner.dispatch_steps(),
    }


def _write(
    experiment: Experiment, spec: EnvSpec, bare: BareClient, layouts: dict[str, TableLayout], seconds: float
) -> dict[str, Any]:
    unlimited = without_insert_limit(experiment)
    samples = random_samples(experiment, spec, _PIECE * experiment.replay.samples_per_item)
    with (
        ReplayServer(unlimited, spec, 0) as server,
        closing(ShardedWriter(lambda: [server.address()], spec, unlimited)) as writer,
    ):
        count = len(samples.version)
        sides: dict[str, Side] = {
            "podzero": lambda turn_s: count * calls_per_s(lambda: writer.write(samples), turn_s, writer.flush)
        }
        for name, layout in layouts.items():
            few = random_samples(experiment, spec, _PIECE * layout.samples_per_item)
            sides[name] = _bare(bare, layout, "write", rows=layout.rows(few))
        return compare_clients(sides, seconds)


def _read(
    experiment: Experiment, spec: EnvSpec, bare: BareClient, layouts: dict[str, TableLayout], seconds: float
) -> dict[str, Any]:
    sampling = without_sample_limit(experiment)
    dispatch = experiment.learner.batch_size * experiment.learner.dispatch_steps()
    with ReplayServer(sampling, spec, 0) as server:
        # `replay.min_size` samples, or a little more, in each table that is read.
        samples = fill(sampling, spec, server.address())
        for layout in layouts.values():
            rows = layout.rows(samples)
            bare.ask("write", f"{layout.table}-read", columns=layout.columns, rows=rows, seconds=_FILL_S)
        with closing(make_reader(lambda: [server.address()], spec, experiment)) as reader:

            def read(turn_s: float) -> float:
                calls_per_s(lambda: next(reader), _DRAIN_S)
                return dispatch * calls_per_s(lambda: next(reader), turn_s)

            sides: dict[str, Side] = {"podzero": read}
            for name, layout in layouts.items():
                sides[name] = _bare(bare, layout, "read", items=dispatch // layout.samples_per_item)
            return compare_clients(sides, seconds)


def compare_clients(sides: dict[str, Side], seconds: float) -> dict[str, Any]:
    """What `compare` returns; the first turn of each side is not counted."""
    for measure in sides.values():
        measure(min(_ROUND_S, seconds / (_ROUNDS * len(sides))))
    ratio_of = f"samples/s, podzero.replay over {_LIMITS}"
    return compare(sides, "samples_per_s", ratio_of, seconds, longest_s=_ROUND_S, rounds=_ROUNDS)


def _bare(bare: BareClient, layout: TableLayout, command: str, **arguments: Any) -> Side:
    """A command of Reverb's own client, `write` or `read`, on a layout's table for it, in samples/s."""

    def rate(seconds: float) -> float:
        items = bare.ask(command, f"{layout.table}-{command}", columns=layout.columns, seconds=seconds, **arguments)
        return float(items) * layout.samples_per_item

    return rate


# Reverb's own client and tables.

_PROGRAM = Path(__file__).with_name("reverb_client.py")
_LISTEN_S = 120.0
"""The longest wait for the server to listen."""
Column = tuple[str, list[int], str]
"""The name, shape and dtype of a column of an item."""


class TableLayout(NamedTuple):
    """How samples are stored as items with named columns."""

    table: str
    """The first part of the table's name."""
    columns: list[Column]
    samples_per_item: int
    pack: Callable[[Sample | Window], Iterable[NDArray[np.uint8]]]
    """The bytes of items."""

    def rows(self, samples: Sample | Window) -> list[str]:
        """The items of samples `[T, ...]`, as `reverb_client.py` takes them."""
        return [item.tobytes().hex() for item in self.pack(samples)]


def one_sample_items(experiment: Experiment, spec: EnvSpec) -> TableLayout:
    """Each sample is an item with a column for each field that the experiment stores."""
    like = {name: leaf for name, leaf in sample_like(experiment, spec)._asdict().items() if leaf is not None}
    columns: list[Column] = [(field, list(leaf.shape), np.dtype(leaf.dtype).name) for field, leaf in like.items()]

    def pack(samples: Sample | Window) -> NDArray[np.uint8]:
        records = np.empty(len(samples.version), [(name, leaf.dtype, leaf.shape) for name, leaf in like.items()])
        for name in like:
            records[name] = getattr(samples, name)
        return records.view(np.uint8).reshape(len(records), -1)

    return TableLayout("one-sample-items", columns, 1, pack)


def packed_items(experiment: Experiment, spec: EnvSpec) -> TableLayout:
    """The layout of `podzero.replay`: an item has one column, which packs `replay.samples_per_item` samples."""
    samples_per_item = experiment.replay.samples_per_item
    signature = SampleSignature(spec.name, sample_packing(experiment, spec), samples_per_item)
    columns: list[Column] = [("rows", [signature.item_bytes], "uint8")]
    return TableLayout("packed-items", columns, samples_per_item, signature.pack)


@contextmanager
def bare_server(layouts: Iterable[TableLayout], capacity: int) -> Iterator[str]:
    """Starts a Reverb server with two tables for each layout, one written and one read; yields its `host:port`."""
    names = [layout.table + purpose for layout in layouts for purpose in ("-write", "-read")]
    tables = [{"name": name, "max_size": capacity} for name in names]
    with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
        wanted = {"port": port, "loopback": True, "checkpoints": folder, "restore": None, "tables": tables}
        server = ServerProcess(server_python(), wanted, _LISTEN_S)
        try:
            yield f"{LOOPBACK}:{port}"
        finally:
            server.stop()


class BareClient(JsonProcess):
    """Reverb's own client in another process, with the commands of `reverb_client.py`."""

    def __init__(self, address: str) -> None:
        # -P: no module in the program's folder hides another.
        super().__init__([str(server_python()), "-P", str(_PROGRAM), address])

    def ask(self, command: str, table: str, **arguments: Any) -> Any:
        """The answer to a command."""
        try:
            line = self.exchange({command: table} | arguments, START_S)
        except TimeoutError:
            raise BenchError(f"Reverb's own client has not answered for {START_S:g} s") from None
        if not line:
            raise BenchError(
                f"Reverb's own client ended with exit code {self.exit_code}; what it printed above says why"
            )
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        self.stop()
