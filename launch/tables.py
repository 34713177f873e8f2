"""The results of `evaluate`, `info` and `export` for people: words and a few digits. `--json` has all of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from podzero.launch.options import print_rows, print_tables
from podzero.runtime.monitoring.status import duration
from podzero.tools.report.figures import ReportTable

if TYPE_CHECKING:
    from podzero.tools.report.info import AgentInfo

Rows = list[tuple[str, str]]
"""Lines of a label and a text; a line without a label continues the one above."""
_MANY = 100
"""From this number of trials on, percentages have a decimal."""


def print_evaluation(found: Mapping[str, Any]) -> None:
    """Prints what `evaluate` returned."""
    if "bands" in found:
        print_tables([judgement_table(found)])
    else:
        print_rows(episode_rows(found) if "episodes" in found else match_rows(found))


def share(value: float, trials: int, interval: Sequence[float] = ()) -> str:
    """A share of `trials` in percent, with its 95% interval if that is given."""
    digits = 1 if trials >= _MANY else 0
    ends = " to ".join(f"{100 * end:.{digits}f}" for end in interval)
    return f"{100 * value:.{digits}f}%" + (f" ({ends}%)" if ends else "")


def match_rows(found: Mapping[str, Any]) -> Rows:
    """The rows of one match, or of the matches against several opponents."""
    rows = [("player", found["player"]), ("game", found["game"])]
    for opponent, one in found.get("matches", {found.get("opponent"): found}).items():
        counts = [f"{one['wins']:,} won", f"{one['draws']:,} drawn" if one["draws"] else "", f"{one['losses']:,} lost"]
        score = share(one["score"], one["games"], one["interval"])
        rows.append((f"against {opponent}", f"{', '.join(filter(None, counts))}: {score}"))
        if one["records"]:
            rows.append(("games", one["records"]))
    return rows


def judgement_table(found: Mapping[str, Any]) -> ReportTable:
    """The table of a solver's judgement: a row for all plies and for each band of them."""
    network = found.get("network")
    parts = [(name.removeprefix("plies "), one) for name, one in found["bands"].items()]
    alone = network and [network, *network["bands"].values()]
    rows = []
    for row, (plies, one) in enumerate([("all", found), *parts]):
        shares = [text for judged in ([one, alone[row]] if alone else [one]) for text in _judged(judged)]
        rows.append((plies, f"{one['positions']:,}", *shares))
    alone_header = ("network: keeps the value", "best") if network else ()
    return ReportTable(
        f"{found['player']} in {found['game']}, judged by perfect play: how many moves keep the game's value, with the "
        "95% interval, and how many are among the best"
        + ("; with search, then the network's most probable moves without." if network else "."),
        ("plies", "positions", "keeps the value", "best", *alone_header),
        rows,
    )


def _judged(one: Mapping[str, Any]) -> tuple[str, str]:
    positions = one["positions"]
    return share(one["keeps_value"], positions, one["interval"]), share(one["exact"], positions)


def episode_rows(found: Mapping[str, Any]) -> Rows:
    """The rows of episodes."""
    mean = _number(found["mean_return"])
    if found["interval"] is not None:
        mean += f" (95%: {' to '.join(map(_number, found['interval']))})"
    rows = [
        ("player", found["player"]),
        ("game", found["game"]),
        ("episodes", f"{found['episodes']:,}"),
        ("mean return", mean),
        ("standard deviation", _number(found["std_return"])),
    ]
    if "mean_length" in found:
        rows.append(("mean length", f"{_number(found['mean_length'])} steps"))
    if found.get("failures"):
        rows.append(("failed", f"{found['failures']:,} episodes, which were repeated"))
    return rows


