"""A run starts from the newest checkpoint that can be used."""

import pytest

from podzero.driver.checkpoints import checkpoints
from podzero.driver.start import start_workers
from podzero.replay import ReplayMismatch, ReplayRestoreError
from podzero.workdir import Workdir, step_folder

from .test_checkpoints import write


class Supervisor:
    """Refuses the newest of the checkpoints with an error."""

    def __init__(self, newest, error):
        self.newest, self.error = newest, error

    def start(self, checkpoint):
        if checkpoint is not None and checkpoint.step == self.newest:
            raise self.error


@pytest.fixture
def workdir(tmp_path):
    for step in (10, 20):
        write(Workdir(tmp_path), step)
    return Workdir(tmp_path)


def test_the_checkpoint_before_a_damaged_one_is_used(workdir):
    found = start_workers(Supervisor(20, ReplayRestoreError("cut short")), workdir)
    assert found.step == 10
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [10]


@pytest.mark.parametrize(
    ("error", "kept"), [(None, ["000000008", "000000020"]), (ReplayRestoreError("x"), ["000000008"])]
)
def test_snapshots_of_lost_steps_are_renamed(workdir, error, kept):
    for step in (8, 20, 24):
        step_folder(workdir.snapshots, step).mkdir(parents=True)
    start_workers(Supervisor(20 if error else None, error), workdir)
    assert sorted(path.name for path in workdir.snapshots.iterdir() if path.name.isdigit()) == kept
    assert (workdir.snapshots / "lost-000000024").is_dir()


def test_a_checkpoint_with_other_tables_is_no_damage_and_stays(workdir):
    with pytest.raises(ReplayMismatch, match="other tables"):
        start_workers(Supervisor(20, ReplayMismatch("other tables")), workdir)
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [20, 10]
