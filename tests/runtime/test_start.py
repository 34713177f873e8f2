"""A run starts from the newest checkpoint that can be used; the command that a failed run names resumes it."""

import errno
import pickle
import re
import shlex
import shutil
from pathlib import Path

import pytest

from podzero.config import load
from podzero.files.storage import StorageError
from podzero.files.workdir import Workdir, step_folder
from podzero.launch.train import find_start
from podzero.learner import CheckpointDamaged, TrainingDiverged
from podzero.replay.errors import ReplayMismatch
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.monitoring.status import RunStatus, write_status
from podzero.runtime.start import NoUsableCheckpoint, start_workers, with_advice
from podzero.runtime.workers import RunFailed

from .test_checkpoints import write


class Supervisor:
    """Refuses some of the checkpoints with an error; calls `meanwhile` when workers start."""

    def __init__(self, refused=(), error=None, meanwhile=lambda: None):
        self.refused, self.error, self.meanwhile = refused, error, meanwhile
        self.started = []

    def start(self, checkpoint):
        self.meanwhile()
        if checkpoint is not None and checkpoint.step in self.refused:
            raise self.error
        self.started.append(checkpoint and checkpoint.step)

    def kill(self):
        self.started.append("killed")


@pytest.fixture
def workdir(tmp_path):
    for step in (10, 20):
        write(Workdir(tmp_path), step)
    return Workdir(tmp_path)


def test_the_checkpoint_before_a_damaged_one_is_used(workdir):
    found = start_workers(Supervisor([20], CheckpointDamaged("cut short")), workdir)
    assert found.step == 10
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [10]


@pytest.mark.parametrize(
    ("error", "kept"), [(None, ["000000008", "000000020"]), (CheckpointDamaged("x"), ["000000008"])]
)
def test_snapshots_of_lost_steps_are_renamed(workdir, error, kept):
    for step in (8, 20, 24):
        step_folder(workdir.snapshots, step).mkdir(parents=True)
    start_workers(Supervisor([20] if error else [], error), workdir)
    assert sorted(path.name for path in workdir.snapshots.iterdir() if path.name.isdigit()) == kept
    assert (workdir.snapshots / "lost-000000024").is_dir()


def test_a_checkpoint_with_other_tables_is_no_damage_and_stays(workdir):
    with pytest.raises(ReplayMismatch, match="other tables"):
        start_workers(Supervisor([20], ReplayMismatch("other tables")), workdir)
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [20, 10]


def test_a_chosen_checkpoint_is_used_and_what_is_later_is_kept_but_not_used(workdir):
    for step in (10, 20):
        step_folder(workdir.snapshots, step).mkdir(parents=True)
    supervisor = Supervisor([], None)
    assert start_workers(supervisor, workdir, 10).step == 10
    assert supervisor.started == [10]
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [10]
    assert (workdir.checkpoints / "lost-000000020" / "run.json").is_file()
    assert (workdir.snapshots / "lost-000000020").is_dir()
    write(workdir, 20)
    assert start_workers(supervisor, workdir, 10).step == 10
    assert (workdir.checkpoints / "lost-000000020-2").is_dir()


def test_a_later_checkpoint_that_was_being_replaced_is_not_used_either(workdir):
    newest = checkpoints(workdir)[0].folder
    newest.rename(newest.with_name(f"{newest.name}.replaced"))
    assert start_workers(Supervisor([], None), workdir, 10).step == 10
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [10]


@pytest.mark.parametrize(("step", "reason"), [(15, "does not exist"), (20, "is damaged: cut short")])
def test_a_chosen_checkpoint_that_cannot_be_used_changes_nothing(workdir, step, reason):
    before = names(workdir)
    with pytest.raises(NoUsableCheckpoint, match=f"step {step} .* {reason}") as raised:
        start_workers(Supervisor([20], CheckpointDamaged("cut short")), workdir, step)
    assert re.search(rf"podzero train {workdir.root}@(10|20)$", str(raised.value))
    assert names(workdir) == before


def names(workdir):
    return sorted(path.relative_to(workdir.root).as_posix() for path in workdir.root.glob("*/*"))


