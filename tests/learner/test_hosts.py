"""Synchronized hosts over an in-memory coordination service, and real processes without batches or killed."""

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

from podzero.core.errors import ConfigError
from podzero.learner import join, make_training
from podzero.learner.checkpoints import LearnerCheckpoints
from podzero.learner.hosts import Command, HostLost, HostSync
from podzero.runtime.cluster.preflight import PreflightCheck

STEP, STOP = Command("step"), Command("stop")


class Service:
    """The client of an in-memory coordination service."""

    def __init__(self):
        self.entries = {}
        self.error = None

    def _check(self):
        if self.error is not None:
            raise jax.errors.JaxRuntimeError(self.error)

    def key_value_set(self, key, value, allow_overwrite=False):
        self._check()
        if key in self.entries and not allow_overwrite:
            raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
        self.entries[key] = value

    def blocking_key_value_get(self, key, timeout_in_ms):
        self._check()
        assert timeout_in_ms >= 1
        if key not in self.entries:
            raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
        return self.entries[key]

    def key_value_dir_get(self, key):
        self._check()
        return [(name, value) for name, value in self.entries.items() if name.startswith(key)]

    def key_value_delete(self, key):
        self._check()
        del self.entries[key]

    def below(self, prefix):
        return [name for name in self.entries if name.startswith(prefix)]


def hosts_of(count, service=None, timeout_s=60.0):
    """Hosts that share one coordination service."""
    service = service or Service()
    return [HostSync(rank, count, service, timeout_s) for rank in range(count)]


def test_a_single_host_has_nobody_to_agree_with(make_experiment):
    assert join(0, 1, "", make_experiment()) is None


def test_hosts_step_only_when_every_host_has_its_batch():
    leader, second, third = hosts_of(3)
    assert leader.next(STEP, 0.0) is None
    assert second.next(STEP, 0.0) is None
    assert third.next(None, 0.0) is None
    assert leader.next(STEP, 0.0) is None
    assert third.next(STEP, 0.0) is None
    assert leader.next(STEP, 0.0) == STEP
    assert second.next(STEP, 0.0) == third.next(STEP, 0.0) == STEP


def test_each_step_needs_a_new_batch():
    leader, follower = hosts_of(2)
    for _ in range(3):
        assert follower.next(STEP, 0.0) is None
        assert leader.next(STEP, 0.0) == STEP
        assert leader.next(STEP, 0.0) is None
        assert follower.next(STEP, 0.0) == STEP


def test_all_hosts_step_at_the_progress_that_host_0_proposed():
    leader, follower = hosts_of(2)
    assert follower.next(Command("step", progress=0.9), 0.0) is None
    third = Command("step", progress=1 / 3)
    assert leader.next(third, 0.0) == follower.next(Command("step", progress=0.9), 0.0) == third


def test_a_host_without_a_batch_executes_saves_and_stops():
    leader, second, third = hosts_of(3)
    save = Command("save", "/runs/r/checkpoints/40")
    assert leader.next(save, 0.0) == save
    assert leader.next(STOP, 0.0) == STOP
    for host in (second, third):
        assert [host.next(None, 0.0) for _ in range(3)] == [save, STOP, None]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["batch", "save", "stop", "poll"])), max_size=60))
def test_all_hosts_execute_the_same_commands_and_step_only_with_a_batch(events):
    """Hosts poll one at a time in any order; a host keeps its batch until a step uses it."""
    hosts, logs, ready = hosts_of(3), [[], [], []], [False, False, False]
    for number, (rank, event) in enumerate(events):
        ready[rank] |= event == "batch"
        proposal = STEP if ready[rank] else None
        if rank == 0 and event in ("save", "stop"):
            proposal = Command(event, str(number))
        command = hosts[rank].next(proposal, 0.0)
        if command is None:
            continue
        logs[rank].append(command)
        if command == STEP:
            assert ready[rank]
            if rank == 0:
                assert all(ready)
            ready[rank] = False
    for rank in (1, 2):
        assert logs[rank] == logs[0][: len(logs[rank])]
        rest = len(logs[0]) - len(logs[rank])
        assert [hosts[rank].next(STEP, 0.0) for _ in range(rest + 1)] == [*logs[0][len(logs[rank]) :], None]


def test_host_0_waits_for_a_batch_that_arrives_in_time():
    leader, follower = hosts_of(2)
    threading.Timer(0.05, follower.next, (STEP, 0.0)).start()
    assert leader.next(STEP, 30.0) == STEP


def test_the_log_does_not_grow_with_the_run():
    service = Service()
    leader, follower = hosts_of(2, service)
    for number in range(300):
        proposal = Command("save", str(number)) if number % 7 == 0 else STEP
        assert follower.next(STEP, 0.0) is None
        assert leader.next(proposal, 0.0) == follower.next(STEP, 0.0) == proposal
    assert len(service.below("podzero/command/")) == 64
    assert service.below("podzero/ready/") == ["podzero/ready/1"]


