"""The command `plan`: reads what it is about, simulates, and prints what comes of it."""

from __future__ import annotations

import math
from typing import Annotated, Any

import jax
import typer

from podzero.config import Experiment, load
from podzero.core.errors import ConfigError
from podzero.launch.targets.machines import cpu_pool, memory_gib, sample_bytes, tpu_hosts
from podzero.launch.targets.plan import Site
from podzero.learner.build import learner_parts
from podzero.runtime.program import reserved_cpus
from podzero.tools.commands.options import Config, Json, Overrides
from podzero.tools.commands.printing import print_result
from podzero.tools.commands.trust import approve_code
from podzero.tools.compile.programs import bytes_of
from podzero.tools.plan.rates import Rates, find_rates
from podzero.tools.plan.simulation import Players, System, simulate

_FULL = 0.9
"""Share of the cores of a machine from which on they are the bottleneck."""
_RATES = "What `podzero compile --json` printed, or a run's working directory; may be repeated."


def plan(
    config: Config,
    overrides: Overrides = None,
    slice_: Annotated[str | None, typer.Option("--slice", help="The TPU slice, as cluster.slice.")] = None,
    actors: Annotated[int | None, typer.Option(min=1, help="Actor processes, as actors.count.")] = None,
    hours: Annotated[float | None, typer.Option(min=0.001, help="How long, as stop.hours; else 24.")] = None,
    budget: Annotated[float | None, typer.Option(min=0.001, help="What to spend, as stop.cost.")] = None,
    rates: Annotated[list[str] | None, typer.Option(metavar="FILE|DIR", help=_RATES)] = None,
    mtbf: Annotated[float, typer.Option(min=0.001, help="Mean hours until a machine is lost.")] = math.inf,
    repair: Annotated[
        float | None, typer.Option(min=0.0, help="Minutes until its processes work again.", show_default="10")
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate an experiment on a slice: speed, bottleneck, traffic, memory, price."""
    if repair is not None and math.isinf(mtbf):
        raise ConfigError("--repair needs --mtbf, how often a machine is lost")
    repair_s = 60 * (10.0 if repair is None else repair)
    changes = {"cluster.slice": slice_, "actors.count": actors, "stop.hours": hours, "stop.cost": budget}
    given = [f"{name}={value}" for name, value in changes.items() if value]
    experiment = load(config, [*(overrides or ()), *given])
    approve_code(experiment)
    known = find_rates(experiment, rates or ())
    machines, workers = machines_of(experiment, known)
    system = system_of(experiment, known, workers)._replace(mtbf_s=3600 * mtbf, repair_s=repair_s)
    hours = experiment.most_hours or (experiment.stop.minutes or 24 * 60) / 60
    found = simulate(system, 3600 * hours)
    if math.isinf(found["first_step_s"]):
        raise ConfigError(f"start and replay.min_size take over {60 * hours:.3g} minutes: raise --hours or --budget")
    asked = {"experiment": experiment.name, "machines": machines, "bottleneck": bottleneck(experiment, system, found)}
    print_result(asked | found | summary(experiment, known, system, found), as_json)


def machines_of(experiment: Experiment, rates: Rates) -> tuple[str, int]:
    """The machines in words, and how many of them have actors of their own processes."""
    if experiment.cluster.slice is not None:
        hosts = tpu_hosts(experiment)
        words, workers, cpus = hosts.words, hosts.number * hosts.slices, float(hosts.cpus)
        if not experiment.cluster.actors_on_tpu_hosts:
            pool = cpu_pool(experiment, Site.worker_cpus)
            return f"{words}; {pool.workers} with {pool.cpus} CPUs, {pool.memory_gib} GiB each", pool.workers
    elif rates.cores is not None:
        words, workers, cpus = f"one with {rates.cores:g} CPUs", 1, rates.cores
    else:
        raise ConfigError("name the slice that trains, such as --slice v5e-16, or by --rates a run on one machine")
    if (needed := sum(reserved_cpus(experiment))) > workers * cpus:
        raise ConfigError(f"all reserve {needed:g} CPUs of {workers * cpus:g} ({words}); lower actors.count")
    return words, workers


def system_of(experiment: Experiment, rates: Rates, workers: int) -> System:
    """What is simulated, with actors spread evenly over `workers` machines."""
    cluster, written = experiment.cluster, rates.samples_per_move or 1.0
    assert rates.step_s is not None  # `find_rates` has checked
    speed, count, cores = rates.moves_per_s or 0.0, experiment.actor_processes, None if cluster.slice else rates.cores
    if experiment.has_self_play and experiment.actors.beside_learner:
        devices = cluster.slices * cluster.tpu.devices if cluster.tpu else 1
        nodes, cores = [Players(devices, speed, threads=1 / devices)], 1.0
    else:
        counts = [count // workers + (number < count % workers) for number in range(workers)]
        nodes = [Players(number, speed, max(1, round(experiment.actors.cpus))) for number in counts if number]
    return System(
        nodes,
        rates.step_s,
        batch_size=experiment.batch_parts.fresh,
        reads_per_move=written * experiment.replay.samples_per_insert,
        min_moves=experiment.replay.min_size / written,
        tolerance=experiment.replay_tolerance,
        save_s=60 * experiment.checkpoint.learner_minutes,
        hosts=cluster.learner_hosts,
        shards=experiment.replay_shards,
        cores=cores,
        start_s=rates.start_s or 0.0,
    )


def summary(experiment: Experiment, rates: Rates, system: System, found: dict[str, Any]) -> dict[str, Any]:
    """What people want to know beside what a simulation has `found`."""
    cluster, stop, learner, hours = experiment.cluster, experiment.stop, experiment.learner, found["hours"]
    parameters = bytes_of(jax.eval_shape(learner_parts(experiment)[0].init, jax.random.key(0)))
    row_bytes = sample_bytes(experiment) if experiment.has_self_play else 0.0
    published = found["steps_per_s"] / max(learner.publish_every, learner.dispatch_steps(rates.step_s))
    samples, games = rates.samples_per_move or 1.0, found["moves"] / rates.plies if rates.plies else None
    watts = cluster.slices * cluster.tpu.chips * (cluster.tpu.chip.watts or 0.0) if cluster.tpu else 0.0
    reached = {"stop.steps": (stop.steps, found["steps"]), "stop.games": (stop.games, games)}
    return {
        "samples_per_s": found["steps_per_s"] * learner.batch_size,
        "samples": found["moves"] * samples,
        "games": games or "unknown",
        "sent_bytes_per_s": {
            "parameters": parameters * len(system.nodes) * published,
            "samples of all actors": found["moves_per_s"] * samples * row_bytes,
            "samples to each learner host": found["steps_per_s"] * learner.batch_size * row_bytes / system.hosts,
        },
        "memory_of_actors_and_replay_gib": memory_gib(experiment),
        "memory_share_of_a_device": rates.memory or "unknown (--rates FILE of podzero compile --json)",
        "hours_to": {f"{name}={most}": most / made * hours for name, (most, made) in reached.items() if most and made},
        "price": cluster.cost(hours) or "unknown (cluster.price_per_hour, of all machines together)",
        "energy_of_chips_kwh": hours * watts / 1000 or "unknown: Google publishes the mean power of v4 alone",
    }


def bottleneck(experiment: Experiment, system: System, found: dict[str, Any]) -> str:
    """What limits the run."""
    learner, actors = found["learner_time"], found["actor_time"]
    threads = sum(node.number * node.threads for node in system.nodes)
    if not system.nodes:
        return "the learner"
    if experiment.actors.beside_learner:
        return "the chips, which play and train in turns"
    if learner["training"] + actors["playing"] * threads / (system.cores or math.inf) > _FULL:
        return "the CPU cores, which actors and learner share"
    waits = learner["waiting"] > actors["waiting"]
    return "the actors, for which the learner waits" if waits else "the learner, for which the actors wait"
