"""Reverb's own client, with which podzero's client is compared. It runs in the environment of the replay server.

    python tools/bench/reverb_client.py HOST:PORT

Standard input holds one JSON object a line, and each is answered by one line. A row is an item's bytes as hexadecimal
digits; COLUMNS is a list of [NAME, SHAPE, DTYPE], the fields that the bytes hold one after the other.

    {"insert": TABLE, "columns": COLUMNS, "rows": [ROW], "priorities": [P], "chunk": STEPS}    answers their number
    {"sample": TABLE, "columns": COLUMNS, "items": N}                      answers a list of [KEY, ROW]
    {"write": TABLE, "columns": COLUMNS, "rows": [ROW], "seconds": S}      answers items/s, each list of rows confirmed
    {"read": TABLE, "columns": COLUMNS, "items": N, "seconds": S}          answers items/s, in batches of N

The client checks nothing and has its best settings as measured: StructuredWriter (two to three times as fast as
TrajectoryWriter from Python) and TrajectoryDataset with three batches in flight.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

TIMEOUT_MS = 60_000


def main(address):
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not stand between the answers
    client = OwnClient(address)
    for line in sys.stdin:
        arguments = json.loads(line)
        command = next(iter(arguments))
        print(json.dumps(getattr(client, command)(arguments.pop(command), **arguments)), file=answers, flush=True)


class OwnClient:
    """One method for each command."""

    def __init__(self, address):
        import reverb

        self._address = address
        self._client = reverb.Client(address)
        self._writers = {}
        self._readers = {}

    def insert(self, table, columns, rows, priorities, chunk):
        with self._client.trajectory_writer(num_keep_alive_refs=chunk) as writer:
            for name, _, _ in columns:
                writer.configure((name,), num_keep_alive_refs=chunk, max_chunk_length=chunk)
            for item, priority in zip(items_of(rows, columns), priorities, strict=True):
                writer.append(item)
                writer.create_item(table, priority, {name: writer.history[name][-1] for name in item})
            writer.flush(timeout_ms=TIMEOUT_MS)
        return len(rows)

    def sample(self, table, columns, items):
        found = self._dataset(table, columns, items).take(items).as_numpy_iterator()
        return [[int(item.info.key), row_of(item.data, columns)] for item in found]

    def write(self, table, columns, rows, seconds):
        items, writer = items_of(rows, columns), self._writer(table, columns)
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            for item in items:
                writer.append(item)
            writer.flush(0, timeout_ms=TIMEOUT_MS)
            count += len(items)
        return count / (time.perf_counter() - start)

    def read(self, table, columns, items, seconds):
        if table not in self._readers:
            dataset = self._dataset(table, columns, 3 * items).batch(items, drop_remainder=True).prefetch(2)
            self._readers[table] = dataset.as_numpy_iterator()
        for _ in range(6):  # what was read ahead
            next(self._readers[table])
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            next(self._readers[table])
            count += items
        return count / (time.perf_counter() - start)

    def _writer(self, table, columns):
        from reverb import structured_writer

        if table not in self._writers:
            reference = structured_writer.create_reference_step({name: None for name, _, _ in columns})
            pattern = {name: reference[name][-1] for name, _, _ in columns}
            config = structured_writer.create_config(pattern, table)
            self._writers[table] = self._client.structured_writer([config])
        return self._writers[table]

    def _dataset(self, table, columns, in_flight):
        import tensorflow as tf
        from reverb import TrajectoryDataset

        return TrajectoryDataset(
            self._address,
            table,
            dtypes={name: tf.dtypes.as_dtype(dtype) for name, _, dtype in columns},
            shapes={name: tf.TensorShape(shape) for name, shape, _ in columns},
            max_in_flight_samples_per_worker=in_flight,
            num_workers_per_iterator=1,
            rate_limiter_timeout_ms=TIMEOUT_MS,
        )


def row_of(item, columns):
    return b"".join(item[name].tobytes() for name, _, _ in columns).hex()


def items_of(rows, columns):
    record = np.dtype([(name, dtype, tuple(shape)) for name, shape, dtype in columns])
    table = np.frombuffer(bytes.fromhex("".join(rows)), record)
    return [{name: row[name] for name, _, _ in columns} for row in table]


if __name__ == "__main__":
    main(sys.argv[1])