def agent_rows(found: AgentInfo) -> Rows:
    """The rows of what is known of an agent."""
    settings = {name: value for name, value in found.network.items() if name != "name"}
    network = [found.network["name"], *(f"{name} {value}" for name, value in settings.items())]
    if found.parameters is not None:
        network.append(f"{found.parameters:,} parameters")
    trained = [] if found.hours is None else [duration(3600 * found.hours)]
    counts = (found.step, "steps"), (found.samples, "samples"), (found.games, "games")
    trained += [f"{count:,} {what}" for count, what in counts if count is not None]
    strength = [(f"at step {found.strength['step']:,.0f}", list(_measures(found.strength)))] if found.strength else []
    several: list[tuple[str, Sequence[str | None]]] = [
        ("agent", [found.who]),
        ("experiment", [found.experiment]),
        ("game", [found.game]),
        ("network", [", ".join(network)]),
        ("snapshot", [None if found.snapshot is None else f"of step {found.snapshot:,}"]),
        ("trained for", [", ".join(trained)]),
        ("from", [found.began]),
        ("to", [found.reached]),
        ("state", [found.state]),
        ("podzero", [found.podzero]),
        ("hardware", found.hardware or ()),
        *strength,
        ("extends", [found.extends]),
        ("init_from", [found.init_from]),
        ("teacher", [found.teacher]),
        ("own code", [_code(one) for one in found.own_code or ()]),
        ("command", [found.command]),
        ("judged", found.judged or ()),
    ]
    rows = []
    for label, texts in several:
        known = [text for text in texts if text]
        rows += list(zip([label, *[""] * (len(known) - 1)], known, strict=False))
    return rows


def _measures(found: Mapping[str, float]) -> Iterator[str]:
    """What an evaluation measured, in words."""
    if "elo" in found:
        error = f" ± {found['elo_error']:.0f}" if "elo_error" in found else ""
        yield f"Elo {found['elo']:.0f}{error} (random play has 0)"
    if "keeps_value" in found:
        positions = int(sum(count for name, count in found.items() if name.startswith("positions_")))
        of = f"{positions:,} positions" if positions else "positions"
        yield f"keeps the game's value in {100 * found['keeps_value']:.1f}% of {of}"
    for name, score in found.items():
        opponent = name.removeprefix("score_")
        if opponent != name and (games := int(found.get(f"games_{opponent}", 0))):
            against = "earlier snapshots" if opponent == "earlier" else opponent
            yield f"{share(score, games)} in {games:,} games against {against}"
    if "mean_return" in found:
        spread = f" (standard deviation {_number(found['std_return'])})" if "std_return" in found else ""
        over = f" in {found['episodes']:,.0f} episodes" if "episodes" in found else ""
        yield f"mean return {_number(found['mean_return'])}{spread}{over}"


def _code(one: Mapping[str, Any]) -> str:
    digest = f"SHA-256 {one['sha256'][:12]}" if one["sha256"] else "no file"
    return f"{one['path']} ({digest}, {'as recorded at the start' if one['recorded'] else 'as it is now'})"


def export_rows(found: Mapping[str, Any]) -> Rows:
    """The rows of exported files."""
    about, (first, *more) = found["metadata"], found["files"]
    shape = " x ".join(map(str, about["observation_shape"]))
    actions = about["actions"]
    what = f"{actions:,} actions" if isinstance(actions, int) else f"actions {' x '.join(map(str, actions))}"
    output, difference = max(found["differences"].items(), key=lambda item: item[1])
    sizes = ", ".join(map(str, found["batch_sizes"]))
    return [
        ("files", first),
        *(("", file) for file in more),
        ("agent", found["player"]),
        ("game", about["game"]),
        ("network", f"{about['network']}: observation {shape} {about['observation_dtype']}, {what}"),
        ("step", f"{about['step']:,}"),
        ("podzero", about["podzero"]),
        (
            "checked",
            f"on batches of {sizes}: differs from JAX by at most {difference:.2g} ({output}); {found['bound']:g} is "
            "allowed",
        ),
    ]


def _number(value: float) -> str:
    """A return or a length, with a decimal; with two below 10."""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"
