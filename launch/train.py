"""The command `train`: the experiment and working directory that it chooses, and its checks before Ray starts."""

from __future__ import annotations

import glob
import itertools
import math
import multiprocessing
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

import typer
from packaging.requirements import InvalidRequirement, Requirement

from podzero.config import (
    BUILTIN_GAMES,
    EvaluationConfig,
    Experiment,
    GymnasiumConfig,
    Layers,
    builtin_configs,
    environments,
    load,
    parse,
    read_layers,
    schedule_note,
)
from podzero.core.errors import ConfigError
from podzero.core.importing import import_openvino, restore_path, without_current_folder
from podzero.core.machine import ended_by_interrupt, has_int8_instructions, keep_compiled_programs, nvidia_driver
from podzero.files.players import EnginePlayer, as_resumed, check_engine_plays, engine_program, parse_player
from podzero.files.store import store_of
from podzero.files.workdir import (
    NEUTRAL,
    Change,
    InUse,
    Workdir,
    WorkdirError,
    differences,
    split_step,
    step_folders,
    unused,
)
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.monitoring.status import spent
from podzero.runtime.monitoring.writers import check_packages
from podzero.tools.commands.options import RUNS, Address, Env, Overrides, read_env
from podzero.tools.commands.trust import approve_code

_Start = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="The name of an experiment (see `podzero configs`) or a YAML file; to resume a run, its working directory "
        "DIR, or DIR@STEP for an earlier checkpoint.",
        autocompletion=builtin_configs,
    ),
]
_With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="REQUIREMENT",
        help="A package that your code imports, such as pettingzoo==1.25, for cluster.install_environment: the nodes "
        "get this machine's version; may be repeated. Give it again when you resume.",
    ),
]


def train(
    config: _Start,
    overrides: Overrides = None,
    workdir: Annotated[
        Path | None,
        typer.Option(
            help="The working directory; resumes the run in it, if any.",
            show_default="runs/NAME, or runs/NAME-SETTINGS with other settings",
        ),
    ] = None,
    address: Address = None,
    env: Env = None,
    with_: _With = None,
    view: Annotated[Literal["auto", "plain", "live"], typer.Option(help="auto: live on a terminal or plain.")] = "auto",
    check: Annotated[bool, typer.Option("--check", help="Check it, print it as YAML, start nothing.")] = False,
) -> None:
    """Train an experiment, or resume a run from its newest checkpoint or from DIR@STEP.

    A resumed run takes its experiment from DIR; only some of its settings may change. If the experiment extends
    another, --check says which file each setting comes from.
    """
    address = None if address == "local" else address
    experiment, root, step, reason, layers = find_start(config, overrides or (), workdir, address is not None)
    # Before anything is said about its run; `Workdir.lock` then reserves the directory.
    if not check and (holder := Workdir(root).holder()) is not None:
        raise InUse(f"{root} is in use: {holder} works there")
    secrets = read_env(env)
    packages = tuple(pinned(text, address is not None, experiment.cluster.install_environment) for text in with_ or ())
    check_startable(experiment, Workdir(root), step, joins=address is not None)
    if (note := schedule_note(experiment)) is not None:
        typer.echo(note, err=True)
    if check:
        print(layers.explain(experiment.model_dump(mode="json")) if layers.inherited else experiment.to_yaml(), end="")
        return
    # The run's processes inherit this; the nodes of a cluster have caches of their own.
    if address is None:
        keep_compiled_programs()
    print(f"{reason}.", flush=True)
    if address is None and not Workdir(root).is_run and (note := placement_note(experiment, layers)):
        typer.echo(note, err=True)
    with ended_by_interrupt():
        from podzero.runtime.monitoring.view import make_view
        from podzero.runtime.train import train as run

    ended = run(experiment, root, address, make_view(view), step, layers, secrets, packages)
    again = [("--address", address)] if address else []
    again += [("--env", name) for name in env or ()] + [("--with", requirement) for requirement in with_ or ()]
    repeated = "".join(f" {option} {shlex.quote(value)}" for option, value in again)
    print(f"The run has ended: {ended.reason}. Its files are in {root}.")
    print(f"Evaluate it with: podzero evaluate {shlex.quote(str(root))}")
    done = None if ended.signal else {"score": math.inf} if "stop.score" in ended.reason else {}
    print(f"Continue it with: podzero train {continuation(experiment, root, done)}{repeated}")
    if ended.signal:
        raise typer.Exit(128 + ended.signal)


