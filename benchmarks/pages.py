"""Writes the generated parts of the documentation: most from the files in `benchmarks/results`, which are measured.

uv run --group dev python benchmarks/pages.py
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from podzero.benchmarks.ablations_page import FILES, ablations_page
from podzero.benchmarks.compile_results import StoredResults
from podzero.benchmarks.compile_table import table_files
from podzero.benchmarks.doors import DOORS
from podzero.benchmarks.gallery import gallery_page
from podzero.benchmarks.licences_page import licence_of, licences_page, read_lock
from podzero.benchmarks.markdown import Row, abbreviated, table
from podzero.benchmarks.results_page import STUDIES, page_of_results, studies
from podzero.config import load
from podzero.replay import server_python
from podzero.runtime.program import Kind, program
from podzero.tools.bench.measuring import ratios

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RESULTS_PAGE = ROOT / "docs" / "results.md"
PERFORMANCE_PAGE = ROOT / "docs" / "performance.md"
ABLATIONS_PAGE = ROOT / "docs" / "ablations.md"
ARCHITECTURE_PAGE = ROOT / "docs" / "architecture.md"
GALLERY_PAGE = ROOT / "docs" / "gallery.md"
LICENCES_PAGE = ROOT / "docs" / "licences.md"
OPERATIONS_PAGE = ROOT / "docs" / "operations.md"
RELIABILITY_PAGE = ROOT / "docs" / "reliability.md"
README = ROOT / "README.md"
BENCHES = (
    "selfplay", "int8", "int8_64x5", "tree", "acting", "learner", "learner_64x5", "replay", "publish", "actors", "mesh",
    "loop", "loop_go_9x9_hour", "loop_h200", "loop_chess_v4", "loop_chess_v5e",
)  # fmt: skip
SERVERS = ("server_connect_four", "server_go_9x9")
EXPERIMENTS = (
    "tic_tac_toe", "connect_four", "connect_four_int8", "connect_four_two_hours", "zoo_connect_four",
    "open_spiel_connect_four", "own_game", "plain_learning", "go_9x9_hour", "othello_hour", "hex", "gardner_chess",
    "cartpole", "taxi", "lunar_lander", "pendulum", "minatar_breakout", "gymnax_cartpole_device",
    "gymnax_breakout_device", "ppo_breakout", "atari_pong", "slice_tic_tac_toe",
)  # fmt: skip
PROGRAM = (
    "podzero train connect_four actors.count=4 actors.inference=server server.count=2 replay.shards=2 "
    "reanalyse.share=0.5"
)
"""A run with all kinds of processes."""
IN_ENVIRONMENT = "uv run --group dev "
"""What commands of docs/reliability.md begin with, unless the environment is active."""

Json = Mapping[str, Any]


def main() -> None:
    """Writes all generated pages and parts of pages."""
    RESULTS_PAGE.write_text(results_page(), encoding="utf-8")
    ABLATIONS_PAGE.write_text(strength_page(), encoding="utf-8")
    PERFORMANCE_PAGE.write_text(performance_page(PERFORMANCE_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    ARCHITECTURE_PAGE.write_text(architecture_page(ARCHITECTURE_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    GALLERY_PAGE.write_text(gallery_page(), encoding="utf-8")
    LICENCES_PAGE.write_text(dependencies_page(), encoding="utf-8")
    OPERATIONS_PAGE.write_text(operations_page(OPERATIONS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    RELIABILITY_PAGE.write_text(reliability_page(RELIABILITY_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for path, text in table_files(StoredResults(RESULTS / "compile.json")).items():
        (ROOT / path).write_text(text, encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")


def results_page() -> str:
    """docs/results.md."""
    experiments = {name: _load(name) for name in EXPERIMENTS}
    page = page_of_results(experiments, _load("paired"), _load("what_search_buys"))
    parts = {
        "Smaller studies": studies({name: _load(name) for name in STUDIES}),
        "Placements of self-play": placements(_load("placements")),
        "Simulated tournaments": simulated(_load("tournaments")),
    }
    return page + "".join("\n".join(["", f"## {title}", "", *lines, ""]) for title, lines in parts.items())


def strength_page() -> str:
    """docs/ablations.md."""
    return ablations_page({name: _load(name) for name in FILES})


def performance_page(page: str) -> str:
    """docs/performance.md with its generated parts updated, which are between `<!-- NAME -->` and `<!-- end -->`.

    Raises:
      ValueError: the page lacks such a part.
    """
    compiled = _load("compile")["results"]
    parts: dict[str, Callable[[], list[str]]] = {
        "benches": lambda: _benches({name: _load(f"bench_{name}") for name in BENCHES}),
        "serving": lambda: serving({name: _load(f"bench_{name}") for name in SERVERS}),
        "feeding": lambda: feeding(_load("feeding"), compiled),
        "footprint": lambda: footprint(_load("footprint")),
    }
    return _updated(page, parts)


def architecture_page(page: str) -> str:
    """docs/architecture.md with its generated part updated; see `performance_page`."""
    _, _, name, *overrides = PROGRAM.split()
    drawn = figure(program(load(name, overrides)))
    caption = f"`{PROGRAM}` starts these processes."
    return _updated(page, {"program": lambda: ["```mermaid", *drawn.splitlines(), "```", "", caption]})


def operations_page(page: str) -> str:
    """docs/operations.md with its generated part updated; see `performance_page`."""
    rows: list[Row] = [(door.who, door.port, door.alone, door.joined, door.credential) for door in DOORS]
    return _updated(page, {"doors": lambda: table(("listens", "port", "alone", "in a cluster", "credential"), rows)})


def reliability_page(page: str) -> str:
    """docs/reliability.md with its generated part updated; see `performance_page`."""
    rows = _load("reliability")["rows"]
    benches = {row["result"]: _load(row["result"]) for row in rows if _has_result(row)}
    return _updated(page, {"faults": lambda: faults(rows, benches)})


def figure(kinds: Iterable[Kind]) -> str:
    """The processes and what flows between them, as a Mermaid flow chart; kinds without processes are left out."""
    used = {kind.name: kind for kind in kinds if kind.count}
    boxes = [f'    {kind.name}["{kind.name} x {kind.count}"]' for kind in used.values()]
    held = [(kind.name, handle) for kind in used.values() for handle in kind.handles if handle.kind in used]
    flows = [(handle.kind, handle.receives, name) for name, handle in held if handle.receives]
    flows += [(name, handle.sends, handle.kind) for name, handle in held if handle.sends]
    return "\n".join(["flowchart LR", *boxes, *(f"    {source} -- {what} --> {end}" for source, what, end in flows)])


def readme(page: str) -> str:
    """README.md with its generated parts updated; see `performance_page`."""
    results = {name: _load(name) for name in EXPERIMENTS}
    return _updated(page, {"headline": lambda: headline(results), "judgements": lambda: judgements(results)})


def dependencies_page() -> str:
    """docs/licences.md. All dependencies for this platform must be installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
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
    """What a run costs, as measured by `footprint.py`."""
    now = results["now"]
    rows: list[Row] = [
        *((f"disk, {kind}", f"{mib:,.0f} MiB") for kind, mib in now["disk_mib"].items()),
        ("first finished games", f"after {now['first_games_s']:.1f} s"),
        *((f"memory, {kind}", f"{found['resident']:,.0f} MiB") for kind, found in now["memory_mib"].items()),
    ]
    return [
        f"Measured by `{results['command']}`; {results['hardware']}; {results['date']}. The memory of a process "
        "includes JAX's shared libraries.",
        "",
        *table(("what", "needs"), rows),
    ]


