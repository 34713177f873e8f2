"""A run's own copy of its teacher: a folder like that of a run, with one snapshot."""

from __future__ import annotations

import logging
import shutil

from podzero.config import Experiment
from podzero.files.players import full_name, trained_player
from podzero.files.workdir import Workdir, WorkdirError, step_folder, sync_tree

log = logging.getLogger(__name__)


def keep_teacher(experiment: Experiment, workdir: Workdir) -> None:
    """Copies the teacher into the working directory of a run that starts; a resumed run has its copy."""
    if experiment.teacher is None or workdir.is_run:
        return
    teacher = trained_player("teacher", experiment.teacher).at_newest()
    assert teacher.step is not None
    copy = Workdir(workdir.teacher)
    try:
        # One that a failed start has left may be of another agent.
        shutil.rmtree(copy.root, ignore_errors=True)
        shutil.copytree(step_folder(teacher.workdir.snapshots, teacher.step), step_folder(copy.snapshots, teacher.step))
        if teacher.workdir.code.is_dir():
            shutil.copytree(teacher.workdir.code, copy.code)
        shutil.copyfile(teacher.workdir.experiment_file, copy.experiment_file)
        sync_tree(copy.root)
    except OSError as error:
        raise WorkdirError(f"cannot copy the teacher {teacher.workdir.root} to {copy.root}: {error}") from None
    log.info("the teacher is %s; the run keeps a copy", full_name(experiment.teacher, teacher, teacher.step))


def with_own_teacher(experiment: Experiment, workdir: Workdir) -> Experiment:
    """The experiment of a run with its own copy as teacher, if it has one.

    Raises:
      WorkdirError: the copy is missing.
    """
    if experiment.teacher is None:
        return experiment
    if not Workdir(workdir.teacher).is_run:
        raise WorkdirError(
            f"{workdir.teacher} is missing: it held the run's copy of its teacher, {experiment.teacher}. Restore it "
            "from a copy of the run, or start a new run"
        )
    return experiment.model_copy(update={"teacher": str(workdir.teacher)})


def as_resumed(experiment: Experiment, workdir: Workdir) -> Experiment:
    """The experiment with the working directory's copies of code and teacher; as it is if the run is new.

    Raises:
      WorkdirError: the copy of the teacher is missing.
    """
    experiment = workdir.with_kept_code(experiment)
    if not workdir.is_run:
        return experiment
    # The parameters are those of its checkpoint.
    return with_own_teacher(experiment, workdir).model_copy(update={"init_from": None})