MACHINE = "chosen for this machine"
"""The origin of a setting that neither a file nor the command line gives."""


def placed(experiment: Experiment, layers: Layers, workdir: Workdir, joins: bool) -> tuple[Experiment, Layers]:
    """An experiment that says nothing of `actors.inference`, with what its run has, or else what suits this machine.

    Self-play of a new run evaluates in int8 if the CPU has instructions for it, the network can be quantized and
    OpenVINO is installed; a run that `joins` a Ray cluster plays on other machines.
    """
    if "actors.inference" in layers.origins:
        return experiment, layers
    if workdir.is_run:
        wanted = workdir.experiment().actors.inference
    else:
        wanted = "int8" if not joins and has_int8_instructions() and find_spec("openvino") is not None else "local"
    if wanted == experiment.actors.inference:
        return experiment, layers
    tree = layers.tree | {"actors": layers.tree.get("actors", {}) | {"inference": wanted}}
    with suppress(ConfigError):  # not every network can be quantized
        chosen = parse(tree, layers.files[0], layers.inherited)
        return chosen, layers._replace(tree=tree, origins=layers.origins | {"actors.inference": MACHINE})
    return experiment, layers


def placement_note(experiment: Experiment, layers: Layers) -> str | None:
    """What was chosen for self-play of a new run, and what would use a GPU that it leaves unused; None if nothing."""
    chosen = layers.origins.get("actors.inference") == MACHINE
    notes = ["Self-play evaluates in int8, which is faster here; actors.inference=local: in float32."] * chosen
    sections = experiment.model_dump(mode="json")
    with suppress(ConfigError):  # not every game can be placed there
        if nvidia_driver() is not None and (chosen or experiment.actors.inference == "local"):
            parse(sections | {"actors": sections["actors"] | {"inference": "device", "games": 4096}}, experiment.name)
            settings = "actors.inference=device actors.games=4096"
            notes.append(f"This machine has a GPU: self-play makes more moves/s with {settings} (docs/gpu.md).")
    return "\n".join(notes) or None


def pinned(text: str, joins: bool, installs: bool) -> str:
    """A requirement of `--with` as the nodes get it, in the version that this machine has.

    Only a run that `joins` a Ray cluster and `installs` environments there can have any.
    """
    by_hand = f"`uv pip install {shlex.quote(text)}`"
    if not joins:
        raise ConfigError(
            f"--with {text}: this run has one machine, and uses the packages that are installed here. Install it with "
            f"{by_hand}, and leave --with out; with --address and cluster.install_environment=true, nodes get it"
        )
    if not installs:
        raise ConfigError(
            f"--with {text}: this run uses the packages that each node has. Set cluster.install_environment=true, or "
            f"run {by_hand} on every node and leave --with out"
        )
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        raise ConfigError(f"--with {text}: expected a requirement, such as pettingzoo==1.25") from None
    place = urlsplit(wanted.url or "")
    if place.password or (place.username and place.scheme.endswith(("http", "https"))):
        raise ConfigError(
            f"--with {wanted.name}: the address holds a name or a password, which nodes and logs would show; "
            "leave them out, and put them into the file .netrc of each node"
        )
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        raise ConfigError(
            f"--with {text}: {wanted.name} is not installed here, where the experiment's code is checked before it "
            f"runs on nodes; install it here too: {by_hand}"
        ) from None
    if not wanted.specifier.contains(found, prereleases=True):
        raise ConfigError(
            f"--with {text}: version {found} of {wanted.name} is installed here, and the nodes must have the same; "
            f"install the one that you want: {by_hand}"
        )
    if wanted.url is not None:
        return text
    extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
    return f"{wanted.name}{extras}=={found}"


MAX_NAMED = 3
"""Most changed settings after which a directory is named; with more, it is numbered."""
_NAMEABLE = re.compile(r"[\w.+-]{1,60}")
_SHOWN = 3
"""Most settings listed in a reason."""


class Start(NamedTuple):
    """What `podzero train` starts."""

    experiment: Experiment
    root: Path
    """The working directory."""
    step: int | None
    """The step of the checkpoint to resume from; None for the newest."""
    reason: str
    """A sentence that tells the user which directory was chosen and why."""
    layers: Layers
    """The files that the experiment comes from."""


