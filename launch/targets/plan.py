"""A launch as data: its options, files and commands; and what runs the commands or prints them as a shell script."""

from __future__ import annotations

import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from podzero.config import Experiment
from podzero.core.errors import ConfigError, PodzeroError, os_errors

MOUNT = "/mnt/podzero"
"""Where every machine of a cluster mounts the shared storage."""
RUN_FILES = "/srv/podzero"
"""The folder with the experiment and `run.sh` in every container."""
HERE = Path(__file__).parent
_END = "END-OF-FILE"
_GITIGNORE = "# Created by podzero launch, which overwrites its files in this folder. It may hold a token.\n*\n"
"""Keeps the token out of version control, and marks a folder that `podzero launch` may write to."""
STOP_S = 3600
"""Longest time for a last checkpoint, in `run.sh` too."""
LIMITS_S = {"check": 60.0, "status": 180.0, "logs": 180.0, "stop": STOP_S + 180.0}
"""Longest time for a command of each kind."""
WATCH = (
    "To watch the run or to end it, repeat this launch with --status, --logs -f or --stop; with --down it also deletes "
    "everything that the launch has created"
)
_REMEDIES = {
    r"(?i)auth login|reauth|invalid_grant|credentials|unauthorized|must be logged in": "Log in: gcloud auth login",
    r"context .* does not exist|context was not found": "Give kubectl access: gcloud container clusters "
    "get-credentials CLUSTER --location REGION --project PROJECT",
}
"""What to do about an error of gcloud or kubectl, by words of its message."""
NOT_TRAINING = (
    "Training has not begun. The output above says whether the run has ended, and why, or is still starting, in which "
    "case it continues by itself. The machines cost money until you launch with --down"
)
"""What a failure of `run.sh start` means."""
_CREATED = (
    "Everything created so far still exists and may cost money. Launch again to continue from there, or launch with "
    "--down to delete it"
)


@dataclass(frozen=True)
class Site:
    """What to use of a Google Cloud project: the options of `podzero launch`, whose help describes them."""

    project: str | None = None
    zone: str | None = None
    image: str | None = None
    share: str | None = None
    workdir: str | None = None
    network: str = "default"
    subnet: str = "default"
    spot: bool = False
    worker_cpus: int = 16
    cluster: str = "podzero"
    env: tuple[str, ...] = ()
    keep: bool = False

    @property
    def region(self) -> str:
        """The region of the zone."""
        assert self.zone is not None
        return self.zone.rpartition("-")[0]

    @property
    def registry(self) -> str:
        """The host of the image's registry if it is Google's, which needs credentials; empty otherwise."""
        assert self.image is not None
        host = self.image.partition("/")[0]
        return host if host.endswith(("-docker.pkg.dev", "gcr.io")) else ""

    @property
    def worker_account(self) -> str:
        """The service account of all machines; docs/tpu.md says which roles it needs."""
        return f"podzero-worker@{self.project}.iam.gserviceaccount.com"


class LaunchStep(NamedTuple):
    """A command of a launch."""

    command: tuple[str, ...]
    why: str
    """What the command is for."""
    failure: str = ""
    """What a failure means and its remedy; empty if the command's own output says it."""


def shell(command: str, why: str, failure: str = "") -> LaunchStep:
    """The step of a shell command."""
    return LaunchStep(("bash", "-c", command), why, failure)


class Plan(NamedTuple):
    """The files of a launch, and the commands that run in their folder."""

    files: Mapping[str, str]
    """The contents by file name."""
    checks: tuple[LaunchStep, ...]
    """Commands that fail if something that the launch uses does not exist; they create nothing."""
    machines: tuple[str, ...]
    """Descriptions of the rented machines, one for each kind."""
    up: tuple[LaunchStep, ...]
    """Commands that start the cluster and the run. Each can be repeated: it uses what exists already."""
    status: LaunchStep
    """Shows the state of the run."""
    logs: LaunchStep
    """Shows the newest lines of its log; with `--follow` at the end, goes on until Ctrl-C."""
    stop: LaunchStep
    """Ends the run; succeeds only if no run is left and the last one has written its checkpoint."""
    down: LaunchStep
    """Deletes the machines."""
    tools: tuple[str, ...]
    """Programs that the commands need on this machine."""
    kill: LaunchStep | None = None
    """What precedes `down` with --force, so that nothing waits for a last checkpoint."""


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
    "share": r"[\w.-]+:/(?!/)[\w./-]*",
    "workdir": re.escape(MOUNT) + r"/[\w./-]+",
    "network": r"[\w-]+",
    "subnet": r"[\w-]+",
    "cluster": r"[a-z][a-z0-9-]*",
}


def check(site: Site, target: str) -> None:
    """Checks the options."""
    missing = [name for name in EXAMPLES if getattr(site, name) is None]
    if missing:
        wanted = " ".join(f"--{name} {EXAMPLES[name]}" for name in missing)
        raise ConfigError(f"launch {target} also needs: {wanted}; docs/tpu.md explains each")
    for field in fields(site):
        value, shape = getattr(site, field.name), _SHAPES.get(field.name)
        if shape and value is not None and (not re.fullmatch(shape, value) or ".." in value):
            example = EXAMPLES.get(field.name, f"{MOUNT}/connect_four" if field.name == "workdir" else "default")
            raise ConfigError(f"--{field.name} {value}: expected something like {example}")


