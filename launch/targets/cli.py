"""The command `launch`: options, summary and confirmation."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from podzero.config import FOR_SLICES, Experiment, load
from podzero.core.errors import ConfigError
from podzero.files.workdir import refuse_url
from podzero.launch.targets.plan import MOUNT, Plan, Site, check, name_of, perform, script, take_down, watch
from podzero.tools.commands.options import Config, Env, Overrides, read_env
from podzero.tools.commands.trust import approve_code
from podzero.tools.compile.waiting import rates

TARGETS = ("gke", "queued")

_DEFAULT = Site()


def _known_target(name: str) -> str:
    if name == "gcp":
        raise typer.BadParameter("the target gcp is removed; use gke, which rents CPU machines too, or queued.")
    if name not in TARGETS:
        raise typer.BadParameter(f"'{name}' is not one of {', '.join(map(repr, TARGETS))}.")
    return name


_Target = Annotated[
    str,
    typer.Argument(
        parser=_known_target,
        metavar="gke|queued",
        help="gke: KubeRay on Google Kubernetes Engine; queued: only a TPU slice, by Cloud TPU's queued resources.",
    ),
]
_Folder = Annotated[
    Path | None,
    typer.Option(
        help="The folder for the launch's files: new, empty, or of an earlier launch.",
        show_default="runs/launch/NAME-TARGET",
    ),
]
_Yes = Annotated[
    bool, typer.Option("--yes", help="Do not ask if the run has no limit or the learner would wait most of its time.")
]
_Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="With --down: delete the machines at once. The run loses everything since its newest complete checkpoint.",
    ),
]


def launch(
    target: _Target,
    config: Config,
    overrides: Overrides = None,
    project: Annotated[str | None, typer.Option(help="The id of the Google Cloud project.")] = None,
    zone: Annotated[str | None, typer.Option(help="The zone of all machines, for example europe-west4-b.")] = None,
    image: Annotated[str | None, typer.Option(help="The container image; docs/tpu.md says how to build it.")] = None,
    share: Annotated[str | None, typer.Option(help="The NFS share of all machines, such as 10.0.0.2:/podzero.")] = None,
    workdir: Annotated[
        str | None, typer.Option(help="The working directory on the machines.", show_default=f"{MOUNT}/NAME")
    ] = None,
    network: Annotated[str, typer.Option(help="The VPC network.")] = _DEFAULT.network,
    subnet: Annotated[str, typer.Option(help="The network's subnet in the zone's region.")] = _DEFAULT.subnet,
    spot: Annotated[bool, typer.Option(help="Spot machines: cheaper, but preempted at any time.")] = _DEFAULT.spot,
    worker_cpus: Annotated[
        int, typer.Option(min=2, help="CPUs of each machine for actors and replay (gke only).")
    ] = _DEFAULT.worker_cpus,
    cluster: Annotated[str, typer.Option(help="The GKE cluster (gke only).")] = _DEFAULT.cluster,
    env: Env = None,
    folder: _Folder = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print a shell script and run nothing.")] = False,
    yes: _Yes = False,
    down: Annotated[bool, typer.Option("--down", help="End the run with a checkpoint; delete the machines.")] = False,
    force: _Force = False,
    status: Annotated[bool, typer.Option("--status", help="Show the state of the run.")] = False,
    logs: Annotated[bool, typer.Option("--logs", help="Show the newest lines of the run's log.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="With --logs: go on until Ctrl-C.")] = False,
    stop: Annotated[
        bool,
        typer.Option("--stop", help="End the run with a checkpoint; its machines then go back unless it was kept."),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the machines, which cost money, after the run.")] = False,
) -> None:
    """Start a cluster on Google Cloud and train an experiment on it."""
    verb = _verb({"status": status, "logs": logs, "stop": stop, "down": down}, follow, force)
    for directory in (workdir, folder):
        if directory is not None:
            refuse_url(directory)
    # Only a start needs values.
    names = () if verb else tuple(read_env(env))
    site = Site(project, zone, image, share, workdir, network, subnet, spot, worker_cpus, cluster, names, keep)
    experiment = load(config, overrides or ())
    check(site, target)
    plan: Plan = import_module(f"podzero.launch.targets.{target}").plan(experiment, site)
    where = folder or Path("runs/launch") / f"{name_of(experiment).removeprefix('podzero-')}-{target}"
    if verb == "down":
        take_down(plan, where, force, dry_run)
        return
    if verb is not None:
        watch(plan, where, verb, follow, dry_run)
        return
    approve_code(experiment)  # the head runs it without a question
    lines = summary(plan, experiment)
    if dry_run:
        print(script(plan, where, notes=lines), end="")
        return
    print(*lines, sep="\n", flush=True)
    if not confirm(experiment, yes):
        print("Nothing was started")
        raise typer.Exit(1)
    perform(plan, where)


def _verb(given: Mapping[str, bool], follow: bool, force: bool) -> str | None:
    """What is asked for by an option; None for a launch."""
    if sum(given.values()) > 1 or (follow and not given["logs"]) or (force and not given["down"]):
        raise ConfigError("give one of --status, --logs (with --follow), --stop and --down (with --force)")
    return next((name for name, is_given in given.items() if is_given), None)


MOST_WAITING = 0.5
"""Share of the learner's time spent waiting above which a launch asks for confirmation."""