def _benches(benches: Mapping[str, Json]) -> list[str]:
    rows = [row for bench in benches.values() for row in bench_rows(bench)]
    return table(("bench", "ratio", "of what", "measured"), abbreviated(rows, (2, 3)))


def bench_rows(bench: Json) -> list[Row]:
    """The rows of a bench, one for each of its parts."""
    result, measured = bench["result"], f"{machine(bench)}, {bench['date']}"
    parts = {key: value for key, value in result.items() if isinstance(value, dict) and "ratio" in value}
    command = re.sub(r" --(seconds \d+|json)", "", bench["command"])
    return [
        (f"`{command}`" + (f" ({part})" if part else ""), _ratio(found), found["ratio_of"], measured)
        for part, found in (parts or {"": result}).items()
    ]


def _ratio(result: Json) -> str:
    """The ratio; if rounds were compared, their median, range and number."""
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
    found: Json = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


# docs/reliability.md


def _has_result(row: Json) -> bool:
    return (RESULTS / f"{row.get('result')}.json").exists()


def faults(rows: Iterable[Json], benches: Mapping[str, Json]) -> list[str]:
    """The table of faults, each with a command and what it found, or that it was not run; then the machines.

    A row either has `found`, `date` and `hardware`, or names a `result` of `podzero bench soak` or `chaos`.
    """
    told = [{**row, **_found(benches[row["result"]])} if row.get("result") in benches else row for row in rows]
    lines = [
        (row["what"], _code(row["command"].removeprefix(IN_ENVIRONMENT)), row.get("found") or "not run yet")
        for row in told
    ]
    machines = sorted({f"{row['hardware']}, {row['date']}" for row in told if row.get("found")})
    return [*table(("fault", "command", "found"), lines), "", f"On {'; '.join(machines)}."]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _found(bench: Json) -> Json:
    """What a run of `podzero bench soak` or `chaos` found, in words."""
    result = bench["result"]
    recovery = ", ".join(
        f"{kind} {one['median_s']:.0f}/{one['p95_s']:.0f}"
        for kind, one in result["recovery"].items()
        if "median_s" in one
    )
    if "goodput" in result:
        rising = dict.fromkeys(measure.split()[0] for measure in result["not_flat"])
        flat = "all flat" if result["flat"] else f"not flat: some measures of {', '.join(rising)}"
        parts = [f"goodput {result['goodput']:.1%}", flat]
    else:
        parts = [f"{result['survived_faults']} of {result['faults']} survived"]
    parts += [f"recovery in s (median/95%): {recovery}"] * bool(recovery)
    parts += [f"ledger {result['ledger']}", f"exit code {result['exit_code']}"]
    return {key: bench[key] for key in ("command", "date", "hardware")} | {"found": "; ".join(parts)}


