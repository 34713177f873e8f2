"""The figures in README.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podzero.markdown import Row, table

Json = Mapping[str, Any]


def headline(results: Mapping[str, Json]) -> list[str]:
    """The table of what two CPU cores reach.

    Args:
      results: the files of `benchmarks/results`, by the name of the experiment.
    """
    four, two_hours, lander = (results[name] for name in ("connect_four", "connect_four_two_hours", "lunar_lander"))
    labelled = next(match for match in two_hours["matches"] if match.get("drawn") == "even")
    perfect = next(match["by_side"] for match in two_hours["matches"] if "by_side" in match)
    random = four["baselines"]["random"]
    returns = sorted(run["result"]["mean_return"] for run in results["cartpole"]["runs"])
    landed = lander["runs"][0]["result"] if "runs" in lander else lander["result"]
    rows: list[Row] = [
        (
            "connect four, 20 minutes",
            f"{_kept(four['result'])} of moves keep the game's value (win, draw or loss under perfect play); uniformly "
            f"random moves: {_percent(random)}",
        ),
        (
            "connect four in int8, two hours",
            f"{_kept(labelled)}; with 800 simulations it won {_won(perfect['first'])} games against perfect play "
            f"moving first, and {_won(perfect['second'])} moving second",
        ),
        (
            f"CartPole by Gumbel MuZero, {results['cartpole']['minutes']:g} minutes",
            f"mean returns of {len(returns)} seeds: {', '.join(f'**{mean:.1f}**' for mean in returns)} (of 500)",
        ),
        (
            f"LunarLander by Gumbel MuZero, {lander['minutes']:g} minutes",
            f"mean return **{landed['mean_return']:.0f}**; 200 counts as solved",
        ),
    ]
    return table(("trained on two CPU cores", "result"), rows)


def judgements(results: Mapping[str, Json]) -> list[str]:
    """What the larger network reaches, and how far runs differ, in a paragraph."""
    return [
        "`connect_four_int8` trains a larger network in the same 20 minutes: "
        f"{_kept(results['connect_four_int8']['result'])}. Runs on other machines reached "
        f"{_repeated(results, 'connect_four')} and {_repeated(results, 'connect_four_int8')}. "
        "[docs/results.md](docs/results.md) says how each result was measured; "
        "[docs/ablations.md](docs/ablations.md) says what each choice changes."
    ]


def _repeated(results: Mapping[str, Json], name: str) -> str:
    """What other runs of an experiment reached, judged like the one that the table shows."""
    drawn = results[name]["result"]["drawn"]
    runs = [run for run in results[name]["elsewhere"] if (run["drawn"], run["simulations"]) == (drawn, 32)]
    return f"{' and '.join(_percent(run) for run in runs)} (`{name}`)"


def _kept(result: Json) -> str:
    low, high = (f"{100 * bound:.1f}" for bound in result["interval"])
    bands = ", ".join(f"{100 * band['keeps_value']:.1f}% in {plies}" for plies, band in result.get("bands", {}).items())
    return f"**{_percent(result)}** ({low} to {high}" + (f"; {bands})" if bands else ")")


def _percent(result: Json) -> str:
    return f"{100 * result['keeps_value']:.1f}%"


def _won(side: Json) -> str:
    return f"{side['wins']} of {side['games']}"