def test_where_all_checkpoints_are_damaged_no_run_begins_anew(workdir):
    """The error names each folder and what to do, and everything keeps its name."""
    step_folder(workdir.snapshots, 20).mkdir(parents=True)
    before, supervisor = names(workdir), Supervisor([10, 20], CheckpointDamaged("cut short"))
    for _ in range(2):  # the next attempt finds the same
        with pytest.raises(NoUsableCheckpoint, match="cut short") as raised:
            start_workers(supervisor, workdir)
        for checkpoint in checkpoints(workdir):
            assert str(checkpoint.folder) in str(raised.value)
        assert f"podzero train {workdir.experiment_file} --workdir {workdir.root}-2" in str(raised.value)
    assert supervisor.started == []
    assert names(workdir) == before


def test_a_checkpoint_that_cannot_be_read_now_is_no_damage_and_stays(workdir):
    before = names(workdir)
    with pytest.raises(StorageError, match="not mounted"):
        start_workers(Supervisor([20], StorageError("not mounted")), workdir)
    assert names(workdir) == before


def test_a_checkpoint_without_its_counters_is_damaged(workdir):
    (checkpoints(workdir)[0].folder / "run.json").write_text("{")
    supervisor = Supervisor([], None)
    assert start_workers(supervisor, workdir).step == 10
    assert supervisor.started == [10]
    assert (workdir.checkpoints / "damaged-000000020").is_dir()


@pytest.fixture
def hidden(workdir):
    """Hides the folder of the checkpoints, as on storage that has gone for a moment; returns what brings it back."""
    write_status(workdir, RunStatus("test", "training", 60.0, checkpoint_step=20))
    aside = workdir.root / "aside"
    workdir.checkpoints.rename(aside)
    return lambda: aside.rename(workdir.checkpoints)


def test_where_a_checkpoint_was_and_none_is_seen_nothing_starts(workdir, hidden):
    supervisor = Supervisor()
    for emptied in (False, True):  # a folder on which nothing is mounted is empty
        with pytest.raises(StorageError, match=r"one of step 20.*mounted") as raised:
            start_workers(supervisor, workdir)
        assert f"podzero train {workdir.experiment_file} --workdir {workdir.root}-2" in str(raised.value)
        workdir.checkpoints.rmdir() if emptied else workdir.checkpoints.mkdir()
    assert supervisor.started == []
    hidden()
    assert start_workers(supervisor, workdir).step == 20
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [20, 10]


def test_what_this_process_has_seen_counts_as_well(workdir, hidden):
    workdir.status_file.unlink()
    with pytest.raises(StorageError, match="one of step 20"):
        start_workers(Supervisor(), workdir, seen=20)


def test_a_later_checkpoint_that_appears_while_workers_start_keeps_its_name(workdir):
    later = checkpoints(workdir)[0].folder
    later.rename(workdir.root / "aside")
    step_folder(workdir.snapshots, 20).mkdir(parents=True)
    supervisor = Supervisor(meanwhile=lambda: (workdir.root / "aside").rename(later))
    with pytest.raises(StorageError, match="appeared while"):
        start_workers(supervisor, workdir)
    assert supervisor.started == [10, "killed"]
    assert (later / "run.json").is_file()
    assert step_folder(workdir.snapshots, 20).is_dir()
    supervisor.meanwhile = lambda: None
    assert start_workers(supervisor, workdir).step == 20


def test_a_folder_that_cannot_be_listed_is_no_empty_one(workdir, monkeypatch):
    def fail(path):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "iterdir", fail)
    with pytest.raises(StorageError, match="Stale file handle"):
        checkpoints(workdir)


