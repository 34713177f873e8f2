"""Checkpoints and snapshots: when they are due, what they are made of, and how failures show."""

import logging
from concurrent.futures import Future

import pytest
from fake_cluster import FakeRemoteActor, learner_group, save_shard, saves_learner

from podzero.files.directory_lock import TakenOver
from podzero.files.workdir import Workdir, step_folder, step_folders
from podzero.runtime import saving
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.saving import FIRST_SNAPSHOT_S, RETRY_S, Saver, SaveState

EVERY = ("checkpoint.every_minutes=10", "evaluation.every_minutes=5")


class Later:
    """An executor that runs a write when the test says so."""

    def __init__(self):
        self.submitted = []

    def submit(self, write, *args):
        self.submitted.append((Future(), write, args))
        return self.submitted[-1][0]

    def run(self):
        """Runs the write that was submitted last."""
        future, write, args = self.submitted[-1]
        try:
            future.set_result(write(*args))
        except Exception as error:
            future.set_exception(error)

    def shutdown(self, wait, cancel_futures):
        pass


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, as a list of one."""
    now = [1000.0]
    monkeypatch.setattr("podzero.runtime.saving.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def later():
    return Later()


@pytest.fixture
def saver(tiny, tmp_path, clock, later):
    made = Saver(tiny(*EVERY, "checkpoint.learner_minutes=10"), Workdir(tmp_path), later)
    made.ladder = {"rounds": 6}
    return made


def save_state(**answers):
    learner = FakeRemoteActor("learner", **{"checkpoint": saves_learner(40), "snapshot": 40} | answers)
    shard = FakeRemoteActor("replay-0", checkpoint=save_shard)
    evaluator = FakeRemoteActor("evaluator", ladder={"rounds": 7})
    return SaveState(learner_group(learner), (shard,), evaluator, {"games": 3.0})


def test_nothing_is_due_at_the_start(saver):
    assert not saver.due


def test_the_first_snapshot_is_due_soon_and_again_until_parameters_are_trained(saver, later, clock):
    clock[0] += FIRST_SNAPSHOT_S
    assert saver.due
    saver.start(save_state(snapshot=-1))
    assert not saver.due
    later.run()
    assert saver.finished() == -1
    clock[0] += FIRST_SNAPSHOT_S
    assert saver.due
    saver.start(save_state())
    later.run()
    assert saver.finished() == 40
    clock[0] += FIRST_SNAPSHOT_S
    assert not saver.due


def test_one_write_runs_at_a_time(saver, later, clock):
    clock[0] += 3600
    saver.start(save_state())
    assert not saver.due
    assert saver.finished() is None
    later.run()
    assert saver.finished() is not None
    assert saver.finished() is None
    assert saver.due, "the snapshot, which was due as well"


def test_a_checkpoint_holds_the_counters_and_the_newest_ladder(saver, later, clock, tmp_path):
    clock[0] += 600
    saver.start(save_state())
    later.run()
    assert (saver.finished(), saver.ladder) == (40, {"rounds": 7})
    (checkpoint,) = checkpoints(Workdir(tmp_path))
    assert (checkpoint.step, checkpoint.counters, checkpoint.ladder) == (40, {"games": 3.0}, {"rounds": 7})
    assert not checkpoint.whole
    later.run()
    (checkpoint,) = checkpoints(Workdir(tmp_path))
    assert (checkpoint.whole, len(checkpoint.shards)) == (True, 1)


@pytest.mark.parametrize("evaluator", [None, FakeRemoteActor("evaluator", ladder=AttributeError("it was not built"))])
def test_without_an_answer_of_the_evaluator_the_ladder_stays(saver, later, clock, evaluator):
    clock[0] += 600
    saver.start(save_state()._replace(evaluator=evaluator))
    later.run()
    assert (saver.finished(), saver.ladder) == (40, {"rounds": 6})


def test_a_failed_write_is_a_warning_and_the_next_one_stays_due(saver, later, clock, caplog):
    caplog.set_level(logging.WARNING, logger="podzero")
    clock[0] += 600
    saver.start(save_state(checkpoint=OSError(28, "No space left on device")))
    later.run()
    assert saver.finished() is None
    (record,) = caplog.records
    assert "No space left" in str(record.exc_info[1])
    clock[0] += 600
    assert saver.due


def test_the_age_of_the_newest_checkpoint_and_the_failed_saves_since_are_told_ever_more_loudly(
    saver, later, clock, caplog
):
    failing, whole = save_state(checkpoint=OSError(28, "No space left on device")), save_state()
    for state, wait_s, told in [
        (failing, 600, {"checkpoint/age_s": 600, "checkpoint/failed_saves": 1}),
        (failing, RETRY_S, {"checkpoint/age_s": 660, "checkpoint/failed_saves": 2}),
        (whole, 2 * RETRY_S, {"checkpoint/age_s": 0, "checkpoint/failed_saves": 0, "checkpoint/step": 40}),
        (failing, 600, {"checkpoint/age_s": 600, "checkpoint/failed_saves": 1, "checkpoint/step": 40}),
    ]:
        clock[0] += wait_s
        saver.start(state)
        later.run()
        saver.finished()
        if state is whole:  # replay's contents
            later.run()
            saver.finished()
        assert saver.metrics() == told | {"checkpoint/saving_s": 0}
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.levelname for record in told] == ["WARNING", "ERROR", "WARNING"]
    assert "the last 11 min 00 s would be lost" in told[1].getMessage()


def test_a_snapshot_that_fails_after_a_complete_checkpoint_is_no_failed_save(saver, later, clock):
    clock[0] += 600
    saver.start(save_state(snapshot=OSError(28, "No space left on device")))
    later.run()
    saver.finished()
    assert saver.metrics()["checkpoint/failed_saves"] == 0
    assert saver.metrics()["checkpoint/step"] == 40


def test_a_request_makes_a_checkpoint_due_unless_one_has_just_begun(saver, later, clock):
    """Whatever the clock of the machine that asks says."""
    saver.request_checkpoint()
    assert saver.due
    saver.start(save_state())
    clock[0] += 1
    saver.request_checkpoint()  # of another process of the same node
    later.run()
    saver.finished()
    assert not saver.due
    clock[0] += saving.SAME_NOTICE_S
    saver.request_checkpoint()  # while replay is still being written
    saver.start(save_state())
    assert [write.__name__ for _, write, _ in later.submitted] == ["_write_learner", "_write_replay", "_write_learner"]
    later.run()
    saver.finished()
    later.submitted.pop()
    later.run()
    saver.finished()
    assert saver.due, "replay, once the write before has ended"


def test_old_snapshots_are_deleted(tiny, tmp_path, clock, later, monkeypatch):
    monkeypatch.setattr(saving, "NEWEST_SNAPSHOTS", 3)
    saver = Saver(tiny(), Workdir(tmp_path), later)
    for step in range(10, 60, 10):
        step_folder(Workdir(tmp_path).snapshots, step).mkdir(parents=True)
    clock[0] += FIRST_SNAPSHOT_S
    saver.start(save_state())
    later.run()
    saver.finished()
    assert step_folders(Workdir(tmp_path).snapshots) == [30, 40, 50]


def test_the_time_for_which_a_checkpoint_has_been_written_is_known(saver, clock, later):
    assert saver.metrics()["checkpoint/saving_s"] == 0.0
    clock[0] += FIRST_SNAPSHOT_S
    saver.start(save_state())
    clock[0] += 50.0
    assert saver.metrics()["checkpoint/saving_s"] == 0.0, "a snapshot is no checkpoint"
    later.run()
    saver.finished()
    clock[0] += 600.0
    saver.start(save_state())
    clock[0] += 50.0
    assert saver.metrics()["checkpoint/saving_s"] == 50.0
    for _ in ("learner", "replay"):
        later.run()
        saver.finished()
    assert saver.metrics()["checkpoint/saving_s"] == 0.0


def test_the_learner_is_saved_more_often_than_replay_and_while_that_is_written(tiny, tmp_path, clock, later):
    saver, steps = Saver(tiny(*EVERY, "checkpoint.learner_minutes=1"), Workdir(tmp_path), later), iter(range(10, 200))

    def save(folder, timeout_s):
        return saves_learner(next(steps))(folder)

    def minute():
        clock[0] += 60
        while saver.due:
            saver.start(save_state(checkpoint=save))
            if later.submitted[-1][1].__name__ != "_write_replay":
                later.run()
            saver.finished()

    for _ in range(10):
        minute()
    (replay,) = [write for write in later.submitted if write[1].__name__ == "_write_replay"]
    assert not replay[0].done()
    for _ in range(3):
        minute()
    assert [found.whole for found in checkpoints(Workdir(tmp_path))] == [False] * 3, (
        "with that to which replay is added"
    )
    later.submitted.append(replay)
    later.run()
    saver.finished()
    newest, before, whole = checkpoints(Workdir(tmp_path))
    assert whole.whole
    assert newest.step > before.step > whole.step
    assert newest.shard(0) == whole.shard(0)
    assert saver.metrics()["checkpoint/step"] == newest.step


def test_the_learner_is_saved_as_often_as_replay_at_least(tiny, tmp_path, clock, later):
    saver = Saver(tiny("checkpoint.every_minutes=0.25"), Workdir(tmp_path), later)
    clock[0] += 15
    assert saver.due
    saver.start(save_state())
    assert [write.__name__ for _, write, _ in later.submitted] == ["_write_learner"]


def test_replay_that_cannot_be_saved_is_said_though_the_learner_is(saver, later, clock, caplog):
    clock[0] += 600
    saver.start(save_state()._replace(shards=(FakeRemoteActor("replay-0", checkpoint=OSError(28, "No space left")),)))
    later.run()
    saver.finished()
    later.run()
    saver.finished()
    assert (saver.metrics()["checkpoint/age_s"], saver.metrics()["checkpoint/failed_saves"]) == (0, 1)
    assert any("of replay could be written" in message for message in caplog.messages)
    clock[0] += RETRY_S
    saver.start(save_state())
    later.run()
    saver.finished()
    later.run()
    saver.finished()
    assert saver.metrics()["checkpoint/failed_saves"] == 0


def test_without_a_learner_the_last_save_adds_replay_to_the_newest_checkpoint(saver, tmp_path):
    state = save_state()
    saver.write_checkpoint(state)
    before = checkpoints(Workdir(tmp_path))[0].shard(0)
    saver.write_checkpoint(state._replace(learning=False))
    (checkpoint,) = checkpoints(Workdir(tmp_path))
    assert checkpoint.shard(0)[0].folder != before[0].folder


def test_while_the_learner_is_away_replay_alone_is_saved_into_its_newest_checkpoint(saver, later, clock, tmp_path):
    away = save_state()._replace(learning=False, counters={"games": 9.0, "training_s": 70.0})
    clock[0] += 600
    saver.start(away)
    assert later.submitted == [], "there is no checkpoint to which it belongs"
    saver.write_checkpoint(save_state()._replace(counters={"games": 3.0, "training_s": 50.0}))
    before = checkpoints(Workdir(tmp_path))[0].shard(0)
    assert saver.due
    saver.start(away)
    (write,) = later.submitted
    assert write[1].__name__ == "_write_replay"
    saver.start(away)
    assert later.submitted == [write], "one at a time"
    later.run()
    assert saver.finished() is None
    (checkpoint,) = checkpoints(Workdir(tmp_path))
    assert checkpoint.shard(0)[0].folder != before[0].folder
    assert checkpoint.counters == {"games": 9.0, "training_s": 50.0}, "the learner's state is no newer"
    saver.start(away)
    assert later.submitted == [write], "it is not due again"


@pytest.mark.parametrize("part", ["learner", "replay"])
def test_a_write_that_another_process_overtakes_completes_nothing(tiny, tmp_path, later, part):
    """It is asked once all is written, before the checkpoint gets its name, and before it names replay's contents."""
    asked = []

    def confirm():
        asked.append(1)
        if len(asked) == (3 if part == "learner" else 4):
            raise TakenOver("process 7 on elsewhere works there")

    workdir = Workdir(tmp_path)
    saver = Saver(tiny(*EVERY), workdir, later)
    saver.confirm = confirm
    saver.write_checkpoint(save_state())
    (before,) = checkpoints(workdir)
    with pytest.raises(TakenOver):
        saver.write_checkpoint(save_state(checkpoint=saves_learner(50)))
    assert [found.step for found in checkpoints(workdir)] == ([40] if part == "learner" else [50, 40])
    assert checkpoints(workdir)[0].shards == before.shards


def test_a_learner_that_has_made_no_step_is_not_saved_again_but_by_a_checkpoint_with_replay(saver, later, clock):
    saver.write_checkpoint(save_state())
    clock[0] += 600 - 1
    saver._learner_due = clock[0]
    saver.start(save_state()._replace(step=40))
    assert [write.__name__ for _, write, _ in later.submitted] == ["_write_snapshot"]
    later.run()
    saver.finished()
    assert (saver.due, saver.metrics()["checkpoint/age_s"]) == (False, 0)
    clock[0] += 1
    saver.start(save_state()._replace(step=40))
    assert later.submitted[-1][1].__name__ == "_write_learner"