def name_of(experiment: Experiment) -> str:
    """The name of an experiment's machines, in characters that every service of Google Cloud accepts."""
    plain = re.sub(r"[^a-z0-9]+", "-", experiment.name.lower()).strip("-")
    # Names may have 63 characters, of which KubeRay needs some for what it appends.
    return f"podzero-{plain}"[:36].rstrip("-")


def workdir_of(experiment: Experiment, site: Site) -> str:
    """The path of the working directory on the machines."""
    return site.workdir or str(PurePosixPath(MOUNT) / name_of(experiment).removeprefix("podzero-"))


def run_files(experiment: Experiment) -> dict[str, str]:
    """The files for the head: the resolved experiment, the Python files that it names, and the script that runs it."""
    own, moved = {}, {}
    for section, part in experiment.own_files.items():
        assert part.file is not None
        # The digest tells apart files of the same name; ConfigMaps and shells take few characters.
        name = f"{str(part.sha256)[:12]}_{re.sub(r'[^A-Za-z0-9._-]', '_', part.file.name)}"
        with os_errors(ConfigError, f"{section}: cannot read {part.file}"):
            own[name] = part.file.read_text(encoding="utf-8")
        moved[section] = part.moved_to(name)
    return {"experiment.yaml": experiment.with_sections(moved).to_yaml(), "run.sh": template("run.sh"), **own}


def template(name: str) -> str:
    """Reads a file of this folder."""
    return (HERE / name).read_text(encoding="utf-8")


def run_on_head(verb: str, *arguments: str) -> str:
    """The command in the head's container that runs a verb of `run.sh`."""
    return " ".join(["bash", f"{RUN_FILES}/run.sh", verb, *arguments])


def send_variables(names: Sequence[str], send: str) -> tuple[LaunchStep, ...]:
    """The step that sends environment variables to the cluster; none without `names`.

    It finds their values in its own environment. `send` is a shell command that sends the file "$podzero_file".
    """
    if not names:
        return ()
    script = (
        "set -euo pipefail; podzero_file=$(mktemp); trap 'rm -f \"$podzero_file\"' EXIT; "
        f"for podzero_name in {' '.join(names)}; do "
        'printf "export %s=%q\\n" "$podzero_name" "${!podzero_name?is not set here}"; done >"$podzero_file"; ' + send
    )
    return (shell(script, "send the variables of --env"),)


def deadline_s(experiment: Experiment) -> int | None:
    """Seconds after which the cloud takes the machines away, whatever the run does; None without such a limit."""
    return None if experiment.most_hours is None else math.ceil(3600 * experiment.most_hours) + STOP_S


def gcloud(words: str, site: Site) -> tuple[str, ...]:
    """A command of gcloud in the project."""
    return ("gcloud", *words.split(), "--project", str(site.project))


def checks(site: Site, machines: str) -> tuple[LaunchStep, ...]:
    """The checks of what a launch uses, as far as gcloud knows it; `machines` asks for those of the slice."""
    slice_exists = LaunchStep(
        gcloud(f"{machines} --zone {site.zone}", site),
        "check that the zone has such a slice",
        f"--zone {site.zone} does not exist, or has no machines for cluster.slice: "
        "https://cloud.google.com/tpu/docs/regions-zones lists the zones of each generation",
    )
    image = LaunchStep(
        gcloud(f"artifacts docker images describe {site.image} --format=value(image_summary.digest)", site),
        "check the image",
        f"--image {site.image}: step 5 of docs/tpu.md builds it",
    )
    server, _, path = str(site.share).partition(":/")
    found = f"filestore instances list --filter=networks.ipAddresses:{server} --format=value(fileShares[0].name)"
    # Nothing is known of a share that is not on Filestore.
    test = f'found=$({shlex.join(gcloud(found, site))}); [ -z "$found" ] || [ "$found" = {shlex.quote(path)} ]'
    share = shell(
        test,
        "check the share",
        f"--share {site.share}: Filestore has another share at {server}; `gcloud filestore instances list` shows it",
    )
    return (slice_exists, *([image] if site.registry.endswith("pkg.dev") else []), share)


class LaunchFailed(PodzeroError, RuntimeError):
    """A launch or teardown failed; the message names the command and the remedy."""


def script(plan: Plan, folder: Path, down: bool = False, force: bool = False, notes: Iterable[str] = ()) -> str:
    """A shell script equivalent to `perform`, or to `take_down` with `down`; `notes` become comments."""
    place = shlex.quote(str(folder))
    lines = ["set -euo pipefail", *(f"# {line}" for line in notes)]
    lines += [f"mkdir -p {place} && cd {place}"]
    lines += [
        f'[ -z "$(ls -A)" ] || [ "$(cat .gitignore 2>/dev/null)" = {shlex.quote(_GITIGNORE.rstrip())} ] ||'
        f" {{ echo {shlex.quote(_not_ours(folder))} >&2; exit 2; }}",
        "",
    ]
    for name, text in _files(plan).items():
        lines += [f"cat > {name} <<'{_END}'", text.rstrip("\n"), _END, ""]
    for step in _teardown(plan, force) if down else (*plan.checks, *plan.up):
        lines += [f"# {step.why}", shlex.join(step.command)]
    if not down:
        lines += ["", "# To watch the run, to end it and to delete the machines, in the same folder:"]
        later = (plan.status, plan.logs, *_teardown(plan))
        lines += [f"#   {shlex.join(step.command)}  # {step.why}" for step in later]
    return "\n".join(lines) + "\n"