def test_workers_do_not_stay_when_a_folder_cannot_be_renamed(workdir, monkeypatch):
    def fail(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr("podzero.runtime.start.set_aside", fail)
    supervisor = Supervisor([20], CheckpointDamaged("cut short"))
    with pytest.raises(PermissionError):
        start_workers(supervisor, workdir)
    assert supervisor.started == [10, "killed"]


def test_a_new_directory_starts_from_nothing(tmp_path):
    supervisor = Supervisor([], None)
    assert start_workers(supervisor, Workdir(tmp_path / "new")) is None
    assert supervisor.started == [None]


def test_leftovers_of_writes_that_died_are_deleted_at_the_start(workdir):
    for name in (".unfinished-1", ".unfinished-000000008"):
        (workdir.checkpoints / name / "replay").mkdir(parents=True)
    start_workers(Supervisor([], None), workdir)
    assert sorted(path.name for path in workdir.checkpoints.iterdir()) == ["000000010", "000000020"]


def test_the_damaged_checkpoints_that_are_kept_are_few(tmp_path):
    workdir = Workdir(tmp_path)
    for step in (10, 20, 30, 40):
        write(workdir, step, keep=4)
    assert start_workers(Supervisor([20, 30, 40], CheckpointDamaged("cut short")), workdir).step == 10
    assert sorted(path.name for path in workdir.checkpoints.iterdir()) == [
        "000000010",
        "damaged-000000030",
        "damaged-000000040",
    ]


@pytest.fixture
def failed_run(tmp_path):
    workdir = Workdir(tmp_path / "my run")
    workdir.open(load("tic_tac_toe"))
    for step in (10, 2000, 3000):
        write(workdir, step, keep=3)
    return workdir


def failed(cause):
    try:
        raise RunFailed(f"learner failed: {cause}") from cause
    except RunFailed as failure:
        return failure


def followed(failure, workdir):
    """What the command in the message of a failure starts."""
    message = str(with_advice(failure, workdir.experiment(), workdir))
    assert str(failure) in message
    line = next(line for line in message.splitlines() if "podzero train " in line)
    config, *words = shlex.split(line.partition("podzero train ")[2])
    chosen = words[words.index("--workdir") + 1] if "--workdir" in words else None
    overrides = [word for word in words if "=" in word]
    found = find_start(config, overrides, chosen and Workdir(chosen).root)
    Workdir(found.root).open(found.experiment, found.step or 0)
    return found


def test_after_a_divergence_the_run_goes_on_from_before_it_with_a_smaller_learning_rate(failed_run):
    held = failed_run.experiment().learner.optimizer.learning_rate
    found = followed(failed(TrainingDiverged(1000, 2500)), failed_run)
    assert (found.root, found.step) == (failed_run.root, 2000)
    assert 0 < found.experiment.learner.optimizer.learning_rate < held / 2
    (record,) = failed_run.changes()
    assert (record.step, record.change.setting) == (2000, "learner.optimizer.learning_rate")


def test_after_a_divergence_older_than_all_checkpoints_the_first_with_its_weights_is_used(failed_run):
    """The steps after it were skipped, so that weights and optimizer are those of the step before."""
    found = followed(failed(TrainingDiverged(1000, 9)), failed_run)
    assert (found.root, found.step) == (failed_run.root, 10)


def test_after_a_divergence_without_a_checkpoint_a_new_run_begins_with_a_smaller_learning_rate(failed_run):
    held = failed_run.experiment().learner.optimizer.learning_rate
    shutil.rmtree(failed_run.checkpoints)
    found = followed(failed(TrainingDiverged(1000, 9)), failed_run)
    assert (found.root, found.step) == (failed_run.root.with_name("my run-2"), None)
    assert 0 < found.experiment.learner.optimizer.learning_rate < held / 2
    assert checkpoints(Workdir(found.root)) == []


def test_where_the_checkpoints_are_not_seen_the_advice_does_not_throw_them_away(failed_run):
    write_status(failed_run, RunStatus("test", "training", 60.0, checkpoint_step=3000))
    failed_run.checkpoints.rename(failed_run.root / "aside")
    for cause in (TrainingDiverged(1000, 9), ValueError("the reader is gone")):
        message = str(with_advice(failed(cause), failed_run.experiment(), failed_run))
        assert "one of step 3,000" in message


def test_after_another_failure_the_run_goes_on_from_its_newest_checkpoint(failed_run):
    found = followed(failed(ValueError("the reader is gone")), failed_run)
    assert (found.root, found.step) == (failed_run.root, None)
    assert found.experiment == failed_run.experiment()


def test_a_divergence_keeps_its_step_on_the_way_to_another_process():
    error = pickle.loads(pickle.dumps(TrainingDiverged(1000, 2500)))
    assert error.step == 2500
    assert str(error) == "the loss or gradient of the last 1,000 steps, after step 2,500, was not finite"