def find_start(config: str, overrides: Iterable[str], workdir: Path | None, joins: bool = False) -> Start:
    """Finds the experiment and the working directory for the arguments of `podzero train`; for `joins` see `placed`.

    `config` is an experiment's name, a YAML file, or a run as `DIR` or `DIR@STEP`. `workdir` is by default `place`'s.
    """
    overrides = tuple(overrides)
    found = None if config in builtin_configs() or os.path.isfile(os.path.expanduser(config)) else split_step(config)
    if found is not None:
        return _resumption(*found, overrides, workdir)
    layers = read_layers(config, overrides)
    experiment = parse(layers.tree, config, layers.inherited)
    if workdir is None:
        plain = None
        with suppress(ConfigError):  # it may be valid with its overrides alone
            plain = load(config)
        workdir, reason = place(experiment, plain, _held(RUNS / experiment.name))
    else:
        reason = f"{'Resuming the' if Workdir(workdir).is_run else 'New'} run in {workdir}"
    experiment, layers = placed(experiment, layers, Workdir(workdir), joins)
    Workdir(workdir).check(experiment)
    return Start(experiment, workdir, None, reason + _changed(Workdir(workdir), experiment), layers)


def place(experiment: Experiment, plain: Experiment | None, held: Mapping[str, Experiment | None]) -> tuple[Path, str]:
    """Chooses an experiment's directory: the one that holds the experiment already, or else a new one.

    An experiment goes to the directory of its name. Overrides that change what is learned are appended if they are few,
    for example `cartpole-seed1`. If another experiment is there, a number is appended.

    `plain` is the experiment without overrides, None if it is invalid; `held` are those in existing directories, by
    the directory's name, None if one cannot be read. Returns the directory and `Start.reason`.
    """
    # A name may hold several folders.
    home = RUNS / experiment.name
    # Of all differences, those that change what is learned.
    differing = [] if plain is None else differences(plain, experiment, NEUTRAL)
    changes = [change for change in differing if change.setting != "name"]
    suffix = _suffix(changes)
    preferred = f"{home.name}-{suffix}" if suffix else home.name
    # Resume the run that holds this experiment, if there is one.
    mine = [found for found, other in held.items() if other is not None and not differences(other, experiment, NEUTRAL)]
    if mine:
        # By length first, so that `hex-2` comes before `hex-10`.
        chosen = home.with_name(preferred if preferred in mine else min(mine, key=lambda found: (len(found), found)))
        return chosen, f"Resuming the run in {chosen}, which holds this experiment"
    # Else take the first free name. An unreadable experiment's is taken too: `Workdir.check` then names the bad file.
    numbered = (f"{preferred}-{number}" for number in itertools.count(2))
    free = next(candidate for candidate in itertools.chain([preferred], numbered) if held.get(candidate) is None)
    reason = f"New run in {home.with_name(free)}"
    if (other := held.get(preferred)) is not None:
        listed = _listed(differences(other, experiment))
        reason += f", since {home.with_name(preferred)} holds another experiment ({listed})"
    elif suffix:
        named = ", ".join(f"{change.setting}={change.new}" for change in changes)
        reason += f", named after what differs from {home.name}: {named}"
    return home.with_name(free), reason


def continuation(experiment: Experiment, root: Path, done: Mapping[str, float] | None) -> str:
    """The arguments of `podzero train` that continue the run in `root`, which has ended.

    If it has reached a limit, `done` is what it has done (`StopConfig.done`) as far as that is known, and the arguments
    double the limits, but drop a score that has been reached. None if it ended for another reason.
    """
    limits = {} if done is None else experiment.stop.model_dump(exclude_none=True)
    done, score = done or {}, limits.pop("score", math.inf)
    higher = [f"stop.{name}={math.ceil(2 * max(limit, done.get(name, 0)))}" for name, limit in limits.items()]
    higher += ["stop.score=null"] if done.get("score", -math.inf) >= score else []
    return shlex.join([str(root), *higher])


