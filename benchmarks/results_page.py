"""Writes docs/results.md: what each experiment has reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from podzero.benchmarks.markdown import Row, table

Json = Mapping[str, Any]

METHOD = """\
Every row is one evaluation, after one training run from nothing unless it says `none`. Intervals are 95% confidence
intervals over the positions, games or episodes of that evaluation, not over seeds of the training, which differ as well
([ablations.md](ablations.md)). `uv run --group dev python benchmarks/pages.py` writes this page from
`benchmarks/results/`.

A solver judges positions that uniformly random moves reach, but for the last kind below; finished games, and positions
in which all legal moves have the same value, are left out. Shares of differently drawn positions cannot be compared; a
row says how its own were drawn:

- even over the plies: distinct positions, as many of each ply from 0 to 30 as of the others (the first plies have
  fewer).
- early plies more frequent: distinct positions at a ply drawn from 0 to 30, drawn again where the game was over.
- early plies more frequent, repeated: the same, but a position could be drawn again. The interval is that of
  as many positions as carry the same information.
- of strong games: those of 400 games between `zoo:connect_four` with 64 simulations and perfect play.

In rows measured before 2026-11-24, `mcts:N` is a weak opponent where there are many moves: it counted unvisited moves
as losses, and tried few of the moves of Go. In matches each opening is played from both sides."""


DRAWN = {
    "even": "even over the plies",
    "distinct": "early plies more frequent",
    "repeated": "early plies more frequent, repeated",
    "games": "of strong games",
}
"""How the positions of a judgement were drawn, by `drawn` of a result."""

STUDIES = {
    "warm_start": "Go 9x9 after 45 minutes, from 30 minutes of 7x7: 191 of 200 games won against a run from nothing",
    "distillation": "Connect four with a teacher whose moves keep the value in 98.3%: 96.2% after 29 minutes",
    "records": "50,000 recorded games of connect four: 92.7% of moves keep the value after five minutes",
    "cartpole_offline": "MuZero from 300 recorded CartPole episodes of 121 on average: 495 after three minutes",
    "rubiks_cube": "Jumanji's cube, scrambled by seven turns, after 18 minutes: 86.5% of 400 episodes are solved, "
    "with 200 simulations 98.0%",
    "gymnax_cartpole": "gymnax's CartPole after 5 minutes: 500 steps in all of 100 episodes",
    "backgammon": "Backgammon after 20 minutes: 200 of 200 games won against `random`; another run, 18 minutes on one "
    "core: 4 of 200 against `gnubg:0`",
    "2048": "2048 after 20 minutes of one core and 0.5 million steps: 12,699 points with 16 simulations, random play "
    "1,094; LightZero is said to earn 50,000 after 2 million",
    "go_komi": "Go 7x7 with many komis, after 15 minutes: 91 of 200 games won at 7.5 against an agent of 7.5 alone",
    "three_players": "`configs/own_three_players.py` after six minutes: 199 of 200 games won against `random`",
    "own_jax_game": "`configs/own_jax_game.py` on 8x8: 0.98 times the moves/s of Othello with the same network",
    "own_network": "The network of own_network.md after ten minutes: 90.8% of moves keep the value (1,000 positions)",
    "plan": "`podzero plan`: learner steps/s 3 to 5% too high with one, two and four actors on two cores, 11% with a "
    "slow node, 0.2% with a stand-in for a v5e chip",
    "transports": "GB/s between two processes: ZeroMQ by TCP 3.93, by IPC 4.56; gRPC 1.85; shared memory 15.93; Ray "
    "0.23",
    "agents": "10,000 stand-in actors on 313 nodes: a round of the driver's loop takes 1.0 s in the median (pause "
    "0.5 s included), metrics 0.18 GB a week",
}
"""What each study found, by its file in `benchmarks/results`."""


def page_of_results(experiments: Mapping[str, Json], pairs: Json, bought: Json) -> str:
    """The page.

    Args:
      experiments: the files of `benchmarks/results`, by the name of the experiment, in the order of the rows.
      pairs: `paired.json` there.
      bought: `what_search_buys.json` there.
    """
    header = ("experiment", "training", "result", "commands", "measured")
    rows = [row for name, results in experiments.items() for row in result_rows(name, results)]
    said = [without_search(experiments["ppo_breakout"], pairs), "", in_connect_four(bought)]
    return "\n".join(["# Results", "", METHOD, "", *table(header, rows), "", *said, ""])


def without_search(ppo: Json, pairs: Json) -> str:
    """A sentence about MinAtar's Breakout with search and without, on one core."""
    (searched,) = (found for found in pairs["comparisons"] if "minatar_breakout" in found["on"])
    with_search = sorted(pair["default"]["score"] for pair in searched["pairs"])
    without = sorted(run["result"]["mean_return"] for run in ppo["runs"])
    return (
        f"What search buys in Breakout for equal time: nothing. On one core, {len(without)} seeds of `docs/ppo.py` get "
        f"{_listed(without)} in {ppo['minutes']} minutes, {len(with_search)} seeds of `minatar_breakout` "
        f"{_listed(with_search)} in 16 (`paired.json`): without search an actor takes some twenty times as many steps."
    )


