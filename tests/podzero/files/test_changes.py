"""What may change when a run is resumed, and the record of it."""

import pytest

from podzero.config import load
from podzero.files.workdir import CHANGEABLE, NEUTRAL, Workdir, differences


def changed(*overrides, exclude=None):
    return [
        change.setting for change in differences(load("tic_tac_toe"), load("tic_tac_toe", overrides), exclude=exclude)
    ]


@pytest.mark.parametrize(
    "override",
    [
        "learner.optimizer.learning_rate=1e-5",
        "learner.optimizer.weight_decay=0",
        "learner.optimizer.max_gradient_norm=1",
    ],
)
def test_the_optimizers_settings_may_change_in_a_run_but_make_another_experiment_otherwise(override):
    setting = [override.partition("=")[0]]
    assert changed(override, exclude=CHANGEABLE) == []
    assert changed(override, exclude=NEUTRAL) == setting


@pytest.mark.parametrize(
    "override", ["learner.optimizer.name=lion", "learner.ema=0.5", "replay.min_size=4000", "seed=1"]
)
def test_what_a_checkpoint_depends_on_may_not_change(override):
    assert changed(override, exclude=CHANGEABLE) == [override.partition("=")[0]]


@pytest.mark.parametrize("override", ["learner.microbatches=2", "stop.minutes=1", "replay.cpus=3"])
def test_neutral_settings_make_no_other_experiment(override):
    assert changed(override) == [override.partition("=")[0]]
    assert changed(override, exclude=NEUTRAL) == []


def test_recorded_changes_are_read_back_without_damaged_lines(tmp_path):
    before, after = load("tic_tac_toe"), load("tic_tac_toe", ["stop.minutes=7", "actors.count=3"])
    run = Workdir(tmp_path)
    run.open(before)
    run.changes_file.write_text('{"t": 1\n')
    run.open(after, step=1200)
    run.changes_file.write_text(run.changes_file.read_text() + "[]\n")
    assert [(record.step, record.change) for record in run.changes()] == [
        (1200, change) for change in differences(before, after)
    ]
    assert run.changes()[0].t > 0
