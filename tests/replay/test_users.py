"""Actors, the learner and a reanalyser use a real server in any order, while it is saved and killed.

Whatever came before, all of them go on once each of them may, and the ledger of every table closes.
"""

import functools
import threading
import time

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from podzero.core.types import EnvSpec
from podzero.replay import REANALYSED, STATES, ReplayServer, ShardedWriter, make_reader, make_state_reader
from podzero.replay.shard import SAMPLES
from podzero.runtime.monitoring.ledger import Books

from .conftest import numbered_samples, small_experiment
from .test_ledger import kill
from .test_reanalyse import numbered_states

SPEC = EnvSpec("line", (3,), "float32", 4, state_bytes=8)
EXPERIMENT = small_experiment(
    sampler="prioritized",
    priority_exponent=0.6,
    capacity=60,
    min_size=16,
    tolerance=24,
    reanalyse={"share": 0.5, "capacity": 60},
)
TABLES = (SAMPLES, STATES, REANALYSED)
GOES_ON_S = 120.0
"""Longest time in which everybody does something: a new server may have to start, and machines are busy."""


class User(threading.Thread):
    """Does something as often as it is asked to, each time as soon as the server lets it, or again and again."""

    def __init__(self, act):
        super().__init__(daemon=True)
        self.done, self.wanted, self.failure = 0, 0, None
        self.ending, self._act = threading.Event(), act
        self.start()

    def run(self):
        while not self.ending.is_set():
            if self.done >= self.wanted:
                time.sleep(0.005)
                continue
            try:
                self._act(self)
                self.done += 1
            except StopIteration:
                return
            except Exception as failure:
                self.failure = failure
                return


class Replay(RuleBasedStateMachine):
    """One shard and its users; `folder` is for its checkpoints."""

    def __init__(self, folder):
        super().__init__()
        self._folder, self._saves, self._saved, self._number = folder, 0, None, 0
        self._books = {table: Books(table, 1, time.monotonic(), {}) for table in TABLES}
        self._server, self._addresses, self._writers, self._users = None, [""], {}, {}
        self._serve(None)
        self._readers = [make(self._where, SPEC, EXPERIMENT) for make in (make_reader, make_state_reader)]
        for name in ("actor-0", "actor-1"):
            self._open(name, SAMPLES, STATES)
            self._users[name] = User(functools.partial(self._play, name))
        self._open("reanalyser-0", REANALYSED)
        self._users["reanalyser-0"] = User(self._reanalyse)
        self._users["learner"] = User(self._learn)

    def _where(self):
        return self._addresses

    def _serve(self, saved):
        self._server = ReplayServer(EXPERIMENT, SPEC, 0, saved)
        self._add("replay-0", self._server.info())
        self._addresses[0] = self._server.address()

    def _open(self, name, *tables):
        self._number += 1
        self._writers[name] = {
            table: ShardedWriter(
                self._where, SPEC, EXPERIMENT, table=table, lenient=True, writer=f"run/{name}/{self._number}/0"
            )
            for table in tables
        }

    def _add(self, worker, metrics):
        for books in self._books.values():
            books.add(worker, metrics, time.monotonic())

    def _play(self, name, user):
        writers = self._writers[name]
        writers[SAMPLES].write(numbered_samples(5, user.done), np.full(5, 1.0 + user.done % 3), user.ending)
        writers[STATES].write(numbered_states(3, user.done), stopping=user.ending)

    def _learn(self, user):
        batch = next(self._readers[0])
        self._readers[0].update_priorities(batch.keys, np.full(batch.keys.key.shape, float(user.done % 5)))

    def _reanalyse(self, user):
        version = next(self._readers[1]).version
        self._writers["reanalyser-0"][REANALYSED].write(numbered_samples(len(version)), stopping=user.ending)

    @rule(name=st.sampled_from(["actor-0", "actor-1", "reanalyser-0", "learner"]), times=st.integers(1, 8))
    def someone_wants_to_act(self, name, times):
        self._users[name].wanted += times

    @rule(count=st.integers(1, 4))
    def bad_samples_are_written(self, count):
        nan = numbered_samples(count)._replace(value_target=np.full(count, np.nan, np.float32))
        self._writers["actor-0"][SAMPLES].write(nan)

    @rule(seconds=st.floats(0.0, 0.3))
    def time_passes(self, seconds):
        time.sleep(seconds)
        self._report()

    @rule()
    def the_shard_is_saved(self):
        self._saves += 1
        self._saved = self._server.checkpoint(self._folder / f"{self._saves}" / "replay" / "shard-0")

    @rule(restored=st.booleans())
    def the_server_is_killed(self, restored):
        self._report()
        kill(self._server)
        for books in self._books.values():
            books.ended("replay-0", time.monotonic())
        self._server.stop()
        self._serve(self._saved if restored else None)

    @rule(name=st.sampled_from(["actor-0", "actor-1"]))
    @precondition(lambda self: all(user.wanted == user.done for user in self._users.values()))
    def an_actor_is_replaced(self, name):
        self._close(name)
        self._open(name, SAMPLES, STATES)

    def _close(self, name):
        for writer in self._writers[name].values():
            writer.close()
            self._add(name, writer.metrics())
        for books in self._books.values():
            books.ended(name, time.monotonic())

    def _report(self):
        for name, writers in self._writers.items():
            for writer in writers.values():
                self._add(name, writer.metrics())
        self._add("replay-0", self._server.info())

    def teardown(self):
        try:
            self._all_go_on()
            for user in self._users.values():
                user.ending.set()
            for reader in self._readers:
                reader.close()
            for user in self._users.values():
                user.join(30.0)
                assert not user.is_alive()
            for name in self._writers:
                self._close(name)
            self._report()
            for table, books in self._books.items():
                found = books.ledger(0, time.monotonic())
                assert (found["unaccounted"], found["unexplained"], found["in_flight"]) == (0, 0, 0), (table, found)
        finally:
            for user in self._users.values():
                user.ending.set()
            self._server.stop()

    def _all_go_on(self):
        before = {name: user.done for name, user in self._users.items()}
        for user in self._users.values():
            user.wanted = 10**9
        deadline = time.monotonic() + GOES_ON_S
        while waiting := [name for name, user in self._users.items() if user.done < before[name] + 3]:
            failed = {name: user.failure for name, user in self._users.items() if user.failure}
            assert not failed, failed
            assert time.monotonic() < deadline, f"{waiting} wait for ever: {self._server.info()}"
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("examples", "steps"), [(2, 10), pytest.param(40, 40, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_users_of_replay_never_wait_for_each_other_for_ever_and_the_ledger_closes(tmp_path, examples, steps):
    number = iter(range(10**9))
    once = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    run_state_machine_as_test(lambda: Replay(tmp_path / f"{next(number)}"), settings=once)
