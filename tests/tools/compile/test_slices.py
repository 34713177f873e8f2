"""The stored figures of the experiments for slices are those of the compiler's results."""

from pathlib import Path

import pytest

from podzero.chips import find_slice
from podzero.config import load
from podzero.launch import cli
from podzero.tools.compile import slices, table
from podzero.tools.compile.playing import of_one_chip
from podzero.tools.compile.results import Result, Results

ROOT = Path(__file__).resolve().parents[3]
LEARNER = {"batch": 4096, "trip_count": 4, "estimated_seconds": 0.07, "seconds": {"links": 0.01}}


def test_rates_follow_from_the_reports():
    """4 steps on 4,096 samples in 80 ms."""
    found = slices.rates_of({"programs": [LEARNER]}, {"moves_per_s": 500.0})
    assert found == slices.KnownRates(samples_per_s=pytest.approx(204_800.0), chip_moves_per_s=500.0)


def test_each_experiment_is_compiled_for_its_own_slice():
    jobs = slices.slice_jobs()
    assert {job.program for job in jobs} == {"learner", "device"}
    for job in jobs:
        assert job.slice == load(job.config).cluster.slice
        assert job.arguments[:3] == (job.config, "--topology", job.slice)


def test_the_committed_files_are_made_of_the_stored_results():
    for path, text in table.table_files(Results(ROOT / table.FIGURES)).items():
        assert (ROOT / path).read_text() == text, f"{path}: benchmarks/pages.py writes it"


def test_what_is_not_compiled_is_not_stored(tmp_path):
    results = Results(tmp_path / "compile.json")
    learner, play = slices.slice_jobs()[:2]
    results.fill([learner], lambda job, limit_s: Result("compiled", 1.0, job.digest(), {}), 60, lambda line: None)
    assert slices.figures(results) == {}
    results.fill([play], lambda job, limit_s: Result("crashed", 1.0, job.digest()), 60, lambda line: None)
    assert slices.figures(results) == {}


@pytest.mark.parametrize(
    ("name", "overrides", "where", "games"),
    [
        ("slices/go_9x9_v5e_16", (), "v5e-16", 256),  # 1,024 of a host of four chips
        ("slices/go_9x9_v5e_8", (), "v5e-8", 256),  # 2,048 of a host of eight chips
        ("go_9x9", ("actors.inference=device", "actors.games=256"), "v5e-1", 256),
        ("go_9x9", ("actors.inference=device", "actors.resources={TPU: 2}"), "v5e-16", 32),
        ("go_9x9", (), "v5e-16", 64),  # CPU actors: as many on a chip as they have
    ],
)
def test_a_chip_plays_its_part_of_the_games_of_its_process(name, overrides, where, games):
    assert of_one_chip(load(name, overrides), find_slice(where)).actors.games == games


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["slices/go_9x9_v4_32"], "v4-32"),
        (["slices/go_9x9_v4_32", "--topology", "v5e-4"], "v5e-4"),
        (["go_9x9"], "v5e-16"),
    ],
)
def test_an_experiment_is_compiled_for_its_slice_unless_another_is_named(monkeypatch, arguments, where):
    class Asked(Exception):
        pass

    def judge(experiment, topology, program, depth):
        raise Asked(topology)

    monkeypatch.setattr("podzero.tools.compile.command.judge_programs", judge)
    monkeypatch.setattr("sys.argv", ["podzero", "compile", *arguments])
    with pytest.raises(Asked, match=where):
        cli.main()
