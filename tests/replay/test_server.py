"""Servers: ports, identities, and what their tables keep and give."""

import os
import signal
import socket
import subprocess
import sys

import numpy as np
import psutil
import pytest

from podzero.replay import ShardedWriter, make_reader
from podzero.replay.errors import PortTaken, ServerFailed, WrongServer
from podzero.replay.process import ServerProcess


def test_a_taken_port_is_refused(serve, make_experiment):
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port}.*replay\.port"):
            serve(make_experiment(port=port))


def test_a_port_that_another_replay_server_holds_is_refused(serve, make_experiment):
    port = int(serve(make_experiment()).address().split("#")[0].split(":")[1])
    with pytest.raises(PortTaken):
        serve(make_experiment(port=port))


def test_a_port_is_kept_from_other_processes_until_the_server_listens(serve, make_experiment, monkeypatch):
    def take_then_start(python, wanted, timeout_s):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", wanted["port"]))
        return ServerProcess(python, wanted, timeout_s)

    monkeypatch.setattr("podzero.replay.server.ServerProcess", take_then_start)
    assert serve(make_experiment()).limits().size == 0


def test_another_server_at_the_address_is_refused(serve, make_experiment, spec):
    experiment = make_experiment()
    endpoint = serve(experiment).address().split("#")[0]
    for make in (ShardedWriter, make_reader):
        with pytest.raises(WrongServer, match=f"answers at {endpoint}"):
            make(lambda: [f"{endpoint}#0123456789ab"], spec, experiment)


def test_a_table_of_another_game_is_refused(serve, make_experiment, spec):
    experiment = make_experiment()
    address = serve(experiment).address()
    with pytest.raises(WrongServer, match="expected 'ring "):
        ShardedWriter(lambda: [address], spec._replace(name="ring"), experiment)


def test_a_malformed_address_is_refused(make_experiment, spec):
    with pytest.raises(ValueError, match="expected host:port#identity"):
        ShardedWriter(lambda: ["127.0.0.1:80"], spec, make_experiment())


def test_importing_replay_imports_neither_reverb_nor_tensorflow():
    code = "import sys, podzero.replay; print({'reverb', 'tensorflow'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "set()"


def test_the_oldest_samples_are_removed_at_capacity(serve, connect, make_experiment, make_samples, samples_of):
    experiment = make_experiment(capacity=20, min_size=20, tolerance=40)  # 40 samples pass unread
    server = serve(experiment)
    writer = connect(ShardedWriter, experiment, server)
    writer.write(make_samples(40))
    writer.flush()
    assert server.info()["replay/size"] == 20
    reader = connect(make_reader, experiment, server)
    seen = np.concatenate([samples_of(next(reader)).version.ravel() for _ in range(6)])
    assert seen.min() >= 20


def test_a_prioritized_table_samples_in_proportion_to_priority(
    serve, connect, make_experiment, make_samples, samples_of
):
    experiment = make_experiment(
        sampler="prioritized", priority_exponent=1.0, min_size=400, samples_per_insert=8.0, tolerance=3200
    )
    server = serve(experiment)
    writer = connect(ShardedWriter, experiment, server)
    priorities = np.where(np.arange(400) < 200, 3.0, 1.0)
    writer.write(make_samples(400), priorities)
    writer.flush()
    reader = connect(make_reader, experiment, server)
    seen = np.concatenate([samples_of(next(reader)).version.ravel() for _ in range(250)])
    share = np.mean(seen < 200)
    assert abs(share - 0.75) < 0.05  # five standard deviations of 2,000 draws


def children():
    return psutil.Process().children()


@pytest.mark.usefixtures("real_server")
def test_a_server_at_loopback_is_reached_from_this_machine_alone(serve, make_experiment, listening):
    before = children()
    serve(make_experiment()).limits()
    (server,) = set(children()) - set(before)
    assert list(listening([server]).values()) == [[]]


def test_a_server_at_another_address_is_reached_there(serve, connect, make_experiment, make_samples, outward):
    experiment = make_experiment()
    server = serve(experiment, host=outward)
    assert server.address().startswith(f"{outward}:")
    connect(ShardedWriter, experiment, server).write(make_samples(10))


def test_a_system_that_cannot_keep_a_server_to_loopback_is_told_of(serve, make_experiment, monkeypatch, caplog):
    monkeypatch.setattr("podzero.replay.server.ServerProcess", refused_loopback)
    assert serve(make_experiment()).limits().size == 0
    assert "replay listens on all interfaces" in caplog.text


def refused_loopback(*arguments):
    """A server whose system does not restrict sockets to an interface."""
    server = ServerProcess(*arguments)
    server.loopback = False
    return server


@pytest.mark.usefixtures("real_server")
def test_a_server_that_dies_is_named_with_its_exit_code(serve, make_experiment):
    before = children()
    server = serve(make_experiment())
    (child,) = set(children()) - set(before)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ServerFailed, match="has ended with exit code -9"):
        server.info()


START_AND_DIE = """
import os, psutil
from podzero.config import parse
from podzero.replay import ReplayServer
from podzero.core.types import EnvSpec
experiment = parse({"name": "test", "env": {"name": "tic_tac_toe"}}, "test")
server = ReplayServer(experiment, EnvSpec("line", (3,), "float32", 4), 0)
child = psutil.Process().children()[0].pid
print(child, flush=True)
os.kill(child, {signal})
os.kill(os.getpid(), 9)
"""


@pytest.mark.usefixtures("real_server")
@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGSTOP])
def test_a_server_ends_with_the_process_that_started_it_even_if_it_is_stopped(number):
    command = [sys.executable, "-c", START_AND_DIE.replace("{signal}", str(int(number)))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    psutil.Process(int(done.stdout)).wait(20)
