"""Reverb's own client and tables, without `podzero.replay` around them: the limit of the replay bench.

The client checks nothing and has its best settings as measured: StructuredWriter (two to three times as fast as
TrajectoryWriter from Python) and TrajectoryDataset with three batches in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from podzero.config import Experiment
from podzero.replay import SampleSignature
from podzero.samples import sample_like
from podzero.types import EnvSpec, Sample, Window

_TIMEOUT_MS = 60_000


class Layout(NamedTuple):
    """How samples are stored as items with named columns."""

    table: str
    """The first part of the table's name."""
    columns: dict[str, tuple[tuple[int, ...], Any]]
    """Shape and dtype of each column of an item."""
    samples_per_item: int
    items: Callable[[Sample | Window], Iterable[dict[str, Any]]]
    """The items of samples `[T, ...]`."""
    samples: Callable[[dict[str, Any], tuple[int, ...]], Any]
    """The samples in columns `[N, ...]`, with the given axes in front of every field."""


def one_sample_items(experiment: Experiment, spec: EnvSpec) -> Layout:
    """Each sample is an item, and each of its fields that the experiment stores is a column."""
    like = {name: leaf for name, leaf in sample_like(experiment, spec)._asdict().items() if leaf is not None}

    def items(samples: Sample | Window) -> Iterable[dict[str, Any]]:
        fields = samples._asdict()
        for row in zip(*(fields[name] for name in like), strict=True):
            yield dict(zip(like, row, strict=True))

    def samples(columns: dict[str, Any], leading: tuple[int, ...]) -> Any:
        return {name: column.reshape(leading + column.shape[1:]) for name, column in columns.items()}

    columns = {name: (leaf.shape, leaf.dtype) for name, leaf in like.items()}
    return Layout("one-sample-items", columns, 1, items, samples)


def packed_items(experiment: Experiment, spec: EnvSpec) -> Layout:
    """The layout of `podzero.replay`: `replay.samples_per_item` samples are packed into an item of one column."""
    samples_per_item = experiment.replay.samples_per_item
    signature = SampleSignature(spec.name, sample_like(experiment, spec), samples_per_item)

    def items(samples: Sample | Window) -> Iterable[dict[str, Any]]:
        return ({"rows": item} for item in signature.pack(samples))

    def samples(columns: dict[str, Any], leading: tuple[int, ...]) -> Any:
        return signature.unpack(columns["rows"].reshape(-1, signature.row_bytes), leading)

    return Layout("packed-items", {"rows": ((signature.item_bytes,), "uint8")}, samples_per_item, items, samples)


def make_server(layouts: Iterable[Layout], capacity: int) -> Any:
    """A Reverb server on a free port, with a table for writing and a table for reading for each layout."""
    import reverb
    import tensorflow as tf

    tables = [
        reverb.Table(
            layout.table + purpose,
            reverb.selectors.Uniform(),
            reverb.selectors.Fifo(),
            capacity,
            reverb.rate_limiters.MinSize(1),
            signature={name: tf.TensorSpec(*column) for name, column in layout.columns.items()},
        )
        for layout in layouts
        for purpose in ("-write", "-read")
    ]
    return reverb.Server(tables)


def make_writer(
    address: str, layout: Layout, purpose: str
) -> tuple[Callable[[Sample | Window], None], Callable[[], None]]:
    """A function that writes samples, and one that waits until they are confirmed."""
    from reverb import Client, structured_writer

    reference = structured_writer.create_reference_step(dict.fromkeys(layout.columns))
    pattern = {name: reference[name][-1] for name in layout.columns}
    config = structured_writer.create_config(pattern, layout.table + purpose)
    writer = Client(address).structured_writer([config])

    def flush() -> None:
        writer.flush(0, timeout_ms=_TIMEOUT_MS)

    def write(samples: Sample | Window) -> None:
        for item in layout.items(samples):
            writer.append(item)
        flush()

    return write, flush


def make_reader(address: str, layout: Layout, experiment: Experiment) -> Iterator[Any]:
    """The samples of whole dispatches, with their fields in the shapes that the learner takes."""
    import tensorflow as tf
    from reverb import TrajectoryDataset

    leading = (experiment.learner.steps_per_dispatch, experiment.learner.batch_size)
    items = leading[0] * leading[1] // layout.samples_per_item
    dataset = TrajectoryDataset(
        address,
        layout.table + "-read",
        dtypes={name: dtype for name, (_, dtype) in layout.columns.items()},
        shapes={name: tf.TensorShape(shape) for name, (shape, _) in layout.columns.items()},
        max_in_flight_samples_per_worker=3 * items,
        num_workers_per_iterator=1,
        rate_limiter_timeout_ms=_TIMEOUT_MS,
    )
    for batch in dataset.batch(items, drop_remainder=True).prefetch(2).as_numpy_iterator():
        yield layout.samples(batch.data, leading)