def summary(plan: Plan, experiment: Experiment) -> list[str]:
    """Describes the machines, their price, and how the learner will spend its time."""
    price, stop, most = experiment.cluster.price_per_hour, experiment.stop, experiment.most_hours
    if price is None:
        cost = "not given (cluster.price_per_hour, of all machines together)"
    elif most is not None:
        cost = f"{price:,.2f} an hour, at most {price * most:,.2f} for {most:g} hours in all (stop.hours, stop.cost)"
    elif stop.minutes is None:
        cost = f"{price:,.2f} an hour, without a limit of time (stop.hours or stop.cost)"
    else:
        total, until = price * stop.minutes / 60, f"stop.minutes={stop.minutes:g}"
        cost = f"{price:,.2f} an hour, at most {total:,.2f} from the first learner step until {until}"
    return [f"machines: {'; '.join(plan.machines)}", f"price: {cost}", f"learner: {_learner(experiment)}"]


def confirm(experiment: Experiment, yes: bool) -> bool:
    """Whether to launch; without `yes`, asks if the run has no limit, or its learner would wait for `MOST_WAITING`."""
    doubts = " ".join(_doubts(experiment))
    if yes or not doubts:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(f"{doubts} Nothing was started; --yes starts it anyway")
    print(doubts)
    return typer.confirm("Launch anyway?")


def _doubts(experiment: Experiment) -> Iterator[str]:
    if experiment.stop.unlimited:
        yield "The run has no limit: its machines cost money until it is stopped. Set one, such as stop.hours=24."
    found = rates(experiment)
    if found is not None and found.waiting > MOST_WAITING:
        advice = (
            "Leave out actors.resources, so that the slice's own chips play; or add actors."
            if experiment.actors.inference == "device"
            else "Let the slice's chips play (actors.inference=device, for games in JAX), as the experiments "
            f"{FOR_SLICES}* do, which `podzero configs` lists; or add actors."
        )
        yield f"The learner and its chips would wait {waiting_share(found.waiting)} of the time. {advice}"


def _learner(experiment: Experiment) -> str:
    if not experiment.has_self_play:
        return "it reads recorded games and waits for no actors"
    found = rates(experiment)
    if found is None:
        return "the time that it will wait for actors is unknown; `podzero status` shows it once the run trains"
    if found.in_turns:
        moves = f", {found.moves_per_s:,.0f} moves/s" if found.absolute else ""
        shares = f"play {1 - found.training:.0%} of the time and train {found.training:.0%} of it"
        return f"its chips {shares}{moves}; none waits ({found.source})"
    return f"it will wait {waiting_share(found.waiting)} of its time for actors ({found.source})"


def waiting_share(waiting: float) -> str:
    """Formats a share of time; never rounds up to 100%."""
    return "more than 99.9%" if waiting > 0.999 else f"{waiting:.1%}"
