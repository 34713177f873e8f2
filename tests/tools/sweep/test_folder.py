"""The folder of a sweep: what may be run in it, and what its runs have done."""

import pytest

from podzero.config import load
from podzero.files.workdir import Workdir, WorkdirError, sweep_runs
from podzero.runtime.monitoring.status import RunStatus, write_status
from podzero.tools.sweep.folder import SweepFolder, plan, read_grid

GIVEN = ("seed=0..1", "actors.games=8", "stop.minutes=5")


@pytest.fixture
def folder(tmp_path):
    return SweepFolder(tmp_path / "sweep")


def opened(folder, *arguments, config="tic_tac_toe"):
    """Opens the folder for a sweep; returns its runs."""
    grid = read_grid(arguments)
    runs = plan(config, grid)
    with Workdir(folder.root).lock():
        folder.open(config, grid, runs)
    return runs


def written(folder, run, phase, minutes):
    """Writes what a run has after so many minutes."""
    folder.workdir(run).open(run.experiment)
    write_status(folder.workdir(run), RunStatus("tic_tac_toe", phase, 60.0 * minutes, step=3))


@pytest.mark.parametrize("arguments", [GIVEN, ("seed=0..3", "actors.games=8", "stop.minutes=9")])
def test_a_sweep_goes_on_with_more_values_and_other_limits(folder, arguments):
    opened(folder, *GIVEN)
    opened(folder, *arguments)


@pytest.mark.parametrize(
    ("arguments", "config", "message"),
    [
        (GIVEN, "hex", "experiment is tic_tac_toe"),
        (("actors.games=8,16",), "tic_tac_toe", "swept settings are seed"),
        (("seed=0..1", "actors.games=16"), "tic_tac_toe", "actors.games=8"),
    ],
)
def test_the_folder_of_another_sweep_is_refused(folder, arguments, config, message):
    opened(folder, *GIVEN)
    with pytest.raises(WorkdirError, match=message):
        opened(folder, *arguments, config=config)


def test_a_run_with_another_experiment_is_refused_before_anything_starts(folder):
    run = opened(folder, *GIVEN)[0]
    folder.workdir(run).open(load("hex"))
    with pytest.raises(WorkdirError, match="another experiment"):
        opened(folder, *GIVEN)


def test_the_directory_of_a_run_is_no_folder_for_a_sweep(folder):
    Workdir(folder.root).open(load("tic_tac_toe"))
    with pytest.raises(WorkdirError, match="holds a run"):
        opened(folder, *GIVEN)


def test_a_run_has_finished_when_it_has_ended_at_a_limit(folder):
    first, second = opened(folder, *GIVEN)
    assert folder.progress(first).state == "unfinished"
    written(folder, first, "ended", 5.1)
    written(folder, second, "ended", 4.0)
    assert [folder.progress(run).state for run in (first, second)] == ["finished", "unfinished"]
    written(folder, first, "judging", 5.1)
    assert [folder.progress(run).state for run in (first, second)] == ["finished", "unfinished"]
    (longer, _) = opened(folder, "seed=0..1", "actors.games=8", "stop.minutes=6")
    assert folder.progress(longer).state == "unfinished"
    folder.mark_stopped(second)
    assert folder.progress(second).state == "stopped early"
    assert sweep_runs(folder.root) == [folder.workdir(run).root for run in (first, second)]