def perform(plan: Plan, folder: Path) -> None:
    """Writes the files, then prints and runs the commands."""
    _begin(plan, folder)
    for step in plan.checks:
        if problem := _run(step, folder, LIMITS_S["check"]):
            raise LaunchFailed(f"nothing was created. {problem}")
    for step in plan.up:
        if problem := _run(step, folder):
            raise LaunchFailed(f"{problem}. {WATCH}" if step.failure else f"{problem}\n{_CREATED}")
    print(f"\nThe run is training. {WATCH}")


def watch(plan: Plan, folder: Path, verb: str, follow: bool, dry_run: bool) -> None:
    """Runs the command `status`, `logs` or `stop` within its limit, or follows the logs until Ctrl-C."""
    step: LaunchStep = getattr(plan, verb)
    step = step._replace(command=(*step.command, *(["--follow"] if follow else [])))
    if dry_run:
        print(f"cd {shlex.quote(str(folder))} && {shlex.join(step.command)}")
        return
    _begin(plan, folder)
    if problem := _ask(step, folder, None if follow else LIMITS_S[verb]):
        raise LaunchFailed(problem)


def take_down(plan: Plan, folder: Path, force: bool, dry_run: bool) -> None:
    """Ends the run with a checkpoint, unless `force` is given, then deletes the machines."""
    if dry_run:
        print(script(plan, folder, True, force), end="")
        return
    _begin(plan, folder)
    for step in _teardown(plan, force):
        problem = _run(step, folder)
        if problem and step is plan.stop:
            raise LaunchFailed(
                "no machine was deleted, because the run may still be writing a checkpoint, or has ended without its "
                f"last one: {problem}\n"
                "Its output above says which it is. Repeat --down to keep waiting for the run, or launch again to "
                "resume a run that has ended. To delete the machines at once, use --down --force: everything since "
                "the newest complete checkpoint is then lost"
            )
        if problem:
            raise LaunchFailed(
                f"not everything was deleted, and the rest still costs money: {problem}\n"
                "Repeat --down, or delete the machines by hand"
            )


def _teardown(plan: Plan, force: bool = False) -> tuple[LaunchStep, ...]:
    return (*([plan.kill] if plan.kill else []), plan.down) if force else (plan.stop, plan.down)


def _begin(plan: Plan, folder: Path) -> None:
    """Checks the tools and the folder, then writes the files."""
    missing = [tool for tool in plan.tools if shutil.which(tool) is None]
    if missing:
        raise LaunchFailed(
            f"missing on this machine: {', '.join(missing)}; step 1 of docs/tpu.md says how to install them. "
            "Nothing was run"
        )
    marker = folder / ".gitignore"
    with os_errors(LaunchFailed, f"--folder {folder}: cannot write there", "nothing was run"):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (marker.is_file() and marker.read_text(encoding="utf-8") == _GITIGNORE):
            raise LaunchFailed(_not_ours(folder))
        for name, text in _files(plan).items():
            (folder / name).write_text(text, encoding="utf-8")


def _not_ours(folder: Path) -> str:
    return (
        f"--folder {folder}: this folder holds files that podzero launch did not write, and it would overwrite them. "
        "Nothing was run. Name a new or empty folder, or one of an earlier launch"
    )


def _files(plan: Plan) -> dict[str, str]:
    return {".gitignore": _GITIGNORE, **plan.files}


def _run(step: LaunchStep, folder: Path, limit_s: float | None = None) -> str | None:
    """Prints a command, and runs it as `_ask` does."""
    print(f"\n# {step.why}\n$ {shlex.join(step.command)}", flush=True)
    return _ask(step, folder, limit_s)


def _ask(step: LaunchStep, folder: Path, limit_s: float | None) -> str | None:
    """Runs a command; returns what went wrong and what to do, or None. Without a limit it shows its own errors."""
    command, said = f"in {folder}: {shlex.join(step.command)}", subprocess.PIPE if limit_s else None
    try:
        done = subprocess.run(
            step.command, cwd=folder, stderr=said, timeout=limit_s, encoding="utf-8", errors="replace", check=False
        )
    except subprocess.TimeoutExpired:
        return f"this command has not ended within {limit_s:g} s ({command})"
    if done.returncode == 0:
        return None
    error = (done.stderr or "").strip()
    remedy = next((remedy for words, remedy in _REMEDIES.items() if re.search(words, error)), step.failure)
    return "\n".join(filter(None, [f"this command ended with code {done.returncode} ({command})", error, remedy]))
