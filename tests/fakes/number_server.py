"""Inference servers in threads, over real sockets, whose device adds numbers, and their clients."""

import threading
from contextlib import contextmanager

import numpy as np

from podzero.config import ServerConfig
from podzero.inference.serving import Hello, InferenceServer, ServerClient
from podzero.inference.serving.messages import Identity

IDENTITY = Identity("run", "hex", "resnet 1234", row_bytes=4, outputs=3)
CONFIG = ServerConfig(batch_sizes=(4, 16), timeout_s=0.5)


class Device:
    """Answers with the sum of each row; `gate` holds its batches back."""

    def __init__(self, version=3):
        self.version, self.sizes, self.gate = version, [], threading.Event()
        self.known = expected(np.zeros((1, 4)))[0]
        self.gate.set()

    def evaluate(self, rows):
        self.sizes.append(len(rows))
        assert self.gate.wait(20.0)
        return self.version, expected(rows)


def expected(rows):
    total = rows.astype(np.float32).sum(axis=1)
    return np.stack([total, total + 1, total + 2], axis=1)


def rows_of(seed, count):
    return np.random.default_rng(seed).integers(0, 256, (count, 4), np.uint8)


class Running:
    """A server in a thread, if it shall `start`; `failure` is why it ended."""

    def __init__(self, name="inference-0", device=None, config=CONFIG, identity=IDENTITY, start=True):
        self.reports, self.announced, self.failure, self.device = [], [], None, device or Device()
        self.server = InferenceServer(
            name=name, host="127.0.0.1", identity=identity, device=self.device, config=config, request_positions=64,
            report=lambda _, metrics: self.reports.append(metrics), announce=self.announced.append,
        )  # fmt: skip
        self.name, self.address = name, self.server.address
        self.thread = threading.Thread(target=self._run, daemon=True)
        if start:
            self.thread.start()

    def _run(self):
        try:
            self.server.run()
        except Exception as failure:
            self.failure = failure

    def stop(self):
        self.device.gate.set()
        self.server.stop()
        self.thread.join(10.0)
        assert not self.thread.is_alive()


@contextmanager
def serving(*servers, **options):
    servers = servers or (Running(**options),)
    try:
        yield servers[0] if len(servers) == 1 else servers
    finally:
        for server in servers:
            server.stop()


def client_of(*servers, name="actor-0", positions=64, config=CONFIG, identity=IDENTITY, preferred=0, cache_mib=0.0):
    found = {server.name: server.address for server in servers}
    return ServerClient(Hello(name, positions, identity), lambda: found, config, preferred, cache_mib)
