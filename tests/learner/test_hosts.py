"""Hosts that train as one: their agreement over a service in memory, and real processes that are starved and killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podzero.cluster.preflight import PreflightCheck
from podzero.errors import ConfigError
from podzero.learner import LearnerCheckpoints, Membership, join, make_training
from podzero.learner.hosts import Alone, HostLost, Order, Team

STEP, STOP = Order("step"), Order("stop")


class Service:
    """The coordination service as each host's client sees it."""

    def __init__(self):
        self.entries = {}
        self.gone = False

    def _answer(self):
        if self.gone:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: failed to connect to all addresses")

    def key_value_set(self, key, value, allow_overwrite=False):
        self._answer()
        if key in self.entries and not allow_overwrite:
            raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
        self.entries[key] = value

    def blocking_key_value_get(self, key, timeout_in_ms):
        self._answer()
        assert timeout_in_ms >= 1
        if key not in self.entries:
            raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
        return self.entries[key]

    def key_value_dir_get(self, key):
        self._answer()
        return [(name, value) for name, value in self.entries.items() if name.startswith(key)]

    def key_value_delete(self, key):
        self._answer()
        del self.entries[key]

    def below(self, prefix):
        return [name for name in self.entries if name.startswith(prefix)]


def hosts_of(count, service=None, patience_s=60.0):
    """The members of a team over one service."""
    service = service or Service()
    return [Team(Membership(rank, count, "10.0.0.1:1"), service, patience_s) for rank in range(count)]


def test_one_host_does_what_it_wishes(make_experiment):
    alone = join(Membership(0, 1, ""), make_experiment())
    assert isinstance(alone, Alone)
    assert [alone.next(wish, 0.0) for wish in (STEP, None, STOP)] == [STEP, None, STOP]


def test_a_step_is_ordered_only_once_every_host_has_its_batch():
    leader, second, third = hosts_of(3)
    assert leader.next(STEP, 0.0) is None
    assert second.next(STEP, 0.0) is None
    assert third.next(None, 0.0) is None
    assert leader.next(STEP, 0.0) is None
    assert third.next(STEP, 0.0) is None
    assert leader.next(STEP, 0.0) == STEP
    assert second.next(STEP, 0.0) == third.next(STEP, 0.0) == STEP


def test_a_batch_counts_for_one_step_only():
    leader, follower = hosts_of(2)
    for _ in range(3):
        assert follower.next(STEP, 0.0) is None
        assert leader.next(STEP, 0.0) == STEP
        assert leader.next(STEP, 0.0) is None
        assert follower.next(STEP, 0.0) == STEP


def test_a_host_without_a_batch_is_reached_by_saves_and_stops_all_the_same():
    leader, second, third = hosts_of(3)
    save = Order("save", "/runs/r/checkpoints/40")
    assert leader.next(save, 0.0) == save
    assert leader.next(STOP, 0.0) == STOP
    for host in (second, third):
        assert [host.next(None, 0.0) for _ in range(3)] == [save, STOP, None]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["batch", "save", "stop", "look"])), max_size=60))
def test_all_hosts_follow_the_same_orders_and_take_a_step_only_with_a_batch_in_hand(events):
    """Hosts act one at a time in any order; a host keeps its batch until a step takes it."""
    hosts, logs, ready = hosts_of(3), [[], [], []], [False, False, False]
    for number, (rank, event) in enumerate(events):
        ready[rank] |= event == "batch"
        wish = STEP if ready[rank] else None
        if rank == 0 and event in ("save", "stop"):
            wish = Order(event, str(number))
        order = hosts[rank].next(wish, 0.0)
        if order is None:
            continue
        logs[rank].append(order)
        if order == STEP:
            assert ready[rank]
            if rank == 0:
                assert all(ready)
            ready[rank] = False
    for rank in (1, 2):
        assert logs[rank] == logs[0][: len(logs[rank])]
        rest = len(logs[0]) - len(logs[rank])
        assert [hosts[rank].next(STEP, 0.0) for _ in range(rest + 1)] == [*logs[0][len(logs[rank]) :], None]


def test_host_0_waits_for_a_batch_that_comes_in_time():
    leader, follower = hosts_of(2)
    threading.Timer(0.05, follower.next, (STEP, 0.0)).start()
    assert leader.next(STEP, 30.0) == STEP


