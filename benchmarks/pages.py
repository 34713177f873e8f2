"""Writes the measured parts of the documentation from the files in `benchmarks/results`.

uv run --group dev python benchmarks/pages.py
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from podzero.benchmarks.ablations_page import FILES, ablations_page
from podzero.benchmarks.licences_page import licence_of, licences_page, read_lock
from podzero.benchmarks.readme_page import headline, judgements
from podzero.benchmarks.results_page import page_of_results
from podzero.benchmarks.serving_page import feeding, machine, serving
from podzero.benchmarks.tournaments_page import simulated
from podzero.markdown import Row, table
from podzero.replay import server_python
from podzero.tools.bench.rounds import ratios
from podzero.tools.compile.results import StoredResults
from podzero.tools.compile.table import table_files

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RESULTS_PAGE = ROOT / "docs" / "results.md"
PERFORMANCE_PAGE = ROOT / "docs" / "performance.md"
ABLATIONS_PAGE = ROOT / "docs" / "ablations.md"
EVALUATION_PAGE = ROOT / "docs" / "evaluation.md"
LICENCES_PAGE = ROOT / "docs" / "licences.md"
README = ROOT / "README.md"
BENCHES = (
    "selfplay", "int8", "int8_64x5", "tree", "simulators", "acting", "learner", "learner_64x5", "replay", "publish",
    "actors", "broadcast", "mesh", "analyze",
)  # fmt: skip
SERVERS = ("server_connect_four", "server_go_9x9")
EXPERIMENTS = (
    "tic_tac_toe", "connect_four", "connect_four_int8", "connect_four_two_hours", "open_spiel_connect_four", "own_game",
    "plain_learning", "othello_hour", "go_9x9_hour", "cartpole", "lunar_lander", "pendulum", "minatar_breakout",
    "atari_pong", "slice_tic_tac_toe",
)  # fmt: skip

Json = Mapping[str, Any]


def main() -> None:
    """Writes all pages."""
    RESULTS_PAGE.write_text(results_page())
    ABLATIONS_PAGE.write_text(strength_page())
    PERFORMANCE_PAGE.write_text(performance_page(PERFORMANCE_PAGE.read_text()))
    EVALUATION_PAGE.write_text(evaluation_page(EVALUATION_PAGE.read_text()))
    LICENCES_PAGE.write_text(dependencies_page())
    for path, text in table_files(StoredResults(RESULTS / "compile.json")).items():
        (ROOT / path).write_text(text)
    README.write_text(readme(README.read_text()))


def results_page() -> str:
    """The page of what each experiment has reached."""
    return page_of_results({name: _load(name) for name in EXPERIMENTS})


def strength_page() -> str:
    """The page of what each choice changes; it shows the variants that have been trained so far."""
    return ablations_page({name: _load(name) for name in FILES})


def performance_page(page: str) -> str:
    """The page with its generated parts updated, which are between `<!-- NAME -->` and `<!-- end -->`.

    Raises:
      ValueError: the page lacks such a part.
    """
    compiled = _load("compile")["results"]
    parts: dict[str, Callable[[], list[str]]] = {
        "benches": lambda: _benches({name: _load(f"bench_{name}") for name in BENCHES}),
        "serving": lambda: serving(
            {name: _load(f"bench_{name}") for name in SERVERS}, _load("transports"), _load("placements")
        ),
        "feeding": lambda: feeding(_load("feeding"), compiled),
        "footprint": lambda: footprint(_load("footprint")),
    }
    return _updated(page, parts)


def evaluation_page(page: str) -> str:
    """The page about ratings, updated like that of performance.

    Raises:
      ValueError: the page lacks its generated part.
    """
    return _updated(page, {"tournaments": lambda: simulated(_load("tournaments"))})


def readme(page: str) -> str:
    """README with its figures updated, like the page of performance.

    Raises:
      ValueError: it lacks a generated part.
    """
    results = {name: _load(name) for name in EXPERIMENTS}
    return _updated(page, {"headline": lambda: headline(results), "judgements": lambda: judgements(results)})


def dependencies_page() -> str:
    """The page of the licences of all dependencies, which must be installed, those of other platforms excepted."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    site_packages = [str(server_python().parents[1] / "lib" / "python3.11" / "site-packages")]
    return licences_page(
        read_lock(ROOT / "uv.lock"),
        list(project["optional-dependencies"]),
        licence_of,
        read_lock(ROOT / "replay" / "reverb_server" / "uv.lock"),
        lambda package: licence_of(package, site_packages),
    )


def _updated(page: str, parts: Mapping[str, Callable[[], list[str]]]) -> str:
    for name, part in parts.items():
        before, start, rest = page.partition(f"<!-- {name} -->")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise ValueError(f"the page has no part <!-- {name} --> ... <!-- end -->")
        page = "\n".join([before + start, "", *part(), "", end + after])
    return page


def footprint(results: Json) -> list[str]:
    """What a run costs before it does anything, as `footprint.py` measured it."""
    now = results["now"]
    rows: list[Row] = [
        *((f"disk, {kind}", f"{mib:,.0f} MiB") for kind, mib in now["disk_mib"].items()),
        ("first finished games", f"after {now['first_games_s']:.1f} s"),
        *((f"memory, {kind}", f"{found['resident']:,.0f} MiB") for kind, found in now["memory_mib"].items()),
        *((f"imports, {kind}", f"{seconds:.1f} s") for kind, seconds in now["import_s"].items()),
    ]
    return [
        f"Measured by `{results['command']}`; {results['hardware']}; {results['date']}. The memory of a process "
        "includes JAX's shared libraries.",
        "",
        *table(("what", "needs"), rows),
    ]


def _benches(benches: Mapping[str, Json]) -> list[str]:
    header = ("bench", "ratio", "of what", "measured")
    return table(header, [row for bench in benches.values() for row in bench_rows(bench)])


def bench_rows(bench: Json) -> list[Row]:
    """The row of a bench; a bench of several parts has a row for each."""
    result, measured = bench["result"], f"{machine(bench)}, {bench['date']}"
    parts = {key: value for key, value in result.items() if isinstance(value, dict) and "ratio" in value}
    command = re.sub(r" --(seconds \d+|json)", "", bench["command"])
    return [
        (f"`{command}`" + (f" ({part})" if part else ""), _ratio(found), found["ratio_of"], measured)
        for part, found in (parts or {"": result}).items()
    ]


def _ratio(result: Json) -> str:
    """The ratio; where rounds were compared, their median, spread and number."""
    rounds = [value for key, value in result.items() if key.endswith("_rounds")]
    if len(rounds) < 2:
        return f"{result['ratio']:.2f}"
    found = ratios(rounds[0], rounds[1])
    others = [
        f"; {value:.2f} of {key.removeprefix('ratio_to_').replace('_', ' ')}"
        for key, value in result.items()
        if key.startswith("ratio_to_")
    ]
    return f"{median(found):.2f}; {min(found):.2f} to {max(found):.2f} in {len(found)} rounds{''.join(others)}"


def _load(name: str) -> Json:
    found: Json = json.loads((RESULTS / f"{name}.json").read_text())
    return found


if __name__ == "__main__":
    main()
