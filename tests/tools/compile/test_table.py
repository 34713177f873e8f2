"""`podzero compile --table` without the compiler: what is run, what is kept, and how it is shown."""

import json
import re
import sys
from dataclasses import asdict
from datetime import date

import pytest

from podzero.config import FOR_SLICES, GameConfig, builtin_configs, load
from podzero.tools.compile import results, table
from podzero.tools.compile.pages import page
from podzero.tools.compile.results import Job, Result, Results
from podzero.tools.compile.slices import slice_jobs

LEARNER = Job("connect_four", "v5e-16", "learner", ("connect_four", "--topology", "v5e-16", "--program", "learner"))
SELFPLAY = Job("connect_four", "v5e-16", "selfplay", ("connect_four", "--topology", "v5e-16", "--program", "selfplay"))
SCALING = Job("hex", "v5e-256", "scaling", ("hex", "--scaling", "v5e-4,v5e-256", "--per-chip", "64"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "compile.json"


def silent(line):
    pass


def answers(outcome="compiled", seconds=1.0, **report):
    """A stand-in for the compiler that keeps what it was asked."""

    def run(job, limit_s):
        run.asked.append(job)
        return Result(outcome, seconds, job.digest(), report)

    run.asked = []
    return run


def test_the_jobs_are_all_experiments_on_all_slices_and_each_chip_once():
    jobs = table.all_jobs()
    general = [name for name in builtin_configs() if not name.startswith(FOR_SLICES)]
    configs = len(general)
    games = sum(isinstance(load(name).env, GameConfig) for name in general)
    count = {program: sum(job.program == program for job in jobs) for program in ("learner", "evaluation", "selfplay")}
    assert count == {"learner": 6 * configs, "evaluation": 5 * configs, "selfplay": 5 * games}
    played = [job for job in jobs if job.program == "device"]
    assert {job.config: job.slice for job in played} == {name: "v5e-1" for name, _ in table.ON_CHIP}
    assert sum("int8.on_tpu=true" in job.arguments for job in played) == len(table.ON_CHIP) == len(played) / 2
    played_by_cpu_settings = {job.slice for job in jobs if job.program == "selfplay"}
    assert played_by_cpu_settings == {"v4-16", "v5e-16", "v5p-16", "v6e-16", "tpu7x-16"}
    assert len({job.key for job in jobs}) == len(jobs)


def test_a_second_call_compiles_only_what_is_missing(path):
    first = answers()
    Results(path).fill([LEARNER], first, 60, silent)
    known = Results(path)
    assert known.missing([LEARNER, SELFPLAY], 60) == [SELFPLAY]
    assert known.get(LEARNER) == Result("compiled", 1.0, LEARNER.digest(), compiler=results.compiler())
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
    Results(path).fill([LEARNER], answers(outcome, seconds=60.0), 60, silent)
    assert (Results(path).missing([LEARNER], limit_s) == [LEARNER]) == again


def test_another_compiler_or_another_text_makes_it_stale(path, monkeypatch, tmp_path):
    Results(path).fill([LEARNER], answers(), 60, silent)
    changed = tmp_path / "connect_four.yaml"
    changed.write_text(builtin_configs()["connect_four"].read_text() + "\nseed: 1\n")
    with monkeypatch.context() as patch:
        patch.setattr(results, "builtin_configs", lambda: {"connect_four": changed})
        assert Results(path).missing([LEARNER], 60) == [LEARNER]
    with monkeypatch.context() as patch:
        patch.setattr(results, "compiler", lambda: "libtpu 9.9.9")
        assert Results(path).missing([LEARNER], 60) == [LEARNER]
    assert Results(path).missing([LEARNER], 60) == []


def test_a_changed_comment_does_not_make_it_stale(path, monkeypatch, tmp_path):
    Results(path).fill([LEARNER], answers(), 60, silent)
    commented = tmp_path / "connect_four.yaml"
    commented.write_text("# Another comment.\n" + builtin_configs()["connect_four"].read_text())
    monkeypatch.setattr(results, "builtin_configs", lambda: {"connect_four": commented})
    assert Results(path).missing([LEARNER], 60) == []


def test_each_result_is_on_disk_before_the_next_job_starts(path):
    def run(job, limit_s):
        if job == SELFPLAY:
            raise KeyboardInterrupt
        return Result("compiled", 1.0, job.digest())

    with pytest.raises(KeyboardInterrupt):
        Results(path).fill([LEARNER, SELFPLAY], run, 60, silent)
    assert Results(path).missing([LEARNER, SELFPLAY], 60) == [SELFPLAY]


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
    monkeypatch.setattr(table, "_COMMAND", (sys.executable, "-c", f"import sys; {script}"))
    found = table.compile_apart(LEARNER, limit_s=3.0)
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
    return Result(*fields, **{"compiler": results.compiler()} | more)


def shown(path, job, result):
    """The row of a job on the page."""
    path.parent.mkdir()
    path.write_text(json.dumps({"results": {job.key: asdict(result)}}))
    text = page([job], Results(path), date(2026, 11, 21), 900)
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {job.config}"))
    assert "on 2026-11-21 with libtpu" in text
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip("|"))]


def test_a_learner_is_shown_per_chip_and_step(path):
    assert shown(path, LEARNER, result("compiled", 9.0, "x", {"programs": [PROGRAM]})) == [
        "connect_four", "v5e-16", "512", "3.0 MiB of 16.0 GiB", "2.00", "1.0 MiB", "0.250 ms", "10.0%",
        "2 all-reduce, 195.3 KiB (0.50 of the parameters)", "",
    ]  # fmt: skip