def _resumption(folder: Path, step: int | None, overrides: tuple[str, ...], workdir: Path | None) -> Start:
    if workdir is not None and Workdir(workdir).root != Workdir(folder).root:
        raise ConfigError(
            f"podzero train {folder} resumes the run in that directory: leave out --workdir {workdir}; to start a new "
            f"run with its experiment, give {folder / 'experiment.yaml'} and a --workdir"
        )
    held = Workdir(folder)
    if not held.is_run:
        raise WorkdirError(
            f"{folder} holds no experiment.yaml, so it is not the working directory of a run: give the name of an "
            "experiment (`podzero configs` lists them), a YAML file, or a working directory (`podzero runs` lists them)"
        )
    # This error names the file, that of `load` would not.
    held.experiment()
    layers = read_layers(str(held.experiment_file), overrides)
    experiment = parse(layers.tree, str(held.experiment_file))
    try:
        held.check(experiment)
    except WorkdirError as error:
        anew = shlex.join([str(folder / "experiment.yaml"), *overrides, "--workdir", str(unused(folder))])
        raise WorkdirError(f"{error}: podzero train {anew}") from None
    reason = f"Resuming the run in {folder}"
    if step is not None:
        present = step_folders(held.checkpoints)
        if step not in present:
            known = ", ".join(map(str, present)) or "none"
            example = shlex.quote(f"{folder}@{present[-1]}" if present else str(folder))
            raise ConfigError(
                f"{folder} holds no checkpoint of step {step}; there are: {known}; for example: podzero train {example}"
            )
        reason += f" from its checkpoint of step {step}; everything later is set aside"
    return Start(experiment, folder, step, reason + _changed(held, experiment), layers)


def _held(home: Path) -> dict[str, Experiment | None]:
    """The experiments in `home` and in the directories named `home-...` beside it; None for what cannot be read."""
    held: dict[str, Experiment | None] = {}
    for folder in sorted(home.parent.glob(f"{glob.escape(home.name)}*")):
        run = Workdir(folder)
        if f"{folder.name}-".startswith(f"{home.name}-") and run.is_run:
            try:
                held[folder.name] = run.experiment()
            except WorkdirError:
                held[folder.name] = None
    return held


def _suffix(changes: list[Change]) -> str:
    """The changes as part of a directory's name; empty if they are too many or too long."""
    parts = [
        change.setting.rpartition(".")[2]
        + (f"{change.new:.12g}" if isinstance(change.new, float) else str(change.new).lower())
        for change in changes
    ]
    suffix = "-".join(parts)
    return suffix if len(changes) <= MAX_NAMED and _NAMEABLE.fullmatch(suffix) else ""


def _changed(workdir: Workdir, experiment: Experiment) -> str:
    """The settings that a resumed run changes, as the end of a sentence."""
    changes = differences(workdir.experiment(), experiment) if workdir.is_run else []
    return f"; changed: {_listed(changes)}" if changes else ""


def _listed(changes: list[Change]) -> str:
    more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return "; ".join(map(str, changes[:_SHOWN])) + more


IMPORT_TIMEOUT_S = 300.0
"""Time limit for starting a Python process and importing JAX in it."""
_STEPS = 8
"""Random steps of the check of an environment of gymnasium."""


def check_startable(experiment: Experiment, workdir: Workdir, step: int | None = None, joins: bool = False) -> None:
    """Checks what can be checked without Ray and devices before `experiment` is trained in `workdir`.

    No stop limit may be reached already; optional packages, opponents and the teacher's copy must be there; environment
    and network must be made. A run that `joins` a Ray cluster needs the evaluation's engines and solver elsewhere.
    """
    if store_of(workdir.root).remote and experiment.cluster.learner_hosts > 1:
        raise ConfigError(
            f"{workdir.root} is in a bucket, but a learner on several hosts writes its checkpoints into a folder that "
            "they share: give a --workdir on a file system (NFS, Filestore; docs/tpu.md)"
        )
    experiment = as_resumed(experiment, workdir)
    approve_code(experiment)
    with ended_by_interrupt():  # these import JAX, the solver, and what writers and OpenVINO need
        _check_not_ended(experiment, workdir, step)
        _check_opponents(experiment, joins)
        check_packages(experiment.metrics)
        # Then only the nodes need the optional packages.
        if experiment.cluster.install_environment:
            return
        if experiment.uses_openvino and find_spec("openvino") is None:
            import_openvino()  # raises the error that names the extra
    # What is built in needs no check.
    built_in = experiment.env.name in BUILTIN_GAMES and not experiment.own_parts
    more = (experiment.init_from, experiment.teacher, experiment.data.records, experiment.actors.opponents)
    if not built_in or any(more) or experiment.search.targets or experiment.network.name == "nested":
        _check_made(experiment)


