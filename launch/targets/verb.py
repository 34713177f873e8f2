"""`podzero launch`: its options."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from podzero.config import load
from podzero.errors import ConfigError
from podzero.launch.options import Config, Overrides
from podzero.launch.targets.perform import perform, script, take_down
from podzero.launch.targets.plan import MOUNT, Plan, Site, check, name_of
from podzero.launch.targets.summary import confirm, summary
from podzero.workdir import refuse_url

Target = Literal["gcp", "gke", "queued"]

_DEFAULT = Site()


def launch(
    target: Annotated[
        Target,
        typer.Argument(
            help="gcp: Ray's cluster launcher; gke: KubeRay on Google Kubernetes Engine; queued: only a TPU slice, "
            "through Cloud TPU's queued resources."
        ),
    ],
    config: Config,
    overrides: Overrides = None,
    project: Annotated[str | None, typer.Option(help="The id of the Google Cloud project.")] = None,
    zone: Annotated[str | None, typer.Option(help="The zone of all machines, for example europe-west4-b.")] = None,
    image: Annotated[str | None, typer.Option(help="The container image; docs/tpu.md says how to build it.")] = None,
    share: Annotated[
        str | None, typer.Option(help="The NFS share that all machines mount, for example 10.0.0.2:/podzero.")
    ] = None,
    workdir: Annotated[
        str | None, typer.Option(help="The working directory on the machines.", show_default=f"{MOUNT}/NAME")
    ] = None,
    network: Annotated[str, typer.Option(help="The VPC network.")] = _DEFAULT.network,
    subnet: Annotated[str, typer.Option(help="The network's subnet in the zone's region.")] = _DEFAULT.subnet,
    spot: Annotated[
        bool, typer.Option(help="Use spot machines: cheaper, but Google may preempt them at any time.")
    ] = _DEFAULT.spot,
    worker_cpus: Annotated[
        int, typer.Option(min=2, help="CPUs of each machine for actors and replay (gcp and gke).")
    ] = _DEFAULT.worker_cpus,
    cluster: Annotated[str, typer.Option(help="The GKE cluster (gke only).")] = _DEFAULT.cluster,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where the launch writes its files: a new or empty folder, or one of an earlier launch.",
            show_default="runs/launch/NAME-TARGET",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands as a shell script and run nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask, even if the learner will wait more than half of its time.")
    ] = False,
    down: Annotated[
        bool, typer.Option("--down", help="End the run with a checkpoint, then delete the machines.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="With --down: delete the machines without ending the run first. Everything since its newest complete "
            "checkpoint is lost.",
        ),
    ] = False,
) -> None:
    """Start a cluster on Google Cloud and an experiment on it."""
    if force and not down:
        raise ConfigError("--force changes what --down does: give both, or neither")
    for directory in (workdir, folder):
        if directory is not None:
            refuse_url(directory)
    site = Site(project, zone, image, share, workdir, network, subnet, spot, worker_cpus, cluster)
    experiment = load(config, overrides or ())
    check(site, target)
    plan: Plan = import_module(f"podzero.launch.targets.{target}").plan(experiment, site)
    where = folder or Path("runs/launch") / f"{name_of(experiment).removeprefix('podzero-')}-{target}"
    if down:
        if dry_run:
            print(script(plan, where, down, force), end="")
        else:
            take_down(plan, where, force)
        return
    lines = summary(plan, experiment)
    if dry_run:
        print(script(plan, where, notes=lines), end="")
        return
    print(*lines, sep="\n", flush=True)
    if not confirm(experiment, yes):
        print("Nothing was started")
        raise typer.Exit(1)
    perform(plan, where)
