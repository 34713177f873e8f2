"""Writes the measured parts of the documentation from the files in `benchmarks/results`.

uv run --group dev python benchmarks/pages.py
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from podzero.benchmarks.ablations_page import FILES, ablations_page
from podzero.benchmarks.licences_page import licence_of, licences_page, read_lock
from podzero.benchmarks.readme_page import headline, judgements
from podzero.benchmarks.results_page import page_of_results
from podzero.benchmarks.serving_page import feeding, serving
from podzero.benchmarks.tournaments_page import simulated
from podzero.markdown import Row, table
from podzero.replay import server_python
from podzero.tools.bench.rounds import ratios
from podzero.tools.compile.results import Results
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
    for path, text in table_files(Results(RESULTS / "compile.json")).items():
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
        "scaling": lambda: scaling(compiled),
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
    """What a run costs before it does anything, under two stacks of versions, as `footprint.py` measured it."""
    stacks = [results["before"], results["now"]]
    rows = [
        *(_footprint_row(f"disk, {kind} (MiB)", [stack["disk_mib"].get(kind) for stack in stacks])
          for kind in results["now"]["disk_mib"]),
        *(_footprint_row(f"imports, {kind} (s)", [stack["import_s"].get(kind) for stack in stacks], digits=2)
          for kind in results["now"]["import_s"]),
        _footprint_row("first finished games (s)", [stack["first_games_s"] for stack in stacks], digits=1),
        *(_footprint_row(f"memory, {kind} (MiB)", [_resident(stack, kind) for stack in stacks])
          for kind in results["now"]["memory_mib"]),
    ]  # fmt: skip
    return [
        f"`{results['command']}`, a second run; {results['hardware']}; {results['date']}. {results['note']}",
        "",
        *table(("", *(f"Python {stack['python']}, JAX {stack['jax']}" for stack in stacks)), rows),
    ]


def _resident(stack: Json, kind: str) -> float | None:
    found: Json = stack["memory_mib"].get(kind, {})
    return found.get("resident")


def _footprint_row(name: str, values: Iterable[float | None], digits: int = 0) -> Row:
    return name, *("" if value is None else f"{value:,.{digits}f}" for value in values)


def _benches(benches: Mapping[str, Json]) -> list[str]:
    header = ("bench", "ratio", "of what", "medians", "measured")
    return table(header, [row for bench in benches.values() for row in bench_rows(bench)])


def bench_rows(bench: Json) -> list[Row]:
    """The row of a bench; a bench of several parts has a row for each."""
    result, measured = bench["result"], f"{bench['hardware']}; {bench['date']}"
    parts = {key: value for key, value in result.items() if isinstance(value, dict) and "ratio" in value}
    return [
        (
            f"`{bench['command']}`" + (f" ({part})" if part else ""),
            _ratio(found) + _other_runs(bench),
            found["ratio_of"],
            "; ".join(_medians(found)),
            measured,
        )
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


def _other_runs(bench: Json) -> str:
    runs = bench.get("ratios_of_all_runs", [])
    return f"; ratios of all runs {', '.join(f'{ratio:.2f}' for ratio in runs)}" if runs else ""


def _medians(result: Json) -> list[str]:
    """Rates, and delays with their 99th percentile."""
    rates = [
        f"{key.removesuffix('_per_s').replace('_', ' ')} {_number(value)}/s"
        for key, value in result.items()
        if key.endswith("_per_s")
    ]
    delays = [
        f"{key} {value['median_ms']:.0f} ms (99th percentile {value['p99_ms']:.0f})"
        for key, value in result.items()
        if isinstance(value, dict) and "median_ms" in value
    ]
    actors = [
        f"actors {entry['actors']}: {_number(entry['samples_per_s'])} samples/s, efficiency {entry['efficiency']:.2f}"
        for entry in result.get("rounds", [])
    ]
    counts = [f"{key} {result[key]}" for key in ("publications", "nodes", "readers") if key in result]
    return rates + delays + actors + counts


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def scaling(results: Mapping[str, Json]) -> list[str]:
    """The table of weak scaling, and sentences with ranges over all experiments."""
    entries = [entry for entry in results.values() if "slices" in (entry.get("report") or {})]
    reports, compilers = [entry["report"] for entry in entries], {entry["compiler"] for entry in entries}
    configs = sorted({report["config"] for report in reports})
    found = {(report["config"], report["per_chip"]): report["slices"][-1]["efficiency"] for report in reports}
    sizes = sorted({size for _, size in found})
    rows = [(f"`{config}`", *(f"{found[config, size]:.3f}" for size in sizes)) for config in configs]
    header = ("experiment", *(f"{size} a chip" for size in sizes))
    kept = [f"{_range(_named(found, size))} with {size} samples a chip" for size in sizes]
    return [
        *table(header, rows),
        "",
        f"By the estimates of {' and '.join(sorted(compilers))}, the weak-scaling efficiency from v5e-4 to v5e-256 is "
        f"{' and '.join(kept)}.",
        "",
        _communication(reports),
        "",
        _fixed_batch(results),
    ]


def _named(found: Mapping[tuple[str, int], float], size: int) -> list[tuple[float, str]]:
    return [(efficiency, config) for (config, per_chip), efficiency in found.items() if per_chip == size]


def _communication(reports: Iterable[Json]) -> str:
    """The collectives of a step, over all experiments."""
    sent, counts, kinds = [], set(), set()
    for report in reports:
        collectives = report["slices"][-1]["collectives"]
        sent.append((sum(c["bytes"] for c in collectives) / report["parameter_bytes"], report["config"]))
        counts.add((round(sum(c["times"] for c in collectives)), report["config"]))
        kinds |= {c["kind"] for c in collectives}
    most = max(count for count, _ in counts)
    least = min(count for count, _ in counts)
    with_most = ", ".join(sorted(f"`{config}`" for count, config in counts if count == most))
    number = f"{least}" if least == most else f"{least} to {most} ({most}: {with_most})"
    return (
        f"The only collectives are {', '.join(sorted(kinds))}: {number} in each step. Their bytes are "
        f"{_range(sent, 2)} of those of the parameters."
    )


def _fixed_batch(results: Mapping[str, Json]) -> str:
    """How much shorter the steps are on more chips with the experiments' own batch sizes."""
    steps: dict[str, dict[str, float]] = {}
    for key, entry in results.items():
        config, _, rest = key.partition(" --topology ")
        programs = (entry.get("report") or {}).get("programs", [])
        if rest in ("v5e-16 --program learner", "v5e-256 --program learner") and programs and programs[0]["fits"]:
            steps.setdefault(config, {})[rest.split()[0]] = programs[0]["estimated_seconds"] / programs[0]["trip_count"]
    shorter = [
        (100 * (1 - step["v5e-256"] / step["v5e-16"]), config) for config, step in steps.items() if len(step) == 2
    ]
    return (
        "With the batch sizes of the experiments, which are for all chips together, the estimated step on v5e-256 is "
        f"{_range(shorter, 0, '%')} shorter than on v5e-16."
    )


def _range(values: Iterable[tuple[float, str]], digits: int = 3, unit: str = "") -> str:
    """The least and the greatest value, each with the name of its experiment."""
    (low, first), (high, last) = min(values), max(values)
    return f"{low:.{digits}f}{unit} (`{first}`) to {high:.{digits}f}{unit} (`{last}`)"


def _load(name: str) -> Json:
    found: Json = json.loads((RESULTS / f"{name}.json").read_text())
    return found


if __name__ == "__main__":
    main()