def test_the_log_does_not_grow_with_the_run():
    service = Service()
    leader, follower = hosts_of(2, service)
    for number in range(300):
        wish = Order("save", str(number)) if number % 7 == 0 else STEP
        assert follower.next(STEP, 0.0) is None
        assert leader.next(wish, 0.0) == follower.next(STEP, 0.0) == wish
    assert len(service.below("podzero/order/")) == 64
    assert service.below("podzero/ready/") == ["podzero/ready/1"]


def test_hosts_whose_batches_do_not_come_are_named_when_patience_ends():
    leader, second, _, _ = hosts_of(4, patience_s=0.02)
    second.next(STEP, 0.0)
    with pytest.raises(HostLost, match=r"^learner host 0 has waited 0 s for the batches of host\(s\) 2, 3$"):
        leader.next(STEP, 0.05)


def test_a_silent_host_0_is_named_when_patience_ends():
    _, follower = hosts_of(2, patience_s=0.02)
    assert follower.next(STEP, 0.0) is None
    time.sleep(0.03)
    with pytest.raises(HostLost, match=r"^learner host 1 has waited 0 s for the orders of host 0$"):
        follower.next(STEP, 0.0)


def test_host_0_blames_nobody_for_its_own_lack_of_a_batch():
    service = Service()
    leader, _ = hosts_of(2, service, patience_s=1.0)
    _, follower = hosts_of(2, service)
    for _ in range(4):
        time.sleep(0.3)
        assert leader.next(None, 0.0) is None
    assert leader.next(STEP, 0.0) is None  # the others have their whole time from here on
    follower.next(STEP, 0.0)
    assert leader.next(STEP, 0.0) == STEP


def test_a_service_that_is_gone_is_told_as_the_loss_of_host_0():
    service = Service()
    leader, follower = hosts_of(2, service)
    service.gone = True
    for host, wish in ((leader, STEP), (leader, STOP), (follower, STEP), (follower, None)):
        with pytest.raises(HostLost, match=r"cannot reach host 0, which coordinates the learner: UNAVAILABLE"):
            host.next(wish, 0.0)


def test_hosts_of_one_experiment_agree(make_experiment):
    leader, follower = hosts_of(2)
    leader.compare(make_experiment())
    follower.compare(make_experiment())


def test_a_host_with_another_mesh_is_refused_although_a_resumption_might_have_it(make_experiment):
    leader, follower = hosts_of(2)
    leader.compare(make_experiment(mesh={"model": 2}))
    with pytest.raises(ConfigError, match=r"learner\.mesh\.model: holds 2, given 1"):
        follower.compare(make_experiment())


def test_a_host_with_another_experiment_is_refused_with_what_differs(make_experiment):
    leader, follower = hosts_of(2)
    leader.compare(make_experiment(batch_size=32, value_weight=0.5))
    with pytest.raises(ConfigError) as refused:
        follower.compare(make_experiment(batch_size=16, value_weight=0.5))
    assert str(refused.value).startswith(
        "learner host 1 was given another experiment than host 0:\n  learner.batch_size: holds 32, given 16\n"
        "start all hosts with the same config"
    )


def test_a_host_0_that_does_not_say_what_it_runs_is_lost(make_experiment):
    _, follower = hosts_of(2, patience_s=0.01)
    with pytest.raises(HostLost, match=r"host 0 did not tell host 1 its experiment within 0\.01 s"):
        follower.compare(make_experiment())


PATIENCE_S = 240.0
"""How long these tests wait for processes that import, compile and train on a busy machine."""
LOSS_S = 60.0
"""Within which the loss of a host ends the others: jax's heartbeat of ten seconds, and the machine may be busy."""


