"""The sums of the ledger close whatever happens to writers, shards and the run."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.runtime.monitoring.ledger import REPORTS_APART_S, Books, open_sums

WRITERS, SHARDS, CAPACITY = ("actor-0", "actor-1"), ("replay-0", "replay-1"), 30


class Writer:
    """Samples are `sent`, then `arrived` at a shard, then confirmed; `news` has what was not reported yet."""

    def __init__(self):
        self.sent = self.arrived = 0
        self.news = Counter()

    def move(self, **changes):
        self.news.update({f"count/samples/{what}": change for what, change in changes.items()})


class World:
    """Writers and shards with the truth about them, and the books that hear only their reports."""

    def __init__(self):
        self.now, self.counters = 0.0, {}
        self.shards = dict.fromkeys(SHARDS, (0, 0))
        self.saved = dict(self.shards)
        self.begin()

    def begin(self):
        """Starts the run, from its checkpoint if it has one."""
        self.books = Books("samples", len(SHARDS), self.now, self.counters)
        self.writers = {name: self.writer(name) for name in WRITERS}
        self.shards = dict(self.saved)
        self.untold = 0  # arrived, and no writer has reported a confirmation
        self.lost = self.ledger.lost_with_shards
        self.restarted = self.killed = False
        for name in SHARDS:
            self.report_shard(name)
        assert self.ledger.unheard == 0
        self.lost = self.ledger.lost_with_shards

    def writer(self, name):
        """A new writer, which reports before it writes."""
        self.books.add(name, {"time/compile": 1.0}, self.now)
        return Writer()

    @property
    def ledger(self):
        return SimpleNamespace(**self.books.ledger(0, self.now))

    def write(self, name, _, count):
        self.writers[name].sent += count
        self.writers[name].move(made=count, in_flight=count)

    def refuse(self, name, _, count):
        self.writers[name].move(made=count, **{"refused/number": count})

    def arrive(self, name, shard, count):
        writer = self.writers[name]
        count = min(count, writer.sent)
        writer.sent -= count
        writer.arrived += count
        self.untold += count
        inserted, size = self.shards[shard]
        self.shards[shard] = inserted + count, min(size + count, CAPACITY)

    def confirm(self, name, _, count):
        writer = self.writers[name]
        count = min(count, writer.arrived)
        writer.arrived -= count
        writer.move(confirmed=count, in_flight=-count)

    def report(self, name, *_):
        news, self.writers[name].news = self.writers[name].news, Counter()
        self.untold -= news["count/samples/confirmed"]
        self.books.add(name, news, self.now)

    def kill(self, name, *_):
        self.killed = True
        self.books.ended(name, self.now)
        self.writers[name] = self.writer(name)

    def close(self, name, *_):
        writer = self.writers[name]
        left = writer.sent + writer.arrived
        writer.move(lost=left, in_flight=-left)
        self.report(name)
        self.writers[name] = Writer()

    def report_shard(self, shard):
        inserted, size = self.shards[shard]
        self.books.add(shard, {"replay/inserted": inserted, "replay/size": size, "replay/sampled": 0}, self.now)

    def hear(self, _, shard, __):
        self.report_shard(shard)

    def save_shard(self, _, shard, __):
        self.saved[shard] = self.shards[shard]

    def restart(self, _, shard, count):
        if count % 2:  # else what came after its last report is not known
            self.report_shard(shard)
        self.lost += self.shards[shard][0] - self.saved[shard][0]
        self.restarted = True
        self.shards[shard] = self.saved[shard]
        self.books.ended(shard, self.now)
        self.report_shard(shard)

    def save(self, *_):
        self.counters = self.books.counters()
        self.saved = dict(self.shards)

    def resume(self, *_):
        self.begin()

    def settle(self):
        """All writers end in order, and all reports arrive."""
        for name in WRITERS:
            self.close(name)
        for name in SHARDS:
            self.report_shard(name)
        self.now += 10 * REPORTS_APART_S
        for name in WRITERS:
            self.report(name)
        for name in SHARDS:
            self.report_shard(name)
        return self.ledger


ACTIONS = (
    "write", "write", "refuse", "arrive", "arrive", "confirm", "confirm", "report", "kill", "close", "hear",
    "save_shard", "restart", "save", "resume",
)  # fmt: skip
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.sampled_from(WRITERS),
        st.sampled_from(SHARDS),
        st.integers(1, 20),
        st.sampled_from((0.7, 0.7, 30.0, 2000.0)),
    ),
    min_size=20,
    max_size=80,
)


@settings(max_examples=200)
@given(events=EVENTS)
def test_the_sums_close_after_whatever_happened_and_however_late_it_is_reported(events):
    world = World()
    for action, writer, shard, count, passed_s in events:
        world.now += passed_s
        getattr(world, action)(writer, shard, count)
        assert world.ledger.unaccounted == world.ledger.unexplained == 0
    found = world.settle()
    assert found.made == found.refused + found.confirmed + found.lost
    assert found.confirmed + found.restored + found.unheard == found.held + found.evicted + found.lost_with_shards
    assert found.held == sum(size for _, size in world.shards.values())
    assert found.unheard == world.untold - (world.lost - found.lost_with_shards)
    assert (found.unaccounted, found.unexplained, open_sums({"samples": vars(found)})) == (0, 0, "")
    if not world.restarted:
        assert found.unheard >= 0
        assert found.unheard <= found.lost or world.killed


@given(events=EVENTS)
def test_what_a_restarted_shard_lost_is_exact_where_it_was_heard_before(events):
    world = World()
    for action, writer, shard, count, _ in events:
        getattr(world, action)(writer, shard, 2 * count + 1)
        if action == "arrive":
            world.report_shard(shard)
    assert world.ledger.lost_with_shards == world.lost


def quiet_world():
    """A run in which 40 samples were written and confirmed, some time ago."""
    world = World()
    for action in ("write", "arrive", "confirm", "report"):
        getattr(world, action)("actor-0", "replay-0", 40)
    assert world.settle().unexplained == 0
    return world


@pytest.mark.parametrize(("change", "said"), [(5, "5 in replay that nobody"), (-7, "7 confirmed and vanished")])
def test_samples_that_nobody_wrote_or_that_vanish_are_told(change, said):
    world = quiet_world()
    inserted, size = world.shards["replay-1"]
    world.shards["replay-1"] = inserted + max(change, 0), size + max(change, 0)
    if change < 0:  # confirmed, and never inserted
        world.books.add("actor-0", {"count/samples/made": -change, "count/samples/confirmed": -change}, world.now)
    found = world.settle()
    assert found.unexplained == change
    assert said in open_sums({"samples": vars(found)})


def test_samples_that_a_writer_forgets_are_told():
    world = quiet_world()
    world.books.add("actor-0", {"count/samples/made": 3}, world.now)
    assert world.ledger.unaccounted == 3
    assert "+3 made" in open_sums({"samples": vars(world.ledger)})


def test_a_resumed_run_counts_what_its_older_shards_lack_and_what_it_has_not_heard_of():
    world = quiet_world()
    world.save()
    for change in (-12, 9):
        world.saved["replay-0"] = (40 + change, CAPACITY)
        world.begin()
        found = world.ledger
        assert (found.confirmed, found.lost_with_shards, found.restored) == (40, max(-change, 0), max(change, 0))
        assert (found.unheard, found.unexplained) == (0, 0)


def test_a_checkpoint_without_a_ledger_is_restored_samples():
    world = World()
    world.saved = {"replay-0": (100, 30), "replay-1": (50, 30)}
    world.begin()
    assert (world.ledger.restored, world.ledger.held, world.ledger.evicted) == (150, 60, 90)


def test_reasons_of_refusals_are_counted_apart():
    world = World()
    world.refuse("actor-0", None, 3)
    world.writers["actor-0"].move(made=2, **{"refused/shape": 2})
    world.report("actor-0")
    assert (world.ledger.refused, world.ledger.refused_for) == (5, {"number": 3, "shape": 2})
