"""What a launch is made of: what only its owner knows, the files that are written, the commands in their order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import yaml

from podzero.config import Experiment
from podzero.errors import ConfigError

MOUNT = "/mnt/podzero"
"""Where every machine of a cluster sees the shared storage."""
CARGO = "/srv/podzero"
"""Where every container sees the experiment and `run.sh`."""
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Site:
    """What only the owner of a Google Cloud project knows; the options of `podzero launch`."""

    project: str | None = None
    """The project's id."""
    zone: str | None = None
    """Where there is quota for the slice, as `europe-west4-b`."""
    image: str | None = None
    """The container image, as `europe-west4-docker.pkg.dev/PROJECT/podzero/podzero:1`."""
    share: str | None = None
    """The NFS share that all machines mount, as `10.0.0.2:/podzero`."""
    workdir: str | None = None
    """The working directory, below `MOUNT`; by default named after the experiment."""
    network: str = "default"
    subnet: str = "default"
    spot: bool = False
    """Whether machines may be taken away at any time, for a lower price."""
    worker_cpus: int = 16
    """CPUs of each machine of the actor pool."""
    cluster: str = "podzero"
    """The GKE cluster; of the target `gke` alone."""

    @property
    def region(self) -> str:
        """The region of the zone."""
        assert self.zone is not None
        return self.zone.rpartition("-")[0]

    @property
    def registry(self) -> str:
        """The host of the image's registry, if it is one of Google's, where machines must show who they are."""
        assert self.image is not None
        host = self.image.partition("/")[0]
        return host if host.endswith(("-docker.pkg.dev", "gcr.io")) else ""

    @property
    def account(self) -> str:
        """The service account of all machines: the one that Ray's cluster launcher makes for itself."""
        return f"ray-autoscaler-sa-v1@{self.project}.iam.gserviceaccount.com"


class Step(NamedTuple):
    """One command."""

    command: tuple[str, ...]
    why: str


class Plan(NamedTuple):
    """A launch, complete: the files and, in order, what is run in their folder."""

    files: Mapping[str, str]
    up: tuple[Step, ...]
    watch: tuple[Step, ...]
    """How to see what the run does; printed, never run."""
    down: tuple[Step, ...]
    tools: tuple[str, ...]
    """Programs that the commands need on this machine."""
    modules: tuple[str, ...] = ()
    """Python modules that the commands need on this machine."""


EXAMPLES = {
    "project": "my-project",
    "zone": "europe-west4-b",
    "image": "europe-west4-docker.pkg.dev/my-project/podzero/podzero:1",
    "share": "10.0.0.2:/podzero",
}
_SHAPES = {
    "project": r"[a-z][a-z0-9.:-]+",
    "zone": r"[a-z]+-[a-z]+\d+-[a-z]",
    "image": r"[\w.:/@-]+",
    "share": r"[\w.-]+:/[\w./-]*",
    "workdir": re.escape(MOUNT) + r"/[\w./-]+",
    "network": r"[\w-]+",
    "subnet": r"[\w-]+",
    "cluster": r"[a-z][a-z0-9-]*",
}


def check(site: Site, target: str) -> None:
    """Refuses a site that is not complete or whose values cannot be what they are said to be.

    Raises:
      ConfigError: names every option that is missing or wrong, each with an example.
    """
    missing = [name for name in EXAMPLES if getattr(site, name) is None]
    if missing:
        wanted = " ".join(f"--{name} {EXAMPLES[name]}" for name in missing)
        raise ConfigError(f"launch {target} must also be told: {wanted}; docs/tpu.md says where each comes from")
    for field in fields(site):
        value, shape = getattr(site, field.name), _SHAPES.get(field.name)
        if shape and value is not None and (not re.fullmatch(shape, value) or ".." in value):
            example = EXAMPLES.get(field.name, f"{MOUNT}/connect_four" if field.name == "workdir" else "default")
            raise ConfigError(f"--{field.name} {value}: expected something like {example}")


def name_of(experiment: Experiment) -> str:
    """What the machines of an experiment are called; a name that every part of Google Cloud accepts."""
    plain = re.sub(r"[^a-z0-9]+", "-", experiment.name.lower()).strip("-")
    return f"podzero-{plain}"[:36].rstrip("-")


def workdir_of(experiment: Experiment, site: Site) -> str:
    """The working directory as the machines see it."""
    return site.workdir or str(PurePosixPath(MOUNT) / name_of(experiment).removeprefix("podzero-"))


def cargo(experiment: Experiment) -> dict[str, str]:
    """The files that travel to the head: the resolved experiment and the script that runs it."""
    return {"experiment.yaml": experiment.to_yaml(), "run.sh": template("run.sh")}


def template(name: str) -> str:
    """The text of a file that lies beside this module."""
    return (HERE / name).read_text()


def to_yaml(*trees: Any) -> str:
    """Documents as people would write them: texts line by line, nothing by reference."""
    return yaml.dump_all(trees, Dumper=_Plainly, sort_keys=False, width=120)


def run_on_head(verb: str, workdir: str) -> str:
    """The command on the head for a verb of `run.sh`."""
    return f"bash {CARGO}/run.sh {verb} {workdir}"


class _Plainly(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Plainly.add_representer(str, _Plainly.represent_text)

TOKEN = Step(
    ("bash", "-c", "umask 077; test -s token || openssl rand -hex 32 | tr -d '\\n' > token"),
    "make the token that everybody in the cluster must show; it stays in this folder and on the machines",
)
