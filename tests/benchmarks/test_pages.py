"""The measured parts of the documentation are those that `benchmarks/pages.py` writes from `benchmarks/results`."""

import json

import pytest

from podzero.benchmarks import pages
from podzero.benchmarks.ablations_page import FILES


def test_the_committed_pages_are_the_generated_ones():
    assert pages.RESULTS_PAGE.read_text() == pages.results_page()
    performance = pages.PERFORMANCE_PAGE.read_text()
    assert performance == pages.performance_page(performance)
    assert pages.ABLATIONS_PAGE.read_text() == pages.strength_page()
    evaluation = pages.EVALUATION_PAGE.read_text()
    assert evaluation == pages.evaluation_page(evaluation)
    assert pages.README.read_text() == pages.readme(pages.README.read_text())
    assert pages.LICENCES_PAGE.read_text() == pages.dependencies_page()


def test_every_file_of_results_is_on_a_page():
    benches = {f"bench_{name}" for name in (*pages.BENCHES, *pages.SERVERS)}
    shown = {
        *pages.EXPERIMENTS,
        *benches,
        "compile",
        "feeding",
        "transports",
        "placements",
        "tournaments",
        "footprint",
        *FILES,
    }
    assert {path.stem for path in pages.RESULTS.glob("*.json")} == shown


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


def compiled(config, per_chip, efficiency, counts, sent):
    slices = [{"efficiency": efficiency, "collectives": [{"kind": "all-reduce", "times": counts, "bytes": sent}]}]
    report = {"config": config, "per_chip": per_chip, "parameter_bytes": 100, "slices": slices}
    return {"compiler": "a compiler", "report": report}


def step(seconds):
    return {"report": {"programs": [{"fits": True, "estimated_seconds": seconds, "trip_count": 2}]}}


def test_a_footprint_has_a_row_for_each_measure_and_a_column_for_each_stack():
    now = {
        "python": "3.13", "jax": "0.12", "disk_mib": {"run": 1018.2, "replay server": 1213.0},
        "import_s": {"actor": 1.5}, "first_games_s": 10.21, "memory_mib": {"actor": {"resident": 428, "own": 300}},
    }  # fmt: skip
    before = now | {"python": "3.11", "jax": "0.7", "disk_mib": {"run": 1998.0}, "first_games_s": 15.0}
    said = dict.fromkeys(("command", "hardware", "date", "note"), "x")
    text = "\n".join(pages.footprint(said | {"before": before, "now": now}))
    assert "|  | Python 3.11, JAX 0.7 | Python 3.13, JAX 0.12 |" in text
    assert "| disk, replay server (MiB) |  | 1,213 |" in text
    assert "| first finished games (s) | 15.0 | 10.2 |" in text
    assert "| memory, actor (MiB) | 428 | 428 |" in text


def test_ranges_of_the_compiler_span_all_experiments():
    results = {
        "go --scaling 64": compiled("go", 64, 0.9, 2, 50),
        "go --scaling 512": compiled("go", 512, 0.97, 2, 50),
        "chess --scaling 64": compiled("chess", 64, 0.8, 3, 107),
        "chess --scaling 512": compiled("chess", 512, 0.99, 3, 107),
        "go --topology v5e-16 --program learner": step(4.0),
        "go --topology v5e-256 --program learner": step(3.0),
        "chess --topology v5e-16 --program learner": step(10.0),
        "chess --topology v5e-256 --program learner": step(1.0),
        "hex --topology v5e-16 --program learner": {"report": None},
    }
    text = "\n".join(pages.scaling(results))
    assert "| `chess` | 0.800 | 0.990 |" in text
    assert "By the estimates of a compiler," in text
    assert "0.800 (`chess`) to 0.900 (`go`) with 64 samples a chip and 0.970 (`go`) to 0.990 (`chess`) with 512" in text
    assert "all-reduce: 2 to 3 (3: `chess`) in each step" in text
    assert "0.50 (`go`) to 1.07 (`chess`) of those of the parameters" in text
    assert "25% (`go`) to 90% (`chess`) shorter" in text