def in_connect_four(bought: Json) -> str:
    """A sentence about connect four, learned with search and without."""
    shares = {
        (way, measure): _listed([100 * pair[way][measure] for pair in bought["pairs"]])
        for way in ("with_search", "without")
        for measure in ("keeps_value", "network_alone")
    }
    with_search, without = (
        f"{shares[way, 'keeps_value']}%, and the network alone in {shares[way, 'network_alone']}%"
        for way in ("with_search", "without")
    )
    return (
        "What search buys in connect four for equal time: on a core, a search of 32 simulations keeps the game's value "
        f"after {bought['minutes']} minutes of self-play by search in {with_search} of {bought['positions']:,} "
        f"positions; after as many of `docs/ppo.py` in {without} ({len(bought['pairs'])} seeds each; "
        "`benchmarks/results/what_search_buys.json`)."
    )


def _listed(means: Sequence[float]) -> str:
    return ", ".join(f"{mean:.1f}" for mean in means)


def studies(results: Mapping[str, Json]) -> list[str]:
    """The table of `STUDIES`, from their files by name."""
    rows = []
    for name, said in STUDIES.items():
        found = results[name]
        rows.append((f"`benchmarks/results/{name}.json`", said, _measured(found.get("half_hour", found))))
    return table(("study", "result", "measured"), rows)


def result_rows(name: str, results: Json) -> list[Row]:
    """The rows of one experiment: each training run, further opponents, and baselines."""
    runs = results.get("runs", [results])
    name, measured = results.get("player", name), _measured(results)
    rows: list[Row] = [
        (f"`{name}`", _training(results, run), _outcome(run), _commands(results), measured) for run in runs
    ]
    rows += [
        (
            f"`{name}`",
            match.get("run", "the same run"),
            _reached(match),
            _commands(match),
            _measured({**results, **match}),
        )
        for match in results.get("matches", [])
    ]
    baselines = results.get("baselines", {})
    command = _commands(baselines) if "command" in baselines else ""
    return rows + [
        (f"`{name}`", f"none: {player}", _reached(found), command, measured)
        for player, found in baselines.items()
        if player != "command"
    ]


def _measured(results: Json) -> str:
    return f"{results['hardware']}; {results['date']}"


def _training(results: Json, run: Json) -> str:
    """How long a run was, and what it did."""
    done = {"steps": "learner steps", "learner_steps": "learner steps", "games": "games",
            "environment_steps": "environment steps"}  # fmt: skip
    counts = [f"{run[key]:,} {words}" for key, words in done.items() if key in run]
    seed = [f"seed {run['seed']}"] if "seed" in run else []
    first = [f"first game after {results['first_game_seconds']} s"] if "first_game_seconds" in results else []
    lost = [f"lost: {results['lost']}"] if "lost" in results else []
    return ", ".join([f"{results['minutes']:g} minutes", *seed, *counts, *first, *lost])


def _outcome(run: Json) -> str:
    if "result" not in run:
        return _throughput(run)
    if "judged_seconds_step_return" not in run:
        return _reached(run["result"])
    best, seconds = max((mean, -seconds) for seconds, _, mean in run["judged_seconds_step_return"])
    first = run.get("environment_steps_to_475")
    return (
        f"{_reached(run['result'])}; best evaluation during training {best:,.1f}, after {-seconds / 60:.1f} minutes"
        + (f"; the first of at least 475 after {first:,} environment steps" if first else "")
    )


def _reached(result: Json) -> str:
    """An evaluation, in words."""
    if "openings" in result:
        return f"**{result['openings']['right']} of 49** openings answered as perfect play answers them"
    if "episodes" in result:
        what = f"mean return **{result['mean_return']:,.1f}** over {result['episodes']:,} episodes"
        return what + _interval(result, 1, "")
    if "opponent" in result:
        return (
            f"score **{100 * result['score']:.1f}%** in {result['games']} games against `{result['opponent']}`: "
            f"{_record(result)}{_interval(result, 1, '%')}"
            + "".join(f"; moving {side}: {_record(found)}" for side, found in result.get("by_side", {}).items())
        )
    drawn = f" ({DRAWN[result['drawn']]})" if "drawn" in result else ""
    positions = f" of {result['positions']:,} positions{drawn}" if "positions" in result else ""
    bands = [f"{100 * band['keeps_value']:.1f}% in {plies}" for plies, band in result.get("bands", {}).items()]
    return (
        f"**{100 * result['keeps_value']:.1f}%** of moves{positions} keep the game's value{_interval(result, 1, '%')}"
        + (": " + ", ".join(bands) if bands else "")
    )


def _record(match: Json) -> str:
    return f"{match['wins']} won, {match['draws']} drawn, {match['losses']} lost"


def _throughput(run: Json) -> str:
    """A run that was measured and not evaluated."""
    rates = run["last_minute_of_training"]
    memory = run["unique_memory_mib"]
    most = {role: max(entry[role] for entry in memory if role in entry) for role in ("actor", "learner", "replay")}
    return (
        f"not evaluated: {rates['environment_steps_per_s']:g} environment steps/s with {run['simulations']} "
        f"simulations each, {rates['learner_steps_per_s']:g} learner steps/s; unique memory at most "
        + ", ".join(f"{mib:,} MiB ({role})" for role, mib in most.items())
    )


def _interval(result: Json, digits: int, unit: str) -> str:
    if "interval" not in result:
        return ""
    low, high = (100 * bound if unit == "%" else bound for bound in result["interval"])
    return f" ({low:,.{digits}f} to {high:,.{digits}f}{unit})"


def _commands(results: Json) -> str:
    return "; ".join(f"`{command}`" for command in results["command"].split(" && "))