def test_all_hosts_take_what_host_0_tells():
    leader, follower = hosts_of(2)
    assert (leader.told("steps", "32"), follower.told("steps", "16")) == ("32", "32")
    with pytest.raises(HostLost, match=r"^learner host 1 .*host 0 .*batch size"):
        follower.told("batch size", "512")


@pytest.mark.parametrize(("rank", "awaited"), [(0, "host(s) 2, 3"), (1, "the commands of host 0")])
def test_a_long_wait_while_a_host_trains_names_whom_it_waits_for(monkeypatch, caplog, rank, awaited):
    now = [0.0]
    monkeypatch.setattr("podzero.learner.hosts.time.monotonic", lambda: now[0])
    hosts = hosts_of(4)
    hosts[1].next(STEP, 0.0)
    now[0] += 1000.0
    for _ in range(4):
        assert hosts[rank].next(STEP, -1.0) is None
        now[0] += 20.0
    assert awaited in caplog.text


def test_a_host_that_waits_for_replay_is_not_lost_however_long_that_takes(monkeypatch):
    """Host 1 has no samples for two hours, then host 0."""
    now = [0.0]
    monkeypatch.setattr("podzero.learner.hosts.time.monotonic", lambda: now[0])
    leader, follower = hosts_of(2, timeout_s=60.0)
    for proposals in ((STEP, None), (None, STEP)):
        for _ in range(720):
            now[0] += 10.0
            assert leader.next(proposals[0], -1.0) is None
            assert follower.next(proposals[1], 0.0) is None
        assert follower.next(STEP, 0.0) is None
        assert leader.next(STEP, 0.0) == follower.next(STEP, 0.0) == STEP


def test_an_unreachable_service_is_reported_as_the_loss_of_host_0():
    service = Service()
    leader, follower = hosts_of(2, service)
    service.error = "UNAVAILABLE: failed to connect to all addresses"
    for host, proposal in ((leader, STEP), (leader, STOP), (follower, STEP), (follower, None)):
        with pytest.raises(HostLost, match=r"reach host 0.*UNAVAILABLE"):
            host.next(proposal, 0.0)


def test_a_command_that_could_not_be_written_in_time_is_not_executed():
    service = Service()
    leader, _ = hosts_of(2, service)
    service.error = "DEADLINE_EXCEEDED: Deadline Exceeded"
    with pytest.raises(HostLost, match="cannot reach host 0"):
        leader.next(STOP, 0.0)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_host_whose_rank_is_not_its_number_in_the_slice_is_refused(make_experiment, monkeypatch, index):
    service, experiment = Service(), make_experiment()
    hosts_of(3, service)[0].compare(experiment)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *arguments, **settings: None)
    monkeypatch.setattr("jax._src.distributed.global_state.client", service)
    monkeypatch.setattr(jax, "process_index", lambda: index)
    where = (1, 3, "10.0.0.1:1")
    if index == 1:
        assert join(*where, experiment) is not None
    else:
        with pytest.raises(ConfigError, match=rf"learner host 1 is process {index} .*TPU_WORKER_ID"):
            join(*where, experiment)


def test_hosts_with_equal_experiments_pass_the_comparison(make_experiment):
    leader, follower = hosts_of(2)
    leader.compare(make_experiment())
    follower.compare(make_experiment())


def test_a_host_with_another_mesh_is_refused(make_experiment):
    """A resumption may change the mesh, but not a single host."""
    leader, follower = hosts_of(2)
    leader.compare(make_experiment(mesh={"model": 2}))
    with pytest.raises(ConfigError, match=r"learner\.mesh\.model: holds 2, given 1"):
        follower.compare(make_experiment())


def test_a_host_with_another_experiment_is_refused_with_the_differences(make_experiment):
    leader, follower = hosts_of(2)
    leader.compare(make_experiment(batch_size=32, value_weight=0.5))
    with pytest.raises(ConfigError) as refused:
        follower.compare(make_experiment(batch_size=16, value_weight=0.5))
    assert str(refused.value).startswith(
        "learner host 1 was given another experiment than host 0:\n  learner.batch_size: holds 32, given 16\n"
        "start all hosts with the same config"
    )


def test_a_host_0_that_does_not_publish_its_experiment_is_lost(make_experiment):
    _, follower = hosts_of(2, timeout_s=0.01)
    with pytest.raises(HostLost, match=r"learner host 1 .* 0\.01 s for host 0 "):
        follower.compare(make_experiment())


EVENT_TIMEOUT_S = 240.0
"""Longest wait for an event of processes that import, compile and train on a busy machine."""
LOSS_TIMEOUT_S = 60.0
"""Longest time until the loss of a host ends the others: more than the heartbeat timeout of ten seconds."""


