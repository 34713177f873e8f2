"""The generated parts of the documentation are those that `benchmarks/pages.py` writes."""

import json
from dataclasses import replace
from functools import partial

import pytest

from podzero.benchmarks import pages
from podzero.benchmarks.ablations_page import FILES
from podzero.benchmarks.pages import figure
from podzero.config import load
from podzero.runtime.kinds import EvaluatorProcess
from podzero.runtime.process import Replay
from podzero.runtime.program import program


def test_the_committed_pages_are_the_generated_ones():
    assert pages.RESULTS_PAGE.read_text() == pages.results_page()
    performance = pages.PERFORMANCE_PAGE.read_text()
    assert performance == pages.performance_page(performance)
    assert pages.ABLATIONS_PAGE.read_text() == pages.strength_page()
    architecture = pages.ARCHITECTURE_PAGE.read_text()
    assert architecture == pages.architecture_page(architecture)
    assert pages.README.read_text() == pages.readme(pages.README.read_text())
    assert pages.GALLERY_PAGE.read_text() == pages.gallery_page()
    assert pages.LICENCES_PAGE.read_text() == pages.dependencies_page()
    reliability = pages.RELIABILITY_PAGE.read_text()
    assert reliability == pages.reliability_page(reliability)
    operations = pages.OPERATIONS_PAGE.read_text()
    assert operations == pages.operations_page(operations)


def test_the_gallery_shows_each_environment_that_can_be_drawn():
    page = pages.GALLERY_PAGE.read_text()
    without = {section.split("\n")[0] for section in page.split("\n## ")[1:] if "![" not in section}
    # Games of one's own in configs/ and languages of their own have no picture.
    assert all(name.startswith("own_") for name in without), without


def test_every_file_of_results_is_on_a_page():
    benches = {f"bench_{name}" for name in (*pages.BENCHES, *pages.SERVERS)}
    rows = json.loads((pages.RESULTS / "reliability.json").read_text())["rows"]
    runs = {row["result"] for row in rows if (pages.RESULTS / f"{row.get('result')}.json").exists()}
    shown = {
        *pages.EXPERIMENTS,
        *runs,
        "reliability",
        *benches,
        "compile",
        "number_formats",
        "published_cycle",
        "feeding",
        "transports",
        "placements",
        "tournaments",
        "footprint",
        *FILES,
    }
    written = "".join(page.read_text() for page in (pages.ROOT / "docs").glob("*.md"))
    cited = {path.stem for path in pages.RESULTS.glob("*.json") if f"benchmarks/results/{path.name}`" in written}
    assert {path.stem for path in pages.RESULTS.glob("*.json")} == shown | cited


def test_other_results_change_the_pages(tmp_path, monkeypatch):
    for path in pages.RESULTS.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    mesh = json.loads((tmp_path / "bench_mesh.json").read_text())
    mesh["result"] |= {"mesh_rounds": [1.0, 3.0, 4.0], "one_device_rounds": [4.0, 4.0, 4.0]}
    (tmp_path / "bench_mesh.json").write_text(json.dumps(mesh))
    own_game = json.loads((tmp_path / "own_game.json").read_text())
    own_game["result"] |= {"wins": 12, "score": 0.125}
    (tmp_path / "own_game.json").write_text(json.dumps(own_game))
    assert "| 0.75; 0.25 to 1.00 in 3 rounds |" in pages.performance_page(pages.PERFORMANCE_PAGE.read_text())
    assert "score **12.5%** in 100 games against `mcts:100`: 12 won" in pages.results_page()


def test_a_page_without_a_generated_part_is_refused():
    with pytest.raises(ValueError, match=r"no part <!-- benches -->"):
        pages.performance_page("# Performance\n")


def test_a_footprint_has_a_row_for_each_measure():
    now = {
        "disk_mib": {"run": 1018.2},
        "first_games_s": 10.21,
        "memory_mib": {"actor": {"resident": 428, "own": 300}},
    }
    text = "\n".join(pages.footprint(dict.fromkeys(("command", "hardware", "date"), "x") | {"now": now}))
    assert "| disk, run | 1,018 MiB |" in text
    assert "| first finished games | after 10.2 s |" in text
    assert "| memory, actor | 428 MiB |" in text


def rows(experiment):
    return {kind.name: kind for kind in program(experiment)}


def test_the_figure_has_all_kinds_with_processes_and_what_flows_between_them():
    _, _, name, *overrides = pages.PROGRAM.split()
    table = rows(load(name, overrides))
    drawn = figure(table.values())
    for kind in table.values():
        assert (f'{kind.name}["' in drawn) == (kind.count > 0)
        for handle in kind.handles:
            assert (f"{handle.kind} -- {handle.receives} --> {kind.name}" in drawn) == bool(
                kind.count and handle.receives
            )
            assert (f"{kind.name} -- {handle.sends} --> {handle.kind}" in drawn) == bool(kind.count and handle.sends)


def test_the_figure_follows_the_table():
    table = rows(load("connect_four"))
    other = replace(table["evaluator"], count=2, process=partial(EvaluatorProcess, snapshots=Replay(receives="games")))
    drawn = figure([*table.values(), other])
    assert 'evaluator["evaluator x 2"]' in drawn
    assert "replay -- games --> evaluator" in drawn


@pytest.mark.parametrize(
    ("settings", "arrow"),
    [
        (["actors.inference=server", "server.beside_learner=true"], "learner -- policies, values --> actor"),
        (["actors.inference=device"], "learner -- samples --> replay"),
        (["actors.opponents=[{who: earlier, share: 1}]"], "learner -- snapshots --> actor"),
    ],
)
def test_what_plays_or_serves_beside_the_learner_and_opponents_are_drawn(settings, arrow):
    assert arrow in figure(program(load("connect_four", settings)))


def test_a_run_with_faults_is_told_with_its_recovery():
    recovery = {
        "actor": {"count": 9, "survived": 9, "median_s": 4.2, "p95_s": 11.8},
        "head": {"count": 1, "survived": 0},
    }
    result = {"faults": 10, "survived_faults": 9, "recovery": recovery, "ledger": "closes", "exit_code": 143}
    bench = {"command": "podzero bench chaos", "date": "2026-11-28", "hardware": "a machine"}
    rows = [
        {"what": "kills", "command": "podzero bench chaos", "result": "bench_chaos"},
        {"what": "rust", "command": "", "found": None, "date": None, "hardware": None},
    ]
    told = pages.faults(rows, {"bench_chaos": bench | {"result": result}})
    said = "9 of 10 survived; recovery in s (median/95%): actor 4/12; ledger closes; exit code 143"
    assert f"| kills | `podzero bench chaos` | {said} |" in told
    assert "| rust |  | not run yet |" in told
    assert told[-1] == "On a machine, 2026-11-28."
    soaked = result | {"goodput": 0.971, "flat": False, "not_flat": ["actor threads", "actor bytes"], "recovery": {}}
    (_, _, row, *_) = pages.faults(rows[:1], {"bench_chaos": bench | {"result": soaked}})
    assert "goodput 97.1%; not flat: some measures of actor; ledger closes" in row
