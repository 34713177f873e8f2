"""One host of a learner with an in-memory reader; test_hosts runs it once per host.

Executes the commands `save FOLDER` and `stop` from its input, and prints events as lines of JSON. On SIGUSR1 it prints
the stacks of its threads.
"""

import faulthandler
import json
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from conftest import PACKING, SPEC, apply, init

from podzero import learner
from podzero.config import parse
from podzero.core.types import Network, PackedBatch, Sample
from podzero.learner import Learner, join

BATCH, STEPS = 16, 2
learner.hosts.HOST_TIMEOUT_S = 10.0
PRINTING = threading.Lock()


def experiment_of(hosts):
    tree = {
        "name": "hosts",
        "env": {"name": "tic_tac_toe"},
        "replay": {"shards": hosts, "min_size": 1024},
        "cluster": {"hosts": hosts, "join_minutes": 2},
        "learner": {"batch_size": BATCH, "steps_per_dispatch": STEPS, "publish_every": 2 * STEPS, "augment": False},
    }
    return parse(tree, "test")


class Reader:
    """A dispatch every `delay_s`, and after `count` of them none until it is closed."""

    def __init__(self, rank, share, delay_s, count):
        self._rng, self._share = np.random.default_rng(rank), share
        self._delay_s, self._count = delay_s, count
        self._closed = threading.Event()

    def __iter__(self):
        return self

    def __next__(self):
        self._count -= 1
        if self._count < 0:
            emit(starved=True)
            self._closed.wait()
            raise StopIteration
        time.sleep(self._delay_s)
        shape = (STEPS, self._share)
        samples = Sample(
            observation=self._rng.random((*shape, 3, 3, 2)) > 0.5,
            legal=np.ones((*shape, 9), bool),
            policy_target=self._rng.dirichlet(np.ones(9), shape).astype(np.float32),
            value_target=self._rng.uniform(-1, 1, shape).astype(np.float32),
            version=np.zeros(shape, np.int32),
        )
        return PackedBatch(PACKING.pack(samples))

    def close(self):
        self._closed.set()


class Sink:
    def publish(self, version, params):
        emit(published=version)


def emit(**event):
    with PRINTING:
        print(json.dumps(event), flush=True)


def execute_commands(learner):
    for line in sys.stdin:
        match line.split():
            case ["save", folder]:
                saved = learner.request_checkpoint(Path(folder))
                saved.add_done_callback(lambda done: emit(saved=done.result()))
            case ["stop"]:
                learner.stop()


def main(rank, hosts, coordinator, delay_s=0.0, count=10**9, restore_from=None):
    experiment = experiment_of(hosts)
    host_sync = join(rank, hosts, coordinator, experiment)
    learner = Learner(
        experiment,
        Network(init, apply),
        SPEC,
        [],
        reader=Reader(rank, BATCH // hosts, delay_s, count),
        sink=Sink() if rank == 0 else None,
        report=lambda worker, metrics: emit(worker=worker, metrics=sorted(metrics)),
        restore_from=Path(restore_from) if restore_from else None,
        host_sync=host_sync,
    )
    threading.Thread(target=execute_commands, args=(learner,), daemon=True).start()
    learner.run()
    newest = learner.acting_params()
    emit(ended=learner.step, acting=newest.version if newest else None)
    learner.close()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    main(**json.loads(sys.argv[1]))
