"""Trains on a recorded stream of batches, and prints the digest of every leaf of the state at the end.

test_stream runs it. After `save_at` steps it saves a checkpoint, says so, and makes half as many more; then it is to be
killed.
"""

import hashlib
import json
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
from conftest import SPEC, apply, init

from podzero.config import parse
from podzero.core.types import Network, PackedBatch
from podzero.learner import Learner
from podzero.learner.sharding import named_leaves


class Stream:
    """The recorded dispatches from step `first` on, but none that begins at `held_at` or later, which may change."""

    def __init__(self, rows, first, held_at):
        self._rows, self._next, self.held_at = rows, first // rows.shape[1], held_at
        self._closed = threading.Event()

    def __iter__(self):
        return self

    def __next__(self):
        while self._next * self._rows.shape[1] >= self.held_at and not self._closed.is_set():
            time.sleep(0.005)
        if self._closed.is_set():
            raise StopIteration
        self._next += 1
        return PackedBatch(self._rows[self._next - 1])

    def close(self):
        self._closed.set()


class Sink:
    def publish(self, version, params):
        pass


def main(stream, steps, first=0, save_at=None, folder=None, restore_from=None):
    rows = np.load(stream)
    learner = {"batch_size": rows.shape[2], "steps_per_dispatch": rows.shape[1], "publish_every": 40}
    learner["optimizer"] = {"schedule": "cosine"}
    tree = {"name": "t", "env": {"name": "tic_tac_toe"}, "learner": learner, "stop": {"steps": steps}}
    reader = Stream(rows, first, steps if save_at is None else save_at)
    learner = Learner(
        parse(tree, "test"),
        Network(init, apply),
        SPEC,
        [],
        reader=reader,
        sink=Sink(),
        report=lambda worker, metrics: None,
        restore_from=restore_from and Path(restore_from),
    )

    def save():
        while learner.step < save_at:
            time.sleep(0.005)
        print(json.dumps({"saved": learner.request_checkpoint(Path(folder)).result(300)}), flush=True)
        reader.held_at += save_at // 2

    if save_at is not None:
        threading.Thread(target=save, daemon=True).start()
    learner.run()
    leaves = {
        name: hashlib.sha256(
            np.asarray(jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        ).hexdigest()
        for name, leaf in named_leaves(learner.state).items()
    }
    print(json.dumps({"step": learner.step, "devices": len(jax.devices()), "leaves": leaves}), flush=True)
    learner.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