def test_a_program_of_one_chip_is_shown_with_its_rate(path):
    alone = PROGRAM | {"name": "selfplay", "batch": 128, "trip_count": 1, "collectives": []}
    assert shown(path, SELFPLAY, result("compiled", 9.0, "x", {"programs": [alone]})) == [
        "connect_four", "v5e", "selfplay", "3.0 MiB of 16.0 GiB", "8.00", "4.0 MiB", "1.000 ms", "10.0%",
        "128,000 moves, at most", "",
    ]  # fmt: skip


def test_self_play_on_the_chip_is_shown_beside_one_move_by_mctx(path):
    """A move of 128 games took 4 ms, 33 evaluations of 128 games 33 * 0.01 ms: a share of 0.0825."""
    device = Job("connect_four", "v5e-1", "device", ("connect_four", "actors.games=4096", "--program", "device"))
    evaluation = Job("connect_four", "v5e-16", "evaluation", ("connect_four", "--program", "evaluation"))
    alone = PROGRAM | {"batch": 128, "trip_count": 1, "collectives": []}
    before = alone | {"estimated_seconds": 0.004, "traffic": {"hbm": 128 * 32 * 5000.0}}
    report = {
        "programs": [alone, alone], "ratio": 0.5, "moves_per_s": 2000.0, "evaluations_per_s": 66_000.0,
        "bytes_per_simulation": 250.0, "depth": 4.25,
    }  # fmt: skip
    found = {
        SELFPLAY.key: {"programs": [before]},
        evaluation.key: {"programs": [alone | {"estimated_seconds": 1e-5}]},
        device.key: report,
    }
    path.parent.mkdir()
    made = {key: vars(result("compiled", 9.0, "x", one)) for key, one in found.items()}
    path.write_text(json.dumps({"results": made}))
    text = page([SELFPLAY, evaluation, device], Results(path), date(2026, 11, 23), 900)
    assert (
        "| connect_four actors.games=4096 "
        "| 0.083 | 0.50 | 5,000 | 250 | 2,000 | 66,000 | 4.2 | 3.0 MiB of 16.0 GiB |  |" in text
    )


@pytest.mark.parametrize(
    ("job", "report", "seconds"),
    [
        (LEARNER, {"programs": [PROGRAM]}, 0.25e-3),
        (SCALING, SCALED, 1.1e-3),
        (Job("hex", "v5e-1", "device", ()), {"programs": [PROGRAM], "moves_per_s": 500.0}, 2e-3),
        (Job("hex", "v5e-1", "device", ()), {"programs": [PROGRAM]}, None),
        (LEARNER, {"programs": [PROGRAM | {"fits": False}]}, None),
        (LEARNER, {}, None),
    ],
)
def test_the_estimate_is_that_of_a_step_or_a_move(job, report, seconds):
    assert results.estimate_of(job, report) == (None if seconds is None else pytest.approx(seconds))


def test_another_compiler_is_compared_with_the_one_before(path, monkeypatch):
    """An estimate of 0.25 ms becomes 0.20 ms; compiled again by the same compiler, the comparison stays."""
    slow, fast = PROGRAM, PROGRAM | {"estimated_seconds": 0.8e-3}
    with monkeypatch.context() as patch:
        patch.setattr(results, "compiler", lambda: "an older one")
        Results(path).fill([LEARNER], answers(programs=[slow]), 60, silent)
    old = page([LEARNER], Results(path), date(2026, 11, 21), 900)
    assert "| of an older one |" in old
    for _ in range(2):
        Results(path).fill([LEARNER], answers(programs=[fast]), 60, silent)
        assert Results(path).get(LEARNER).before == results.Before("an older one", pytest.approx(0.25e-3))
        assert "| -20% |" in page([LEARNER], Results(path), date(2026, 11, 21), 900)


def test_scaling_is_shown_with_both_steps(path):
    assert shown(path, SCALING, result("compiled", 9.0, "x", SCALED)) == [
        "hex", "v5e-256", "64", "1.000 ms", "1.100 ms", "0.150 ms", "2 all-reduce", "0.50", "0.909", ""
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (Result("timeout", 900, "x", message="not compiled within 15 minutes"), "not compiled within 15 minutes"),
        (Result("crashed", 9, "x", message="Check failed: a | b"), "crashed: Check failed: a \\| b"),
        (Result("refused", 9, "x", message="not divided"), "refused: not divided"),
    ],
)
def test_what_was_not_compiled_says_why(path, result, words):
    assert shown(path, LEARNER, result)[3] == words


def test_what_somebody_did_not_wait_for_is_on_the_page_too(path, tmp_path, monkeypatch):
    def interrupted(job, limit_s):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table, "compile_apart", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.make_table(again=False, limit_s=60, tell=silent)
    rows = [line for line in (tmp_path / table.PAGE).read_text().splitlines() if "not compiled yet" in line]
    assert len(rows) == len(table.all_jobs()) + len({job.config for job in slice_jobs()})
    assert json.loads((tmp_path / table.FOR_LAUNCH).read_text()) == {}


def test_what_does_not_fit_says_by_how_much(path):
    large = PROGRAM | {"fits": False, "bytes_per_chip": 20 * 2**30}
    row = shown(path, LEARNER, Result("too large", 9.0, "x", {"programs": [large]}))
    assert row[3] == "does not fit: 20.0 GiB of 16.0 GiB"
