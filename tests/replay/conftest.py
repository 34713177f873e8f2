"""Small games and experiments for tests against real Reverb servers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from warm_replay_server import warm

from podzero.config import Experiment, parse
from podzero.core import waiting
from podzero.core.types import EnvSpec, PackedBatch, Sample
from podzero.envs import sample_packing
from podzero.replay import ReplayServer, ShardedWriter, make_reader, server_python
from podzero.replay.process import VARIABLE

SPEC = EnvSpec("line", (3,), "float32", 4)


@pytest.fixture(autouse=True)
def _early_messages(monkeypatch):
    monkeypatch.setattr(waiting, "FIRST_MESSAGE_S", 0.3)


@pytest.fixture(scope="session", autouse=True)
def warm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers of these tests are forks of one process, which has imported Reverb."""
    with (
        pytest.MonkeyPatch.context() as patch,
        warm(server_python(), tmp_path_factory.mktemp("warm")) as interpreter,
    ):
        patch.setenv(VARIABLE, str(interpreter))
        yield


@pytest.fixture
def real_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of this test are real children."""
    monkeypatch.delenv(VARIABLE)


@pytest.fixture
def spec() -> EnvSpec:
    return SPEC


@pytest.fixture
def samples_of() -> Callable[[PackedBatch], Sample]:
    """The samples of a batch."""
    packing = sample_packing(small_experiment(), SPEC)
    return lambda batch: packing.unpack(batch.rows)


@pytest.fixture
def make_samples() -> Callable[..., Sample]:
    return numbered_samples


@pytest.fixture
def make_experiment() -> Callable[..., Experiment]:
    return small_experiment


@pytest.fixture
def serve() -> Iterator[Callable[..., ReplayServer]]:
    """Starts servers on loopback that are stopped when the test ends."""
    servers: list[ReplayServer] = []

    def start(experiment: Experiment, shard: int = 0, **arguments: Any) -> ReplayServer:
        servers.append(ReplayServer(experiment, arguments.pop("spec", SPEC), shard, **arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def connect(spec):
    """Makes writers and readers of servers, or of `addresses`, which the test may change; closes them at its end."""
    opened = []

    def make(maker, experiment, *servers, addresses=None):
        addresses = addresses or [server.address() for server in servers]
        opened.append(maker(lambda: addresses, spec, experiment))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


@pytest.fixture
def waits(caplog):
    """Runs a call that waits in a thread: the message about the wait, after which `end` lets it end."""

    def message(call: Callable[[], object], end: Callable[[], object]) -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "podzero"):
            waiter = threading.Thread(target=call, daemon=True)
            waiter.start()
            while not (said := [text for text in caplog.messages if "waited" in text]):
                time.sleep(0.02)
        end()
        waiter.join(20.0)
        assert not waiter.is_alive()
        return said[0]

    return message


@pytest.fixture(scope="session")
def pristine(tmp_path_factory) -> Path:
    """A checkpoint of a shard with 12 samples, of which some have been read."""
    experiment = small_experiment()
    server = ReplayServer(experiment, SPEC, 0)
    writer = ShardedWriter(lambda: [server.address()], SPEC, experiment)
    writer.write(numbered_samples(12))
    writer.flush()
    writer.close()
    with closing(make_reader(lambda: [server.address()], SPEC, experiment)) as reader:
        next(reader)
    folder = server.checkpoint(tmp_path_factory.mktemp("checkpoint") / "deep" / "shard-0")
    server.stop()
    return folder


def numbered_samples(count: int, start: int = 0) -> Sample:
    """Samples whose every field tells their number, which is also their version."""
    number = np.arange(start, start + count)
    legal = np.ones((count, 4), bool)
    legal[:, 3] = number % 2 == 0
    policy = np.zeros((count, 4), np.float32)
    policy[np.arange(count), number % 3] = 1
    return Sample(
        observation=(number[:, None] + np.array([0.0, 0.25, 0.5])).astype(np.float32),
        legal=legal,
        policy_target=policy,
        value_target=np.float32(1) / (1 + number).astype(np.float32),
        version=number.astype(np.int32),
    )


def small_experiment(**replay: Any) -> Experiment:
    """Batches of 2 times 4 samples, 4 states at a time. `reanalyse` is a section of its own."""
    reanalyse = replay.pop("reanalyse", {})
    settings: dict[str, Any] = {
        "samples_per_item": 1,
        "capacity": 1000,
        "min_size": 8,
        "samples_per_insert": 2.0,
        "tolerance": 16,
    }
    tree = {
        "name": "test",
        "env": {"name": "tic_tac_toe"},
        "actors": {"games": 4},
        "learner": {"batch_size": 4, "steps_per_dispatch": 2},
        "replay": settings | replay,
        "reanalyse": reanalyse,
    }
    return parse(tree, "test")