class Host:
    """A process that is one host of a learner with two devices, and the events that it printed."""

    def __init__(self, compiled, **job):
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2",
            "JAX_COMPILATION_CACHE_DIR": str(compiled),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        script = Path(__file__).with_name("learn_on_hosts.py")
        self.process = subprocess.Popen(
            [sys.executable, script, json.dumps(job)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.printed, self.errors = [], []
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def command(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def events(self, name):
        """The values of all events of a name."""
        return [event[name] for event in self.printed if name in event]

    def await_events(self, name, count=1):
        """Waits for `count` events of a name, and returns their values."""
        with self._changed:
            in_time = self._changed.wait_for(
                lambda: len(self.events(name)) >= count or self.process.poll() is not None, EVENT_TIMEOUT_S
            )
        if not in_time:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(2)
        errors = "\n".join(self.errors[-40:])
        assert len(self.events(name)) >= count, f"waited for '{name}' in {self.printed}\n{errors}"
        return self.events(name)[:count]

    def await_end(self, timeout_s=EVENT_TIMEOUT_S):
        """Waits for the end of the process and of its output; returns the exit status."""
        status = self.process.wait(timeout_s)
        for thread in self._threads:
            thread.join(30)
        return status

    def close(self):
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()

    def _read(self):
        for line in self.process.stdout:
            # Gloo prints "[Gloo] Rank 0 is connected ..." there.
            if not line.startswith("{"):
                self.errors.append(line.rstrip())
                continue
            with self._changed:
                self.printed.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _read_errors(self):
        self.errors.extend(line.rstrip() for line in self.process.stderr)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The folder of the compilation cache."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def start_hosts(compiled):
    """Starts hosts, each with its own arguments, and ends them after the test."""
    hosts = []

    def start(*jobs):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
        common = {"hosts": len(jobs), "coordinator": coordinator}
        started = [Host(compiled, rank=rank, **common, **job) for rank, job in enumerate(jobs)]
        hosts.extend(started)
        return started

    yield start
    for host in hosts:
        host.close()


def restored_step(folder, make_experiment, network, spec):
    """The step of a checkpoint, which is restored onto the devices of this process."""
    training = make_training(make_experiment(), network, spec, [])
    assert len(training.mesh.devices.flat) == len(jax.devices())
    checkpoints = LearnerCheckpoints(training.mesh)
    state = checkpoints.restore(folder, training.like)
    checkpoints.close()
    return int(state.step)


def test_host_0_listens_at_a_port_that_was_reserved_for_it_and_at_its_own_address_alone(compiled, listening):
    reservation = PreflightCheck()
    port = reservation.reserve_port()
    with socket.socket() as another, pytest.raises(OSError, match="in use"):
        another.bind(("127.0.0.1", port))
    host = Host(compiled, rank=0, hosts=2, coordinator=f"127.0.0.1:{port}")
    try:
        until, ports = time.monotonic() + EVENT_TIMEOUT_S, {}
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
    fast.await_events("published", count=2)
    fast.command(f"save {tmp_path / 'one'}")
    time.sleep(0.3)
    slow.command(f"save {tmp_path / 'one'}")
    (step,) = fast.await_events("saved")
    assert slow.await_events("saved") == [step]
    slow.await_events("starved")
    fast.await_events("published", count=21)  # all batches of the slow host
    fast.command("stop")
    assert [host.await_end() for host in (fast, slow)] == [0, 0], (fast.errors[-20:], slow.errors[-20:])
    assert fast.events("ended") == slow.events("ended") == [80]
    assert fast.events("published") == list(range(0, 81, 4))
    assert fast.events("acting") == [80]
    assert slow.events("published") == []
    assert slow.events("acting") == [None]
    assert set(slow.events("worker")) == {"learner-1"}
    assert not any("learner/loss" in metrics for metrics in slow.events("metrics"))
    assert 0 < step <= 80
    assert restored_step(tmp_path / "one", make_experiment, network, spec) == step


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lost", [1, 0])
def test_the_loss_of_a_host_ends_the_other_and_a_restart_resumes_from_the_checkpoint(start_hosts, tmp_path, lost):
    """One host is killed during training; the other ends with an error within `LOSS_TIMEOUT_S`."""
    hosts = start_hosts({"delay_s": 0.02}, {"delay_s": 0.02})
    hosts[0].await_events("published", count=2)
    for host in hosts:
        host.command(f"save {tmp_path / 'one'}")
    (step,) = hosts[0].await_events("saved")
    hosts[1].await_events("saved")
    hosts[lost].process.kill()
    survivor = hosts[1 - lost]
    assert survivor.await_end(LOSS_TIMEOUT_S) != 0
    assert survivor.events("ended") == []

    job = {"restore_from": str(tmp_path / "one")}
    first, second = start_hosts(job, job)
    published = first.await_events("published", count=3)
    assert published == sorted(set(published))
    assert published[0] == step
    first.command("stop")
    assert [host.await_end() for host in (first, second)] == [0, 0], (first.errors[-20:], second.errors[-20:])
    assert first.events("ended") == second.events("ended")
    assert first.events("ended")[0] > step
