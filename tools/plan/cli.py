"""The command `plan`: reads what it is about, simulates, and prints what comes of it."""

from __future__ import annotations

import math
from typing import Annotated, Any

import jax
import typer

from podzero.config import Experiment, load
from podzero.core.errors import ConfigError
from podzero.launch.targets.machines import cpu_pool, memory_gib, sample_bytes, tpu_hosts
from podzero.learner.build import learner_parts
from podzero.runtime.program import reserved_cpus
from podzero.tools.commands.options import Config, Json, Overrides
from podzero.tools.commands.printing import print_result
from podzero.tools.commands.trust import approve_code
from podzero.tools.compile.programs import bytes_of
from podzero.tools.plan.rates import Rates, find_rates
from podzero.tools.plan.simulation import Outcome, Players, System, simulate

_WORKER_CPUS = 16
"""CPUs of each machine for actors and replay, as `podzero launch` rents them by default."""
_FULL = 0.9
"""Share of the cores of a machine from which on they are the bottleneck."""


def plan(
    config: Config,
    overrides: Overrides = None,
    slice_: Annotated[
        str | None, typer.Option("--slice", help="The TPU slice that trains.", show_default="cluster.slice")
    ] = None,
    actors: Annotated[int | None, typer.Option(min=1, help="Actor processes.", show_default="actors.count")] = None,
    hours: Annotated[
        float | None, typer.Option(min=0.001, help="How long to run.", show_default="section stop, or 24")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(min=0.001, help="What to spend, by cluster.price_per_hour, in place of --hours.")
    ] = None,
    rates: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|DIR",
            help="What `podzero compile --json` printed, or a working directory of it; may be repeated.",
            show_default="the stored figures of experiments for slices",
        ),
    ] = None,
    mtbf: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="HOURS", help="Mean time until a machine is lost; needs --repair."),
    ] = None,
    repair: Annotated[
        float | None, typer.Option(min=0.0, metavar="MINUTES", help="Time until its processes work again.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate an experiment on a slice: speed, bottleneck, traffic, memory, price."""
    if hours is not None and budget is not None:
        raise ConfigError("--hours and --budget: give one of them")
    if (mtbf is None) != (repair is None):
        raise ConfigError("--mtbf and --repair: give both, how often a machine is lost and for how long")
    changes = [f"cluster.slice={slice_}"] * bool(slice_) + [f"actors.count={actors}"] * bool(actors)
    experiment = load(config, [*(overrides or ()), *changes])
    price, minutes = experiment.cluster.price_per_hour, experiment.stop.minutes
    if budget is not None and price is None:
        raise ConfigError("--budget needs the price of all machines together: set cluster.price_per_hour")
    approve_code(experiment)
    known = find_rates(experiment, rates or ())
    machines, workers = machines_of(experiment, known)
    system = system_of(experiment, known, workers)
    if mtbf is not None and repair is not None:
        system = system._replace(mtbf_s=3600 * mtbf, repair_s=60 * repair)
    limit = experiment.most_hours or (minutes / 60 if minutes else 24.0)
    span = hours or (budget / price if budget and price else limit)
    outcome = simulate(system, 3600 * span)
    if math.isinf(outcome.first_step_s):
        bought = "" if budget is None else f" (--budget {budget:g} at {price:g} an hour)"
        raise ConfigError(
            f"nothing is trained within {60 * span:.3g} minutes{bought}, in which processes start and replay fills to "
            "replay.min_size; raise --hours or --budget"
        )
    found = {"experiment": experiment.name, "machines": machines} | summary(experiment, known, system, outcome)
    print_result(found, as_json)


def machines_of(experiment: Experiment, rates: Rates) -> tuple[str, int]:
    """The machines in words, and how many of them have actors of their own processes."""
    needed = sum(reserved_cpus(experiment))
    if experiment.cluster.slice is None:
        if rates.cores is None:
            raise ConfigError("name the slice that trains, such as --slice v5e-16, or by --rates a run on one machine")
        words, workers, cpus = f"one with {rates.cores:g} CPUs", 1, rates.cores
    else:
        hosts = tpu_hosts(experiment)
        words, workers, cpus = hosts.words, hosts.number * hosts.slices, hosts.number * hosts.slices * hosts.cpus
        if not experiment.cluster.actors_on_tpu_hosts:
            pool = cpu_pool(experiment, _WORKER_CPUS)
            return f"{words}; {pool.workers} with {pool.cpus} CPUs, {pool.memory_gib} GiB each", pool.workers
    if needed > cpus:
        raise ConfigError(f"actors and others reserve {needed:g} CPUs of {cpus:g} ({words}); lower actors.count")
    return words, workers


def system_of(experiment: Experiment, rates: Rates, workers: int) -> System:
    """What is simulated, with actors spread evenly over `workers` machines."""
    replay, learner, cluster, actors = experiment.replay, experiment.learner, experiment.cluster, experiment.actors
    in_turns = experiment.has_self_play and actors.beside_learner
    count, devices = experiment.actor_processes, cluster.slices * cluster.tpu.devices if cluster.tpu else 1
    counts = [count // workers + (number < count % workers) for number in range(workers)]
    games = actors.games * (actors.moves_per_dispatch if actors.inference == "device" else 1)
    assert rates.step_s is not None  # `find_rates` has checked
    return System(
        nodes=[
            Players(number, rates.moves_per_s, games, max(1, round(actors.cpus)))
            for number in ([devices] if in_turns else counts)
            if number and rates.moves_per_s
        ],
        step_s=rates.step_s,
        batch_size=experiment.batch_parts.fresh,
        samples_per_insert=replay.samples_per_insert,
        min_size=replay.min_size,
        tolerance=experiment.replay_tolerance,
        samples_per_move=rates.samples_per_move or 1.0,
        steps_per_dispatch=learner.dispatch_steps(rates.step_s),
        save_s=60 * experiment.checkpoint.learner_minutes,
        hosts=cluster.learner_hosts,
        shards=experiment.replay_shards,
        in_turns=in_turns,
        cores=None if cluster.slice else rates.cores,
        start_s=rates.start_s or 0.0,
    )


def summary(experiment: Experiment, rates: Rates, system: System, outcome: Outcome) -> dict[str, Any]:
    """What people want to know of the outcome."""
    cluster, stop, hours = experiment.cluster, experiment.stop, outcome.seconds / 3600
    network, _, _ = learner_parts(experiment)
    parameter_bytes = bytes_of(jax.eval_shape(network.init, jax.random.key(0)))
    row_bytes = sample_bytes(experiment) if experiment.has_self_play else 0.0
    published = outcome.steps_per_s / max(experiment.learner.publish_every, system.steps_per_dispatch)
    samples_per_s = outcome.steps_per_s * experiment.learner.batch_size
    games = outcome.moves / rates.plies if rates.plies else None
    watts = cluster.slices * cluster.tpu.chips * (cluster.tpu.chip.watts or 0.0) if cluster.tpu else 0.0
    per_hour = {"stop.steps": (stop.steps, outcome.steps / hours), "stop.games": (stop.games, (games or 0.0) / hours)}
    return {
        "moves_per_s": outcome.moves_per_s,
        "samples_per_s": samples_per_s,
        "steps_per_s": outcome.steps_per_s,
        "bottleneck": bottleneck(system, outcome),
        "learner_time": dict(outcome.learner),
        "actor_time": dict(outcome.players),
        "sent_bytes_per_s": {
            "parameters": parameter_bytes * len(system.nodes) * published,
            "samples of all actors": outcome.moves_per_s * system.samples_per_move * row_bytes,
            "samples to each learner host": samples_per_s * row_bytes / cluster.learner_hosts,
        },
        "memory_of_actors_and_replay_gib": memory_gib(experiment),
        "memory_share_of_a_device": rates.memory or "unknown (--rates FILE of podzero compile --json)",
        "first_step_minutes": outcome.first_step_s / 60,
        "hours": hours,
        "moves": outcome.moves,
        "samples": outcome.moves * system.samples_per_move,
        "games": games or "unknown",
        "steps": outcome.steps,
        "lost": {"machines": outcome.lost_machines, "steps": outcome.lost_steps},
        "hours_to": {
            f"{name}={limit}": limit / rate for name, (limit, rate) in per_hour.items() if limit and rate
        },
        "price": cluster.cost(hours) or "unknown (cluster.price_per_hour, of all machines together)",
        "energy_of_chips_kwh": hours * watts / 1000 or "unknown: Google publishes the mean power of v4 alone",
    }  # fmt: skip


def bottleneck(system: System, outcome: Outcome) -> str:
    """What limits the run."""
    if system.in_turns:
        return "the chips, which play and train in turns"
    if outcome.cores_used > _FULL:
        return "the CPU cores, which actors and learner share"
    if not system.nodes:
        return "the learner"
    waits = outcome.learner["waiting"] > outcome.players["waiting"]
    return "the actors, for which the learner waits" if waits else "the learner, for which the actors wait"