# docs/performance.md: inference servers, and what a slice needs of them.


def machine(measured: Json) -> str:
    """The processor of a measurement; each machine has two cores and no accelerator."""
    found = re.search(r"(AMD|Intel) (EPYC|Xeon)(?: \((Zen \d)\)| (with AMX))?", measured["hardware"])
    assert found is not None, measured["hardware"]
    return " ".join(word for word in found.groups() if word)


def serving(benches: Mapping[str, Json]) -> list[str]:
    """The table of inference servers, from the results of `podzero bench server`."""
    days = sorted({f"{machine(bench)}, {bench['date']}" for bench in benches.values()})
    actors = dict.fromkeys(count for bench in benches.values() for count in bench["result"]["actors"])
    return [
        *table(("actors", *actors), map(_server_row, benches.values())),
        "",
        f"An idle server adds {max(bench['result']['added_latency_ms'] for bench in benches.values()):.1f} ms "
        f"({'; '.join(days)}).",
    ]


def feeding(measured: Json, compiled: Mapping[str, Json]) -> list[str]:
    """How many chips, or chips and cores, must play so that the learner of each game on a slice never waits.

    Args:
      measured: `feeding` of `podzero compile CONFIG --topology SLICE --json`, by arguments.
      compiled: the results of `compile_table.py`, which give the chips that play.
    """
    rows = [
        (
            f"`{arguments}`",
            f"{found['moves_per_s']:,.0f}",
            _chips_that_play(found["evaluations_per_s"], arguments, compiled),
            f"{found['server_chips']:,} and {found['server_cores']:,} cores",
        )
        for arguments, found in measured["experiments"].items()
    ]
    return [
        *table(("experiment", "moves/s", "chips that play", "or chips of servers"), rows),
        "",
        f"`{measured['command']}`: chips by the compiler's estimates, cores by moves/s that were measured "
        f"({machine(measured)}, {measured['date']}).",
    ]


def _chips_that_play(evaluations_per_s: float, config: str, compiled: Mapping[str, Json]) -> str:
    """The number of chips that reach these evaluations/s, and the best number of games for a chip."""
    rates = {
        next(one["batch"] for one in report["programs"] if one["name"] == "device"): report["evaluations_per_s"]
        for key, result in compiled.items()
        if key.startswith(f"{config} ") and "int8" not in key and "evaluations_per_s" in (report := result["report"])
    }
    games = max(rates, key=lambda games: rates[games])
    return f"{math.ceil(evaluations_per_s / rates[games]):,} with {games:,} games each"


def _server_row(bench: Json) -> Row:
    (experiment,) = re.findall(r"--config (\S+)", bench["command"])
    shares = [
        f"{found['share_of_device']:.2f} ({found['share_of_transport']:.2f})"
        for found in bench["result"]["actors"].values()
    ]
    return f"`{experiment}`", *shares


# docs/results.md: placements.


def placements(runs: Mapping[str, Json]) -> list[str]:
    """The table of runs with each placement, from `benchmarks/placements.py`."""
    rows = [
        (
            f"`{name}`",
            f"{run['seconds'] / 60:.1f} minutes",
            f"{run['keeps_value']:.1%} ({run['interval'][0]:.1%} to {run['interval'][1]:.1%})",
        )
        for name, run in runs.items()
    ]
    first = next(iter(runs.values()))
    return [
        "All placements learn alike within their intervals: "
        f"{first['steps']:,} learner steps of connect four with each "
        f"(`uv run --group dev python benchmarks/placements.py runs/placements`; {machine(first)}, {first['date']}).",
        "",
        *table(("`actors.inference`", "time", "moves that keep the game's value"), rows),
    ]


