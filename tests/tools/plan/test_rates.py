"""Where rates come from: reports of the compiler, runs, and stored figures, in numbers computed by hand."""

import json

import pytest

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.tools.compile.waiting import known_rates
from podzero.tools.plan.rates import Rates, find_rates

SLICE = ("cluster.slice=v5e-4", "actors.inference=device", "learner.batch_size=512")
REPORT = {
    "config": "connect_four", "topology": "v5e:2x2", "slices": 1, "moves_per_s": 10_000.0,
    "programs": [
        {
            "name": "learner", "batch": 512, "trip_count": 4, "estimated_seconds": 0.06, "seconds": {"links": 0.02},
            "bytes_per_chip": 1e9, "hbm_per_chip": 16e9,
        },
        {"name": "device", "batch": 128, "trip_count": 16, "plies": 21.0, "bytes_per_chip": 4e9, "hbm_per_chip": 16e9},
    ],
}  # fmt: skip
STATUS = {
    "name": "connect_four", "phase": "ended", "elapsed_s": 100.0, "step": 1_000, "games": 500, "moves": 20_000,
    "samples": 20_000, "shares": {"actor": {"search": 0.9, "write": 0.1}},
    "paid_s": {"training": 50.0, "start": 20.0, "compile": 10.0},
}  # fmt: skip
RUN = ("actors.cpus=1", "learner.batch_size=100")


@pytest.fixture
def report(tmp_path):
    def write(**changes):
        (tmp_path / "report.json").write_text(json.dumps(REPORT | changes))
        return str(tmp_path / "report.json")

    return write


@pytest.fixture
def run(tmp_path):
    def write(*overrides, cpus=2.0, accelerators=None, **changes):
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "experiment.yaml").write_text(load("connect_four", [*RUN, *overrides]).to_yaml())
        (folder / "status.json").write_text(json.dumps(STATUS | changes))
        node = {"host": "a", "cpus": cpus, "memory_gib": 8.0, "accelerators": accelerators or {}}
        (folder / "hardware.json").write_text(json.dumps({"nodes": [node]}))
        return str(folder)

    return write


def test_a_report_tells_the_time_of_a_step_and_of_a_chips_move(report):
    """4 steps take 0.06 s of computing and 0.02 s of links; the largest program needs a quarter of the memory."""
    found = find_rates(load("connect_four", SLICE), [report()])
    assert found == Rates(step_s=0.02, moves_per_s=10_000.0, plies=21.0, memory=0.25)


def test_an_actor_with_chips_of_its_own_plays_on_all_of_them(report):
    assert find_rates(load("connect_four", [*SLICE, "actors.resources={TPU: 4}"]), [report()]).moves_per_s == 40_000.0


@pytest.mark.parametrize(
    "changes",
    [
        {"config": "othello"},
        {"topology": "v5e:4x4"},
        {"slices": 2},
        {"programs": [REPORT["programs"][0] | {"batch": 64}]},
    ],
)
def test_a_report_of_something_else_is_refused(report, changes):
    with pytest.raises(ConfigError, match="--rates"):
        find_rates(load("connect_four", SLICE), [report(**changes)])


def test_a_file_that_is_no_report_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="podzero compile"):
        find_rates(load("connect_four", SLICE), [str(tmp_path / "absent.json")])


def test_stored_figures_need_no_files_and_files_come_first(report):
    experiment = load("slices/go_9x9_v5e_16")
    known = known_rates(experiment)
    found = find_rates(experiment, [])
    assert found.step_s == experiment.learner.batch_size / known.samples_per_s
    assert found.moves_per_s == known.chip_moves_per_s
    programs = [REPORT["programs"][0] | {"batch": experiment.learner.batch_size}]
    compiled = report(config=experiment.name, topology="v5e:4x4", programs=programs)
    assert find_rates(experiment, [compiled]) == Rates(0.02, 10_000.0, memory=1 / 16)


def test_a_run_tells_what_learner_and_actors_do_without_each_other(run):
    """1,000 steps of 100 samples in 100 s, four for each move, by an actor that plays 90% of the time: 277.8 moves/s.

    Half of the time a learner takes 2 of the 3 parts of 2 cores that both want: it has 5/6 of its core in the mean. A
    step takes 50 ms on 2 cores that 2.9 threads want.
    """
    found = find_rates(load("connect_four", RUN), [run()])
    assert found.moves_per_s == pytest.approx(250 / 0.9 / (5 / 6))
    assert found.step_s == pytest.approx(0.05 * 2 / 2.9)
    assert (found.plies, found.start_s, found.cores) == (40.0, 30.0, 2.0)


def test_beside_accelerators_nobody_waits_for_cores(run):
    found = find_rates(load("connect_four", RUN), [run(accelerators={"GPU": 1.0})])
    assert found.moves_per_s == pytest.approx(250 / 0.9)
    assert (found.step_s, found.cores) == (0.05, None)


def test_a_learner_that_plays_tells_both_by_what_its_chips_do(run):
    """The chips play half of the time and make 1,000 moves/s, and train a quarter of it, 5 steps/s."""
    shares = {"device": {"play": 0.5, "train": 0.25}}
    folder = run("actors.inference=device", moves_per_s=1_000.0, steps_per_s=5.0, chips=2, shares=shares)
    found = find_rates(load("connect_four", [*RUN, "actors.inference=device"]), [folder])
    assert (found.step_s, found.moves_per_s) == (0.05, 1_000.0)


def test_of_another_machine_only_the_actors_rate_holds(run, report):
    """The step's time is that of the slice, from the compiler."""
    experiment = load("connect_four", [*RUN, "cluster.slice=v5e-4"])
    compiled = report(programs=[REPORT["programs"][0] | {"batch": 100}])
    found = find_rates(experiment, [run(), compiled])
    assert found.step_s == 0.02
    assert found.moves_per_s == pytest.approx(250 / 0.9 / (5 / 6))


@pytest.mark.parametrize("overrides", [["search.simulations=8"], ["actors.games=64"], ["actors.cpus=2"]])
def test_a_run_of_other_settings_is_refused_by_their_names(run, overrides):
    with pytest.raises(ConfigError, match=overrides[0].partition(".")[0]):
        find_rates(load("connect_four", RUN), [run(*overrides)])


@pytest.mark.parametrize("changes", [{"elapsed_s": 30.0}, {"step": 0}, {"paid_s": {}}])
def test_a_run_that_has_hardly_trained_is_refused(run, changes):
    with pytest.raises(ConfigError, match="train longer"):
        find_rates(load("connect_four", RUN), [run(**changes)])


def test_a_run_whose_chips_are_not_at_work_is_refused(run):
    with pytest.raises(ConfigError, match="while the run trains"):
        find_rates(load("connect_four", [*RUN, "actors.inference=device"]), [run("actors.inference=device")])


@pytest.mark.parametrize(
    ("overrides", "programs", "expected"),
    [
        ((), None, "podzero train connect_four"),
        (SLICE, None, "podzero compile connect_four --topology v5e-4 --json"),
        (SLICE, REPORT["programs"][1:], "learner step .*podzero compile"),
        ((*SLICE[:1], *SLICE[2:]), REPORT["programs"], "moves/s .*podzero train"),
        ((*SLICE, "actors.resources={GPU: 1}"), REPORT["programs"], "moves/s .*podzero train"),
    ],
)
def test_what_is_unknown_is_said_with_the_command_that_makes_it(report, overrides, programs, expected):
    files = [] if programs is None else [report(programs=programs)]
    with pytest.raises(ConfigError, match=expected):
        find_rates(load("connect_four", overrides), files)
