"""How fast the parts of an experiment are by themselves: what was compiled or measured, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from podzero.config import Experiment
from podzero.core.errors import ConfigError
from podzero.files.workdir import Workdir, read_json
from podzero.runtime.monitoring.status import RunStatus, read_status
from podzero.tools.compile.waiting import known_rates, settings_of

_LEAST_S = 60.0
"""The shortest training from which rates are taken."""


class Rates(NamedTuple):
    """What each part does by itself; None is unknown."""

    step_s: float | None = None
    moves_per_s: float | None = None
    """Moves/s of an actor, or of a JAX device that plays."""
    samples_per_move: float | None = None
    plies: float | None = None
    """The mean length of a game."""
    memory: float | None = None
    """Share of a device's memory that the largest program needs."""
    start_s: float | None = None
    """Seconds of a start until all processes work, with compilation."""
    cores: float | None = None
    """The CPU cores of a machine without accelerators, on which all processes were measured."""


def find_rates(experiment: Experiment, names: Sequence[str]) -> Rates:
    """What `names`, reports of `podzero compile --json` and working directories, and stored figures say; the first
    counts. Raises `ConfigError` if one is of another experiment, or what is needed in none.
    """
    found = [(of_run if Path(name).is_dir() else of_report)(experiment, name) for name in names]
    if (known := known_rates(experiment)) is not None:
        found.append(Rates(experiment.learner.batch_size / known.samples_per_s, known.chip_moves_per_s))
    rates = Rates(*(next((one for one in each if one is not None), None) for each in zip(Rates(), *found, strict=True)))
    actors, where, name = experiment.actors, experiment.cluster.slice, experiment.name
    compiled = f"`podzero compile {name} --topology {where} --json > FILE` with these settings; then add --rates FILE"
    measured = f"`podzero train {name} --workdir DIR stop.minutes=3` with these settings; then add --rates DIR"
    if rates.step_s is None:
        raise ConfigError(f"the time of a learner step is unknown: {compiled if where else measured}")
    if rates.moves_per_s is None and experiment.has_self_play:
        on_tpu = where and actors.inference == "device" and set(actors.resources) <= {"TPU"}
        raise ConfigError(f"the moves/s of an actor are unknown: {compiled if on_tpu else measured}")
    return rates


def of_report(experiment: Experiment, name: str) -> Rates:
    """The rates in a report of `podzero compile --json`."""
    report, where = read_json(Path(name)), experiment.cluster.tpu
    wanted = (experiment.name, where and where.topology, experiment.cluster.slices)
    if where is None or tuple(map(report.get, ("config", "topology", "slices"))) != wanted:
        raise ConfigError(
            f"--rates {name}: expected a working directory, or what `podzero compile {experiment.name} --topology "
            f"{where and where.short_name} --json` prints; found {report.get('config')} on {report.get('topology')}"
        )
    programs: dict[str, Any] = {program["name"]: program for program in report["programs"]}
    learner, step_s = programs.get("learner"), None
    if learner and learner["batch"] != experiment.learner.batch_size:
        raise ConfigError(f"--rates {name}: learner.batch_size was {learner['batch']} when it was compiled")
    if learner and learner.get("estimated_seconds"):
        step_s = (learner["estimated_seconds"] + learner["seconds"]["links"]) / learner["trip_count"]
    moves_per_s, actors = report.get("moves_per_s"), experiment.actors
    devices = actors.resources.get("TPU", 0.0) * where.chip.devices if actors.resources else 1.0
    return Rates(
        step_s,
        moves_per_s * devices if moves_per_s and devices and actors.inference == "device" else None,
        plies=programs.get("device", {}).get("plies"),
        memory=max(program["bytes_per_chip"] / program["hbm_per_chip"] for program in programs.values()),
    )


def of_run(experiment: Experiment, name: str) -> Rates:
    """The rates of a run with equal settings; those of its learner only if it trains on the same slice."""
    workdir, where = Workdir(name), f"--rates {name}: that run"
    run, status = workdir.experiment(), read_status(workdir).status
    ours, theirs = (settings_of(one) | {"actors.cpus": one.actors.cpus} for one in (experiment, run))
    differ = {name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)}
    if others := sorted(differ - {"learner", "slice", "slices"}):
        raise ConfigError(f"{where} has other settings ({', '.join(others)}); `podzero diff` shows them")
    paid_s, busy, cores = status.paid_s, status.shares.get("device", {}), None
    if status.elapsed_s < _LEAST_S or not (status.step and paid_s.get("training")):
        raise ConfigError(f"{where} has trained for less than {_LEAST_S:g} s; train longer")
    if not run.actors.beside_learner:
        step_s, moves_per_s, cores = _apart(run, status, read_json(workdir.hardware_file).get("nodes", ()))
    elif busy.get("play") and status.steps_per_s:
        step_s = busy["train"] / status.steps_per_s
        moves_per_s = status.moves_per_s / busy["play"] / (status.chips or 1)
    else:
        raise ConfigError(f"{where} has chips that do nothing now; give it while the run trains")
    return Rates(
        step_s=None if differ else step_s,
        moves_per_s=moves_per_s,
        samples_per_move=status.samples / max(status.moves, 1),
        plies=status.moves / status.games if status.games else None,
        memory=(status.hbm_peak_bytes or 0.0) / status.hbm_limit_bytes if status.hbm_limit_bytes else None,
        start_s=paid_s.get("start", 0.0) + paid_s.get("compile", 0.0),
        cores=cores,
    )


def _apart(run: Experiment, status: RunStatus, nodes: Sequence[Any]) -> tuple[float, float, float | None]:
    """Seconds of a step, moves/s of an actor and shared cores of a run whose actors have processes of their own."""
    training, stages = status.paid_s["training"] / status.elapsed_s, status.shares.get("actor", {})
    playing = max(0.01, 1.0 - stages.get("write", 0.0) - stages.get("wait_params", 0.0))
    # The limiter holds what is made and what is learned from together.
    moves = status.step * run.batch_parts.fresh / run.replay.samples_per_insert * status.moves / max(status.samples, 1)
    step_s, moves_per_s = status.paid_s["training"] / status.step, moves / status.elapsed_s / run.actors.count / playing
    if len(nodes) != 1 or nodes[0]["accelerators"]:
        return step_s, moves_per_s, None
    # Training wants all cores, an actor its threads: what they took from each other on one machine is given back.
    cores, threads, count = float(nodes[0]["cpus"]), max(1, round(run.actors.cpus)), run.actors.count
    wanted = threads * (1 + (count - 1) * playing)  # while an actor plays, with the others
    speed = (1 - training) * min(1.0, cores / wanted) + training * cores / (wanted + cores)
    return step_s * cores / (cores + count * playing * threads), moves_per_s / speed, cores
