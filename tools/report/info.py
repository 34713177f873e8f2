"""What a trained agent is and how it came about: network, steps, hours, hardware, strength, origin."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from podzero.config import Experiment, OwnFile
from podzero.core.errors import ConfigError
from podzero.core.importing import file_digest, place_of
from podzero.files.players import PREFIX, TrainedPlayer, parse_player, zoo_card
from podzero.files.workdir import Workdir, step_folders
from podzero.runtime.monitoring.status import RunStatus, duration
from podzero.tools.commands.printing import Rows, measure, share
from podzero.tools.report.figures import MetricCurves
from podzero.tools.report.record import Record, RunReader, node_cells
from podzero.tools.report.sections import Evaluations


def agent_info(who: str) -> dict[str, Any]:
    """What is known of a run (`DIR`, its newest state), a snapshot (`DIR@STEP`) or an agent of the zoo (`zoo:NAME`).

    Returns:
      `who`; names of the `experiment` and the `game`; the `network` (its name, and settings other than the defaults);
      numbers in its `parameters`, and the step of the `snapshot` that they are of, the newest one of a run; the `step`
      that the following are of: that of the run, if `who` is one, else of the snapshot; the `samples` and `games` of
      the actors and the `hours` of training until then, without pauses; in local time, when the first metrics were
      written (`began`) and the step was `reached`; the run's `state` in words; the version or commit of `podzero` that
      trained it last; the driver's processor and each node (`hardware`); the `strength`, what the newest evaluation up
      to the step measured, as in `evaluation/...` of the metrics, with its `step`; the experiments that its own
      `extends`; the agents that it began with (`init_from`) and learns from (`teacher`); `own_code`; and of an agent
      of the zoo, the `command` that trained it and how it was `judged`. What is not recorded is None.
    """
    player = parse_player(who)
    if not isinstance(player, TrainedPlayer):
        raise ConfigError(
            f"'{who}' has not been trained, so nothing is recorded of it; expected a working directory as DIR or "
            "DIR@STEP (`podzero runs` lists them), or zoo:NAME (`podzero zoo`)"
        )
    record = RunReader(player.workdir).read()
    card = zoo_card(who.removeprefix(PREFIX)) if who.startswith(PREFIX) else {}
    snapshots = step_folders(player.workdir.snapshots)
    snapshot = player.step if player.step is not None else next(reversed(snapshots), None)
    status = record.status.status if player.step is None and record.status else None
    step = status.step if status else snapshot or 0
    metrics = MetricCurves(record.history)
    inheritance, network = record.inheritance, record.experiment.network
    return {
        "who": who,
        "experiment": record.experiment.name,
        "game": record.experiment.env.title,
        "network": {"name": network.name} | network.model_dump(mode="json", exclude_defaults=True),
        "parameters": None if snapshot is None else _parameters(player.workdir, snapshot),
        "snapshot": snapshot,
        "step": step,
        **_progress(record, metrics, step, status),
        **({"games": card["games"]} if card else {}),
        "state": record.status.summary if record.status else None,
        **_hardware(record, card),
        "strength": _strength(Evaluations(metrics, record.ladder), step),
        "extends": inheritance.lineage if inheritance else None,
        "init_from": record.experiment.init_from,
        "teacher": record.experiment.teacher,
        "own_code": own_code(record.experiment),
        "command": card.get("command"),
        "judged": card.get("judged", []),
    }


def own_code(experiment: Experiment) -> list[dict[str, Any]]:
    """The code of the user's own that an experiment names: its environment, `own_parts`, and wrappers.

    Returns:
      of each, `path`, the import path, such as `/home/me/my_net.py:MyNet`; `sha256` of the file, None for a module and
      for a file that is not there; whether the run `recorded` it at its start: else it is of the file as it is now.
    """
    env = experiment.env
    own: list[OwnFile] = [*([env] if isinstance(env, OwnFile) else []), *experiment.own_parts.values()]
    recorded = {part.import_path: part.sha256 for part in own if part.sha256}
    named = [*(part.import_path for part in own), *(wrapper.name for wrapper in getattr(env, "wrappers", ()))]
    return [
        {"path": path, "sha256": recorded.get(path) or file_digest(place_of(path)), "recorded": path in recorded}
        for path in dict.fromkeys(named)
        if ":" in path or path.endswith(".py")  # not what a library has by name
    ]


def _parameters(workdir: Workdir, step: int) -> int:
    # Imports JAX, which takes seconds.
    import jax

    from podzero.networks.snapshots import load_snapshot

    return sum(leaf.size for leaf in jax.tree.leaves(load_snapshot(workdir.snapshots, step).params))


def _progress(record: Record, metrics: MetricCurves, step: int, status: RunStatus | None) -> dict[str, Any]:
    """The fields `samples`, `games`, `hours`, `began` and `reached`; `status` is that of the run, if `who` is one."""
    samples = games = hours = began = reached = None
    if record.history.workers:
        moments = metrics.timeline.moments(step)
        began, reached = (time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(moment)) for moment in moments)
        written = record.history.values("actor", "count/samples")
        at = metrics.timeline.at_steps(np.array([float(step)]))
        hours = float(at.hours[0])
        if len(written.values):  # the metrics of an agent that comes with podzero may lack them
            samples, games = int(written.values[written.times <= moments[1]].sum()), int(at.games[0])
    if status is not None:
        samples, games, hours = status.samples, status.games, status.elapsed_s / 3600
    hours = hours and round(hours, 4)
    return {"samples": samples, "games": games, "hours": hours, "began": began, "reached": reached}


def _hardware(record: Record, card: Mapping[str, Any]) -> dict[str, Any]:
    """The fields `podzero` and `hardware`."""
    if card:
        return {"podzero": f"commit {card['commit']}", "hardware": [str(card["hardware"])]}
    found = record.hardware.get("driver")
    driver = {name: str(value) for name, value in found.items()} if isinstance(found, dict) else {}
    nodes = node_cells(record.hardware)
    machines = [f"{host}: {cpus} CPUs, {gib} GiB, accelerators: {kinds}" for host, cpus, gib, kinds in nodes]
    return {"podzero": driver.get("podzero"), "hardware": [*filter(None, [driver.get("processor")]), *machines]}


def _strength(rounds: Evaluations, step: int) -> dict[str, float]:
    """The metrics of the newest evaluation up to a step."""
    newest = max((found for found in rounds.steps if found <= step), default=None)
    return {} if newest is None else {"step": newest, **dict(sorted(rounds.by_step[newest].items()))}


def agent_rows(found: Mapping[str, Any]) -> Rows:
    """The rows of what is known of an agent, see `agent_info`."""
    settings = dict(found["network"])
    network = [settings.pop("name"), *(f"{name} {value}" for name, value in settings.items())]
    if found["parameters"] is not None:
        network.append(f"{found['parameters']:,} parameters")
    trained = [] if found["hours"] is None else [duration(3600 * found["hours"])]
    counts = {"steps": found["step"], "samples": found["samples"], "games": found["games"]}
    trained += [f"{count:,} {what}" for what, count in counts.items() if count is not None]
    snapshot, strength = found["snapshot"], found["strength"] or {}
    several: list[tuple[str, str | Iterable[str] | None]] = [
        ("agent", found["who"]),
        *((name, found[name]) for name in ("experiment", "game")),
        ("network", ", ".join(network)),
        ("snapshot", None if snapshot is None else f"of step {snapshot:,}"),
        ("trained for", ", ".join(trained)),
        ("from", found["began"]),
        ("to", found["reached"]),
        *((name, found[name]) for name in ("state", "podzero", "hardware")),
        (f"at step {strength.get('step', 0):,.0f}", _measures(strength)),
        *((name, found[name]) for name in ("extends", "init_from", "teacher")),
        ("own code", map(_code, found["own_code"] or ())),
        *((name, found[name]) for name in ("command", "judged")),
    ]
    # Only the first line of several has the label.
    return [
        ("" if number else label, text)
        for label, value in several
        for number, text in enumerate(filter(None, [value] if isinstance(value, str) else value or ()))
    ]


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
        spread = f" (standard deviation {measure(found['std_return'])})" if "std_return" in found else ""
        over = f" in {found['episodes']:,.0f} episodes" if "episodes" in found else ""
        yield f"mean return {measure(found['mean_return'])}{spread}{over}"


def _code(one: Mapping[str, Any]) -> str:
    digest = f"SHA-256 {one['sha256'][:12]}" if one["sha256"] else "no file"
    return f"{one['path']} ({digest}, {'as recorded at the start' if one['recorded'] else 'as it is now'})"