def _check_not_ended(experiment: Experiment, workdir: Workdir, step: int | None) -> None:
    if not workdir.is_run:
        return
    found = next((found for found in checkpoints(workdir) if step in (None, found.step)), None)
    counters, steps = (found.counters, found.step) if found else ({}, 0)
    hours = max(sum(spent(workdir).values()), counters.get("nodes_s", 0.0)) / 3600
    done = experiment.stop.done(counters, steps, hours, experiment.cluster.cost(hours))
    if (reached := experiment.stop.reached(done)) is not None:
        raise ConfigError(
            f"{workdir.root} has already reached {reached}, after {done['minutes']:.1f} minutes, {steps} steps, "
            f"{done['games']:.0f} games and {hours:.1f} hours in all; raise the limit to train longer, for example: "
            f"podzero train {continuation(experiment, workdir.root, done)}"
        )


def _check_opponents(experiment: Experiment, joins: bool) -> None:
    """Checks that engines play the game and, without a cluster, that they and the solver are installed."""
    evaluation, game = experiment.evaluation, experiment.env.title
    opponents, setting = evaluation.opponents or (), "opponents"
    many = evaluation.positions > EvaluationConfig().positions
    try:
        for name in opponents:
            if name != "earlier" and isinstance(player := parse_player(name), EnginePlayer):
                check_engine_plays(name, player, game)
                if not joins:
                    engine_program(name, player)
        if joins or not (many or "solver" in opponents):
            return
        from podzero.evaluation.solvers import SOLVED, make_solver, read_labels

        # Without it as an opponent, the solver is needed only for positions beyond those with stored labels.
        labels = read_labels(game, "validation")
        if "solver" not in opponents:
            setting = f"positions = {evaluation.positions}"
            many = labels is not None and evaluation.positions > len(labels.moves)
        if game in SOLVED and (many or "solver" in opponents):
            make_solver(game)
    except ConfigError as error:
        raise ConfigError(f"evaluation.{setting}: {error}") from None


def _check_made(experiment: Experiment) -> None:
    """Calls `check_parts` in a process of its own: a user's code may crash or hang."""
    env, limit_s = experiment.env, IMPORT_TIMEOUT_S
    own = [f"{section}.name = '{part.name}'" for section, part in experiment.own_parts.items()]
    what = " and ".join(own) or f"network.name = '{experiment.network.name}'"
    if env.name not in BUILTIN_GAMES:
        what, limit_s = env.title, limit_s + environments.BUILD_TIMEOUT_S
    with without_current_folder(), ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        made = pool.submit(check_parts, experiment)
        try:
            made.result(timeout=limit_s)
        except BrokenProcessPool:
            raise ConfigError(f"{what} cannot be made: its process died") from None
        except TimeoutError:
            for process in multiprocessing.active_children():
                process.kill()
            raise ConfigError(f"{what} cannot be made: its process gave no answer within {limit_s:g} s") from None


def check_parts(experiment: Experiment) -> None:
    """Makes the parts of an experiment on this machine's CPUs; each package checks what the user gives it."""
    restore_path()
    os.environ["JAX_PLATFORMS"] = "cpu"
    from podzero.actors.build import check_own_search
    from podzero.envs import check_steps, check_values, sample_packing, spec_of
    from podzero.evaluation.resolve import make_opponents
    from podzero.learner.build import check_own_learner
    from podzero.networks import check_own_network
    from podzero.replay import open_records

    env = experiment.env
    # A run goes on after a rare failure of an environment: half of the steps may fail.
    spec = check_steps(env, 1, _STEPS, _STEPS // 2) if isinstance(env, GymnasiumConfig) else spec_of(env)
    check_values(experiment, spec)
    sample_packing(experiment, spec)
    check_own_network(experiment.network, spec)
    check_own_search(experiment, spec)
    check_own_learner(experiment, spec)
    if experiment.actors.opponents:
        make_opponents(experiment, Path(), seed=0)
    if experiment.data.records is not None:
        open_records(experiment, spec)