class Host:
    """A process that is one host of a learner, two devices in it, and what it has said."""

    def __init__(self, compiled, **job):
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "JAX_COMPILATION_CACHE_DIR": str(compiled),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        script = Path(__file__).with_name("learn_on_hosts.py")
        self.process = subprocess.Popen(
            [sys.executable, script, json.dumps(job)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.news, self.errors = [], []
        self._heard = threading.Condition()
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._hear, self._hear_errors)]
        for thread in self._threads:
            thread.start()

    def tell(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def said(self, name):
        """Everything that was said under a name."""
        return [news[name] for news in self.news if name in news]

    def await_news(self, name, times=1):
        """The first `times` things said under a name, once they were said."""
        with self._heard:
            came = self._heard.wait_for(
                lambda: len(self.said(name)) >= times or self.process.poll() is not None, PATIENCE_S
            )
        if not came:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(2)
        words = "\n".join(self.errors[-40:])
        assert len(self.said(name)) >= times, f"waited for '{name}' in {self.news}\n{words}"
        return self.said(name)[:times]

    def await_end(self, timeout_s=PATIENCE_S):
        """The exit status, once it has ended and was heard to the end."""
        status = self.process.wait(timeout_s)
        for thread in self._threads:
            thread.join(30)
        return status

    def close(self):
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()

    def _hear(self):
        for line in self.process.stdout:
            with self._heard:
                self.news.append(json.loads(line))
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()

    def _hear_errors(self):
        self.errors.extend(line.rstrip() for line in self.process.stderr)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Where programs lie that were compiled once."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def start_hosts(compiled):
    """Starts two hosts, each with what differs in its job; ends them with the test."""
    hosts = []

    def start(*jobs):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
        team = {"hosts": len(jobs), "coordinator": coordinator}
        started = [Host(compiled, rank=rank, **team, **job) for rank, job in enumerate(jobs)]
        hosts.extend(started)
        return started

    yield start
    for host in hosts:
        host.close()


def restored_step(folder, make_experiment, network, spec):
    """The step of a checkpoint, restored onto the one device of this process."""
    training = make_training(make_experiment(), network, spec, [])
    assert len(training.mesh.devices.flat) == len(jax.devices())
    checkpoints = LearnerCheckpoints(training.mesh)
    state = checkpoints.restore(folder, training.like)
    checkpoints.close()
    return int(state.step)


def test_host_0_listens_at_a_port_that_was_reserved_for_it_and_at_its_own_address_alone(compiled, listening):
    reservation = PreflightCheck("host 0")
    port = reservation.reserve_port()
    with socket.socket() as another, pytest.raises(OSError, match="in use"):
        another.bind(("127.0.0.1", port))
    host = Host(compiled, rank=0, hosts=2, coordinator=f"127.0.0.1:{port}")
    try:
        until, ports = time.monotonic() + PATIENCE_S, {}
        while port not in ports:
            assert time.monotonic() < until, host.errors
            time.sleep(0.2)
            ports = listening([psutil.Process(host.process.pid)])
    finally:
        host.close()
    assert ports[port] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hosts_of_unequal_speed_save_and_stop_at_the_same_step(
    start_hosts, tmp_path, make_experiment, network, spec
):
    fast, slow = start_hosts({}, {"delay_s": 0.05, "count": 40})
    fast.await_news("published", times=2)
    fast.tell(f"save {tmp_path / 'one'}")
    time.sleep(0.3)
    slow.tell(f"save {tmp_path / 'one'}")
    (step,) = fast.await_news("saved")
    assert slow.await_news("saved") == [step]
    slow.await_news("starved")
    fast.await_news("published", times=21)  # the slow host's batches, up to the last
    fast.tell("stop")
    assert [host.await_end() for host in (fast, slow)] == [0, 0], (fast.errors[-20:], slow.errors[-20:])
    assert fast.said("ended") == slow.said("ended") == [80]
    assert fast.said("published") == list(range(0, 81, 4))
    assert fast.said("acting") == [80]
    assert slow.said("published") == []
    assert slow.said("acting") == [None]
    assert {news["worker"] for news in slow.news if "worker" in news} == {"learner-1"}
    assert not any("learner/loss" in metrics for metrics in slow.said("metrics"))
    assert 0 < step <= 80
    assert restored_step(tmp_path / "one", make_experiment, network, spec) == step


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lost", [1, 0])
def test_the_loss_of_a_host_ends_the_other_and_a_restart_goes_on_from_the_checkpoint(start_hosts, tmp_path, lost):
    """Killed in the middle of training; the survivor ends with an error within `LOSS_S`."""
    hosts = start_hosts({"delay_s": 0.02}, {"delay_s": 0.02})
    hosts[0].await_news("published", times=2)
    for host in hosts:
        host.tell(f"save {tmp_path / 'one'}")
    (step,) = hosts[0].await_news("saved")
    hosts[1].await_news("saved")
    hosts[lost].process.kill()
    survivor = hosts[1 - lost]
    assert survivor.await_end(LOSS_S) != 0
    assert survivor.said("ended") == []

    job = {"restore_from": str(tmp_path / "one")}
    first, second = start_hosts(job, job)
    published = first.await_news("published", times=3)
    assert published == sorted(set(published))
    assert published[0] == step
    first.tell("stop")
    assert [host.await_end() for host in (first, second)] == [0, 0], (first.errors[-20:], second.errors[-20:])
    assert first.said("ended") == second.said("ended")
    assert first.said("ended")[0] > step