# docs/results.md: simulated tournaments.


def simulated(found: Json) -> list[str]:
    """The table of coverage, and a sentence about the saved games, from `benchmarks/results/tournaments.json`."""
    result = found["result"]
    kinds = ("tournaments of", "interval used", "Fisher", "bootstrap", "half-width")
    ratios = [kind["ratio"] for kind in result["saving"].values()]
    return [
        f"How often 95% intervals hold the true rating, in {result['tournaments']:,} simulated tournaments of each "
        f"kind ({result['few']:,} for the other two intervals), and the median half-width in Elo points:",
        "",
        *table(kinds, [_coverage(name, kind) for name, kind in result["intervals"].items()]),
        "",
        f"Choosing matches by information needs {min(ratios):.2f} to {max(ratios):.2f} of a round robin's games for "
        f"intervals of {result['until']:g} Elo points (`{found['command']}`; {found['hardware']}; {found['date']}).",
    ]


def _coverage(name: str, kind: Json) -> Row:
    methods = kind["methods"]
    shares = {method: f"{100 * one['coverage']:.1f}%" for method, one in methods.items()}
    half = f"{methods['used']['half_interval']:.0f}"
    return name, f"**{shares['used']}**", shares["fisher"], shares["percentile"], half


# README.md


def headline(results: Mapping[str, Json]) -> list[str]:
    """The table of what two CPU cores reach, from the results of each experiment."""
    four, small_agent, lander = (results[name] for name in ("connect_four", "zoo_connect_four", "lunar_lander"))
    kept = {match["drawn"]: match for match in small_agent["matches"]}
    random, go = four["baselines"]["random"], results["go_9x9_hour"]["result"]
    harder = next(match for match in results["go_9x9_hour"]["matches"] if match["opponent"] == "gnugo:10")
    returns = sorted(run["result"]["mean_return"] for run in results["cartpole"]["runs"])
    needed = max(run["environment_steps_to_475"] for run in results["cartpole"]["runs"])
    landed = lander["runs"][0]["result"] if "runs" in lander else lander["result"]
    rows: list[Row] = [
        (
            "connect four, 20 minutes",
            f"{_kept(four['result'])} of moves keep the game's value (win, draw or loss under perfect play); uniformly "
            f"random moves: {_percent(random)}",
        ),
        (
            "the agent `zoo:connect_four`, two hours",
            f"{_kept(kept['even'])}; in positions of strong games {_kept(kept['games'])}",
        ),
        (
            "Go on 9x9, 20 minutes on 7x7 and 40 on 9x9",
            f"**{100 * go['score']:.1f}%** in {go['games']} games against GNU Go at level 1, "
            f"**{100 * harder['score']:.0f}%** in {harder['games']} at level 10, with 64 simulations",
        ),
        (
            f"CartPole by Gumbel MuZero, {results['cartpole']['minutes']:g} minutes",
            f"mean returns of {len(returns)} seeds: {', '.join(f'**{mean:.1f}**' for mean in returns)} (of 500); 475 "
            f"first reached after at most {needed:,} environment steps",
        ),
        (
            f"LunarLander by Gumbel MuZero, {lander['minutes']:g} minutes",
            f"mean return **{landed['mean_return']:.0f}**; 200 counts as solved",
        ),
    ]
    return table(("trained on two CPU cores", "result"), rows)


def judgements(results: Mapping[str, Json]) -> list[str]:
    """A paragraph about the larger network, and about how much runs differ."""
    return [
        "`connect_four_int8` trains a larger network in the same 20 minutes: "
        f"{_kept(results['connect_four_int8']['result'])}. Other machines reached "
        f"{_repeated(results, 'connect_four')} and {_repeated(results, 'connect_four_int8')}. "
        "[docs/results.md](docs/results.md) says how each result was measured, "
        "[docs/ablations.md](docs/ablations.md) what each choice changes."
    ]


def _repeated(results: Mapping[str, Json], name: str) -> str:
    """What other runs of an experiment reached, judged like the one in the table."""
    drawn = results[name]["result"]["drawn"]
    runs = [run for run in results[name]["elsewhere"] if (run["drawn"], run["simulations"]) == (drawn, 32)]
    return f"{' and '.join(_percent(run) for run in runs)} (`{name}`)"


def _kept(result: Json) -> str:
    low, high = (f"{100 * bound:.1f}" for bound in result["interval"])
    return f"**{_percent(result)}** ({low} to {high})"


def _percent(result: Json) -> str:
    return f"{100 * result['keeps_value']:.1f}%"


if __name__ == "__main__":
    main()
