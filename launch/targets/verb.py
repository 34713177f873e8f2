"""`podzero launch`: the options, and what becomes of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from podzero.config import load
from podzero.launch.targets.perform import perform, script, take_down
from podzero.launch.targets.plan import MOUNT, Plan, Site, check, name_of

Target = Literal["gcp", "gke", "queued"]

_DEFAULT = Site()


def launch(
    target: Annotated[
        Target,
        typer.Argument(help="gcp: Ray's launcher; gke: Kubernetes with KubeRay; queued: a bare slice."),
    ],
    config: Annotated[str, typer.Argument(help="An experiment's name or a YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.field=value", show_default=False)] = None,
    project: Annotated[str | None, typer.Option(help="The Google Cloud project.")] = None,
    zone: Annotated[str | None, typer.Option(help="Where there is quota for the slice, as europe-west4-b.")] = None,
    image: Annotated[str | None, typer.Option(help="The container image, built as docs/tpu.md says.")] = None,
    share: Annotated[str | None, typer.Option(help="The NFS share of all machines, as 10.0.0.2:/podzero.")] = None,
    workdir: Annotated[str | None, typer.Option(help=f"The working directory.  [default: {MOUNT}/NAME]")] = None,
    network: Annotated[str, typer.Option(help="The VPC network.")] = _DEFAULT.network,
    subnet: Annotated[str, typer.Option(help="Its subnet in the region.")] = _DEFAULT.subnet,
    spot: Annotated[bool, typer.Option(help="Cheaper machines that may be taken away.")] = _DEFAULT.spot,
    worker_cpus: Annotated[
        int, typer.Option(min=2, help="CPUs of an actor machine (gcp, gke).")
    ] = _DEFAULT.worker_cpus,
    cluster: Annotated[str, typer.Option(help="The GKE cluster (gke).")] = _DEFAULT.cluster,
    folder: Annotated[
        Path | None, typer.Option(help="Where the files are written.  [default: runs/launch/NAME-TARGET]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and run nothing.")] = False,
    down: Annotated[bool, typer.Option("--down", help="End the run and give everything back.")] = False,
) -> None:
    """Bring up a cluster on Google Cloud and run an experiment on it."""
    site = Site(project, zone, image, share, workdir, network, subnet, spot, worker_cpus, cluster)
    experiment = load(config, overrides or ())
    check(site, target)
    plan: Plan = import_module(f"podzero.launch.targets.{target}").plan(experiment, site)
    where = folder or Path("runs/launch") / f"{name_of(experiment).removeprefix('podzero-')}-{target}"
    if dry_run:
        print(script(plan, where, down), end="")
    elif down:
        take_down(plan, where)
    else:
        perform(plan, where)
