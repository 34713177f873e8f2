"""`benchmarks/compile_table.py` without the compiler: what is run, what is stored, and how it is shown."""

import csv
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from podzero.benchmarks import compile_results, compile_table
from podzero.benchmarks.compile_results import Job, JobResult, StoredResults
from podzero.benchmarks.compile_table import page, rows
from podzero.config import FOR_SLICES, GameConfig, builtin_configs, load
from podzero.tools.compile.waiting import KnownRates

LEARNER = Job("connect_four", "v5e-16", "learner", ("connect_four", "--topology", "v5e-16", "--program", "learner"))
SELFPLAY = Job("connect_four", "v5e-16", "selfplay", ("connect_four", "--topology", "v5e-16", "--program", "selfplay"))
DEVICE = Job("connect_four", "v5e-1", "device", ("connect_four", "actors.games=4096", "--program", "device"))
SCALING = Job("hex", "v5e-256", "scaling", ("hex", "--scaling", "v5e-4,v5e-256", "--per-chip", "64"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "compile.json"


def answers(outcome="compiled", seconds=1.0, **report):
    """A stand-in for the compiler that keeps what it was asked."""

    def run(job, limit_s):
        run.asked.append(job)
        return JobResult(outcome, seconds, job.digest(), report)

    run.asked = []
    return run


def test_the_jobs_are_all_experiments_on_all_slices_and_each_chip_once():
    jobs = compile_results.general_jobs()
    general = [name for name in builtin_configs() if not name.startswith(FOR_SLICES) and not name.endswith("_gpu")]
    configs = len(general)
    games = sum(isinstance(load(name).env, GameConfig) for name in general)
    count = {program: sum(job.program == program for job in jobs) for program in ("learner", "evaluation", "selfplay")}
    assert count == {"learner": 6 * configs, "evaluation": 5 * configs, "selfplay": 5 * games}
    played = [job for job in jobs if job.program == "device"]
    assert {job.config: job.slice for job in played} == {name: "v5e-1" for name, _ in compile_results.ON_CHIP}
    assert sum("int8.on_tpu=true" in job.arguments for job in played) == len(compile_results.ON_CHIP) == len(played) / 2
    played_by_cpu_settings = {job.slice for job in jobs if job.program == "selfplay"}
    assert played_by_cpu_settings == {"v4-16", "v5e-16", "v5p-16", "v6e-16", "tpu7x-16"}
    assert len({job.key for job in jobs}) == len(jobs)


def test_what_was_never_compiled_comes_first(path):
    known = StoredResults(path)
    known.fill([LEARNER], answers("crashed"), 60)
    assert known.missing([LEARNER, SELFPLAY], 60) == [SELFPLAY, LEARNER]


def test_a_second_call_compiles_only_what_is_missing(path):
    first = answers()
    StoredResults(path).fill([LEARNER], first, 60)
    known = StoredResults(path)
    assert known.missing([LEARNER, SELFPLAY], 60) == [SELFPLAY]
    assert known.get(LEARNER) == JobResult("compiled", 1.0, LEARNER.digest(), compiler=compile_results.compiler())
    assert first.asked == [LEARNER]


@pytest.mark.parametrize(
    ("outcome", "limit_s", "again"),
    [
        ("compiled", 60, False),
        ("too large", 60, False),
        ("refused", 60, False),
        ("crashed", 60, True),
        ("timeout", 60, False),
        ("timeout", 120, True),
    ],
)
def test_what_could_end_otherwise_is_tried_again(path, outcome, limit_s, again):
    StoredResults(path).fill([LEARNER], answers(outcome, seconds=60.0), 60)
    assert (StoredResults(path).missing([LEARNER], limit_s) == [LEARNER]) == again


def test_another_compiler_or_another_text_makes_it_stale(path, monkeypatch, tmp_path):
    StoredResults(path).fill([LEARNER], answers(), 60)
    changed = tmp_path / "connect_four.yaml"
    changed.write_text(builtin_configs()["connect_four"].read_text() + "\nseed: 1\n")
    with monkeypatch.context() as patch:
        patch.setattr(compile_results, "builtin_configs", lambda: {"connect_four": changed})
        assert StoredResults(path).missing([LEARNER], 60) == [LEARNER]
    with monkeypatch.context() as patch:
        patch.setattr(compile_results, "compiler", lambda: "libtpu 9.9.9")
        assert StoredResults(path).missing([LEARNER], 60) == [LEARNER]
    assert StoredResults(path).missing([LEARNER], 60) == []


def test_a_changed_comment_does_not_make_it_stale(path, monkeypatch, tmp_path):
    StoredResults(path).fill([LEARNER], answers(), 60)
    commented = tmp_path / "connect_four.yaml"
    commented.write_text("# Another comment.\n" + builtin_configs()["connect_four"].read_text())
    monkeypatch.setattr(compile_results, "builtin_configs", lambda: {"connect_four": commented})
    assert StoredResults(path).missing([LEARNER], 60) == []


def test_each_result_is_on_disk_before_the_next_job_starts(path):
    def run(job, limit_s):
        if job == SELFPLAY:
            raise KeyboardInterrupt
        return JobResult("compiled", 1.0, job.digest())

    with pytest.raises(KeyboardInterrupt):
        StoredResults(path).fill([LEARNER, SELFPLAY], run, 60)
    assert StoredResults(path).missing([LEARNER, SELFPLAY], 60) == [SELFPLAY]


@pytest.mark.parametrize(
    ("script", "outcome", "report", "message"),
    [
        ("print('{\"a\": 1}')", "compiled", {"a": 1}, ""),
        ("print('{\"a\": 2}'); sys.exit(1)", "too large", {"a": 2}, ""),
        ('print(\'{"error": "no such thing"}\'); sys.exit(2)', "refused", {}, "no such thing"),
        ("raise ValueError('wrong turn')", "crashed", {}, "wrong turn"),
        (
            "print('F1121 12:00:05.200686   22104 fusion.cc:4] Check failed: 5 vs. 1', file=sys.stderr); sys.exit(-6)",
            "crashed",
            {},
            "Check failed: 5 vs. 1",
        ),
        ("import time; time.sleep(60)", "timeout", {}, "not compiled within 0.05 minutes"),
    ],
)
def test_whatever_happens_in_the_process_of_a_job_is_a_result(monkeypatch, script, outcome, report, message):
    monkeypatch.setattr(compile_table, "COMMAND", (sys.executable, "-c", f"import sys; {script}"))
    found = compile_table.compile_apart(LEARNER, limit_s=3.0)
    assert (found.outcome, found.report, found.message) == (outcome, report, message)


PROGRAM = {
    "name": "learner", "batch": 8192, "trip_count": 4, "parameter_bytes": 400_000, "fits": True,
    "bytes_per_chip": 3 * 2**20, "hbm_per_chip": 16 * 2**30, "flops_per_chip": 8e9, "traffic": {"hbm": 4 * 2**20},
    "seconds": {"compute": 1e-4}, "estimated_seconds": 1e-3,
    "collectives": [{"kind": "all-reduce", "group": 16, "times": 8, "bytes": 800_000.0, "sent": 1_500_000.0}],
}  # fmt: skip
STEP = {"computing": 0.9e-3, "links": 0.05e-3, "hops": 0.05e-3}
SCALED = {
    "per_chip": 64,
    "parameter_bytes": 400_000,
    "slices": [
        {"step": STEP},
        {
            "step": STEP | {"hops": 0.15e-3},
            "efficiency": 0.909,
            "collectives": [{"kind": "all-reduce", "times": 2.0, "bytes": 200_000.0}],
        },
    ],
}


def result(*fields, **more):
    """A result of the present compiler."""
    return JobResult(*fields, **{"compiler": compile_results.compiler()} | more)


def row(path, job, result):
    """The row of a job, without empty cells."""
    path.parent.mkdir()
    path.write_text(json.dumps({"results": {job.key: asdict(result)}}))
    (found,) = csv.DictReader(rows([job], StoredResults(path)).splitlines())
    del found["compiler"]
    return {name: value for name, value in found.items() if value}


def test_the_row_of_a_learner_is_of_a_chip_and_a_step(path):
    assert row(path, LEARNER, result("compiled", 9.0, "x", {"programs": [PROGRAM]})) == {
        "experiment": "connect_four", "slice": "v5e-16", "program": "learner", "outcome": "compiled",
        "samples_or_games": "8192", "memory_mib": "3", "memory_of_chip_mib": "16384", "gflop": "2",
        "hbm_traffic_mib": "1", "estimate_ms": "0.25", "share_of_peak": "0.1",
    }  # fmt: skip


def test_the_row_of_a_program_without_an_estimate_says_so(path):
    unknown = PROGRAM | {"estimated_seconds": None, "without_estimate": 3}
    found = row(path, LEARNER, result("compiled", 9.0, "x", {"programs": [unknown]}))
    assert (found["estimate_ms"], found["share_of_peak"], found["without_estimate"]) == ("-", "-", "3")


def test_a_row_lists_what_runs_without_an_estimate(path):
    partly = PROGRAM | {"without_estimate": {"TopK": 104, "copy": 2}}
    found = row(path, LEARNER, result("compiled", 9.0, "x", {"programs": [partly]}))
    assert (found["estimate_ms"], found["without_estimate"]) == ("0.25", "TopK 104; copy 2")


def test_the_row_of_a_learner_has_the_bytes_that_each_host_sends_for_a_step(path):
    report = {"programs": [PROGRAM | {"from_hosts": 4 * 4 * 1000, "to_hosts": 0}], "hosts": 4, "slices": 1}
    assert row(path, LEARNER, result("compiled", 9.0, "x", report))["host_in_bytes"] == "1000"


def test_self_play_on_a_chip_has_a_row_for_the_samples_that_leave_it(path):
    alone = PROGRAM | {"name": "evaluation", "batch": 128, "trip_count": 1}
    taken = PROGRAM | {"name": "take", "batch": 2048, "trip_count": 1, "to_hosts": 2048 * 50, "from_hosts": 0}
    report = {"programs": [alone, alone | {"name": "device"}, taken], "ratio": 0.5, "moves_per_s": 2000.0, "hosts": 1}
    path.parent.mkdir()
    path.write_text(json.dumps({"results": {DEVICE.key: asdict(result("compiled", 9.0, "x", report))}}))
    play, take = csv.DictReader(rows([DEVICE], StoredResults(path)).splitlines())
    assert (play["program"], play["moves_per_s"], play["estimate_ms"]) == ("device", "2000", "0.5")
    assert (take["program"], take["moves_per_s"], take["estimate_ms"]) == ("take", "", "1")
    assert (take["samples_or_games"], take["host_out_bytes"]) == ("2048", "50")


def test_the_row_of_self_play_on_a_chip_has_its_rate_and_its_share_of_the_network(path):
    alone = PROGRAM | {"name": "evaluation", "batch": 128, "trip_count": 1}
    report = {"programs": [alone, alone | {"name": "device", "trip_count": 2}], "ratio": 0.5, "moves_per_s": 2000.0}
    found = row(path, DEVICE, result("compiled", 9.0, "x", report))
    assert found["settings"] == "actors.games=4096"
    assert (found["moves_per_s"], found["share_of_network"], found["estimate_ms"]) == ("2000", "0.5", "0.5")
    assert (found["samples_or_games"], found["gflop"]) == ("128", "4")


def test_the_row_of_scaling_has_the_step_on_the_largest_slice(path):
    found = row(path, SCALING, result("compiled", 9.0, "x", SCALED))
    assert (found["samples_or_games"], found["estimate_ms"], found["scaling_efficiency"]) == ("64", "1.1", "0.909")


def test_the_row_of_what_was_not_compiled_says_why(path):
    found = row(path, LEARNER, JobResult("crashed", 9, "x", message="Check failed: a, b"))
    assert (found["outcome"], found["message"]) == ("crashed", "Check failed: a, b")


def summary(path, found, jobs=None):
    """The page of results by job."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"results": {job.key: asdict(one) for job, one in found.items()}}))
    return page(jobs or list(found), StoredResults(path))


def test_the_page_counts_what_compiled_and_what_did_not(path):
    text = summary(path, {LEARNER: result("crashed", 9, "x")}, [LEARNER, SELFPLAY])
    assert "0 of 2 programs compile and fit." in text
    assert "1 crashed the compiler, 1 not compiled yet." in text
    assert "##" not in text


def test_the_page_names_the_extremes_of_memory_peak_and_scaling(path):
    small = Job("hex", "v5e-16", "learner", ("hex", "--topology", "v5e-16", "--program", "learner"))
    half = PROGRAM | {"bytes_per_chip": 8 * 2**30, "estimated_seconds": 2e-3}
    text = summary(path, {
        LEARNER: result("compiled", 9.0, "x", {"programs": [PROGRAM]}),
        small: result("compiled", 9.0, "x", {"programs": [half]}),
        SCALING: result("compiled", 9.0, "x", SCALED),
    })  # fmt: skip
    assert "50% of a chip's memory (`hex`, learner, v5e-16)" in text
    assert "5.0% (`hex`) to 10.0% (`connect_four`) of the chips' peak" in text
    assert "91% (`hex`) to 91% (`hex`) with 64 samples a chip" in text


def test_self_play_on_a_chip_is_shown_beside_int8(path):
    in_int8 = Job("connect_four", "v5e-1", "device", (*DEVICE.arguments, *compile_results.IN_INT8))
    made = {
        job: result(
            "compiled", 9.0, "x", {"programs": [PROGRAM | {"name": "device"}], "ratio": 0.5, "moves_per_s": rate}
        )
        for job, rate in ((DEVICE, 2000.0), (in_int8, 3000.0))
    }
    assert "| `connect_four` | 8,192 | 2,000 | 50% | +50% |" in summary(path, made)


def test_the_page_says_how_many_programs_are_of_which_compiler(path):
    text = summary(path, {
        LEARNER: result("compiled", 9.0, "x", {"programs": [PROGRAM]}, compiler="libtpu 2"),
        SELFPLAY: result("compiled", 9.0, "x", {"programs": [PROGRAM]}, compiler="libtpu 1"),
    })  # fmt: skip
    assert "1 programs are of libtpu 2, 1 of libtpu 1." in text


@pytest.mark.parametrize(
    ("job", "report", "seconds"),
    [
        (LEARNER, {"programs": [PROGRAM]}, 0.25e-3),
        (SCALING, SCALED, 1.1e-3),
        (Job("hex", "v5e-1", "device", ()), {"programs": [PROGRAM], "moves_per_s": 500.0}, 2e-3),
        (Job("hex", "v5e-1", "device", ()), {"programs": [PROGRAM]}, None),
        (LEARNER, {"programs": [{"name": "learner", "fits": False}]}, None),
        (LEARNER, {"programs": [PROGRAM | {"estimated_seconds": None}]}, None),
        (LEARNER, {}, None),
    ],
)
def test_the_estimate_is_that_of_a_step_or_a_move(job, report, seconds):
    assert compile_results.estimate_of(job, report) == (None if seconds is None else pytest.approx(seconds))


def test_another_compiler_is_compared_with_the_one_before(path, monkeypatch):
    """An estimate of 0.25 ms becomes 0.20 ms; compiled again by the same compiler, the comparison stays."""
    slow, fast = PROGRAM, PROGRAM | {"estimated_seconds": 0.8e-3}
    with monkeypatch.context() as patch:
        patch.setattr(compile_results, "compiler", lambda: "an older one")
        StoredResults(path).fill([LEARNER], answers(programs=[slow]), 60)
    assert "newer compiler" not in page([LEARNER], StoredResults(path))
    for _ in range(2):
        StoredResults(path).fill([LEARNER], answers(programs=[fast]), 60)
        assert StoredResults(path).get(LEARNER).before == compile_results.EarlierEstimate(
            "an older one", pytest.approx(0.25e-3)
        )
        assert "-20%" in page([LEARNER], StoredResults(path))


def test_what_somebody_did_not_wait_for_is_on_the_page_too(path, tmp_path, monkeypatch):
    def interrupted(job, limit_s):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compile_table, "compile_apart", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_table.make_table(again=False, limit_s=60)
    missing = len(compile_results.all_jobs())
    assert f"{missing} not compiled yet" in (tmp_path / compile_table.PAGE).read_text()
    assert (tmp_path / compile_table.ROWS).read_text().count("\n") == 1
    assert json.loads((tmp_path / compile_table.FOR_LAUNCH).read_text()) == {}


ROOT = Path(__file__).resolve().parents[2]
TRAINING = {"batch": 4096, "trip_count": 4, "estimated_seconds": 0.07, "seconds": {"links": 0.01}}


def test_rates_follow_from_the_reports():
    """4 steps on 4,096 samples in 80 ms."""
    found = compile_table.rates_of({"programs": [TRAINING]}, {"moves_per_s": 500.0})
    assert found == KnownRates(samples_per_s=pytest.approx(204_800.0), chip_moves_per_s=500.0)


def test_each_experiment_is_compiled_for_its_own_slice():
    jobs = [job for job in compile_results.all_jobs() if job.config.startswith(FOR_SLICES)]
    assert {job.program for job in jobs} == {"learner", "device"}
    for job in jobs:
        assert job.slice == load(job.config).cluster.slice
        assert job.arguments[:3] == (job.config, "--topology", job.slice)


def test_the_committed_files_are_made_of_the_stored_results():
    for path, text in compile_table.table_files(StoredResults(ROOT / compile_table.FIGURES)).items():
        assert (ROOT / path).read_text() == text, f"{path}: benchmarks/pages.py writes it"


def test_what_is_not_compiled_is_not_stored(tmp_path):
    results = StoredResults(tmp_path / "compile.json")
    learner, play = compile_results.all_jobs()[-2:]
    results.fill([learner], lambda job, limit_s: JobResult("compiled", 1.0, job.digest(), {}), 60)
    assert compile_table.figures(results) == {}
    results.fill([play], lambda job, limit_s: JobResult("crashed", 1.0, job.digest()), 60)
    assert compile_table.figures(results) == {}


def test_a_published_cycle_stands_beside_the_experiment_of_equal_shape(path):
    """16 chips play 20 moves of 8,192 games at 8,192 moves/s each, and take 20 steps of 8,192 samples in 10 ms."""
    name = json.loads(compile_table.PUBLISHED.read_text())["experiment"]
    learner, play = compile_results.jobs_of_slice(name)
    trained = PROGRAM | {"estimated_seconds": 0.04, "seconds": {"compute": 1e-4, "links": 0.0}}
    text = summary(path, {
        learner: result("compiled", 9.0, "x", {"programs": [trained]}),
        play: result("compiled", 9.0, "x", {"programs": [PROGRAM], "ratio": 0.5, "moves_per_s": 8192.0}),
    })  # fmt: skip
    assert "| at most 2.51 s | 2.48 s | 1.45 s (1.25 s play) |" in text
