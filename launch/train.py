"""The command `train`, and the checks that it makes before Ray starts."""

from __future__ import annotations

import multiprocessing
import os
import shlex
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

import typer
from packaging.requirements import InvalidRequirement, Requirement

from podzero.config import (
    ChanceGameConfig,
    EvaluationConfig,
    Experiment,
    GameConfig,
    GymnasiumConfig,
    environments,
    schedule_note,
)
from podzero.core.errors import ConfigError
from podzero.core.importing import import_openvino, restore_path, without_current_folder
from podzero.core.machine import ended_by_interrupt, keep_compiled_programs
from podzero.files.players import ENGINES, EnginePlayer, as_resumed, engine_program
from podzero.files.workdir import Workdir
from podzero.launch.directories import continuation, find_start
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.monitoring.writers import check_packages
from podzero.tools.commands.options import Address, Env, Overrides, config_names, read_env
from podzero.tools.commands.trust import approve_code


def train(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="The name of an experiment (see `podzero configs`) or a YAML file; to resume a run, its working "
            "directory DIR, or DIR@STEP for an earlier checkpoint.",
            autocompletion=config_names,
        ),
    ],
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
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="REQUIREMENT",
            help="A package that your code imports, such as pettingzoo==1.25, for cluster.install_environment: the "
            "nodes get this machine's version; may be repeated. Give it again when you resume.",
        ),
    ] = None,
    view: Annotated[
        Literal["auto", "plain", "live"], typer.Option(help="auto: live on a terminal, plain lines otherwise.")
    ] = "auto",
    check: Annotated[
        bool, typer.Option("--check", help="Check the experiment and print it as YAML; start nothing.")
    ] = False,
) -> None:
    """Train an experiment, or resume a run from its newest checkpoint or from DIR@STEP.

    A resumed run takes its experiment from DIR; only some of its settings may change. If the experiment extends
    another, --check says which file each setting comes from.
    """
    address = None if address == "local" else address
    experiment, root, step, reason, layers = find_start(config, overrides or (), workdir)
    if not check:
        Workdir(root).check_free()
    secrets = read_env(env)
    packages = own_packages(with_ or (), address is not None, experiment.cluster.install_environment)
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
    with ended_by_interrupt():
        from podzero.runtime.monitoring.view import make_view
        from podzero.runtime.train import train as run

    ended = run(experiment, root, address, make_view(view), step, layers, secrets, packages)
    again = [("--address", address)] if address else []
    again += [("--env", name) for name in env or ()] + [("--with", requirement) for requirement in with_ or ()]
    repeated = "".join(f" {option} {shlex.quote(value)}" for option, value in again)
    print(f"The run has ended: {ended.reason}. Its files are in {root}.")
    print(f"Evaluate it with: podzero evaluate {shlex.quote(str(root))}")
    print(f"Continue it with: podzero train {continuation(experiment, root, None if ended.signal else {})}{repeated}")
    if ended.signal:
        raise typer.Exit(128 + ended.signal)


def own_packages(requirements: Iterable[str], joins: bool, installs: bool) -> tuple[str, ...]:
    """The packages of `--with` that the nodes get, in the versions that this machine has.

    Args:
      requirements: what `--with` names.
      joins: whether the run joins a Ray cluster.
      installs: whether podzero installs the environments of its nodes (`cluster.install_environment`).
    """
    return tuple(_pinned(text, joins, installs) for text in requirements)


def _pinned(text: str, joins: bool, installs: bool) -> str:
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


IMPORT_TIMEOUT_S = 300.0
"""Time limit for starting a Python process and importing JAX in it."""
_STEPS = 8
"""Random steps of the check of an environment of gymnasium."""


def check_startable(experiment: Experiment, workdir: Workdir, step: int | None = None, joins: bool = False) -> None:
    """Checks what can be checked without Ray and devices before `experiment` is trained in `workdir`.

    Args:
      experiment: the experiment to train.
      workdir: the run's working directory.
      step: the step of the checkpoint to resume from; None for the newest.
      joins: whether the run joins a Ray cluster; the evaluation's engines and solver are then not needed here.

    Raises:
      ConfigError: a stop limit is already reached, an optional package or an opponent of the evaluation is missing, or
        the environment or the network cannot be made, or a network of the user's own violates the contract.
      WorkdirError: the copy of the teacher of a resumed run is missing.
    """
    experiment = as_resumed(experiment, workdir)
    approve_code(experiment)
    with ended_by_interrupt():  # these import JAX, the solver, and what writers and OpenVINO need
        _check_not_ended(experiment, workdir, step)
        _check_engines(experiment, joins)
        _check_solver(experiment, joins)
        check_packages(experiment.metrics)
        # Then only the nodes need the optional packages.
        if experiment.cluster.install_environment:
            return
        if experiment.uses_openvino:
            import_openvino()
    # What is built in needs no check.
    built_in = isinstance(experiment.env, GameConfig | ChanceGameConfig) and not experiment.own_parts
    read = (experiment.init_from, experiment.teacher, experiment.data.records, experiment.actors.opponents)
    if not built_in or any(read):
        _check_made(experiment)


def _check_not_ended(experiment: Experiment, workdir: Workdir, step: int | None) -> None:
    if not workdir.is_run:
        return
    found = next((found for found in checkpoints(workdir) if step in (None, found.step)), None)
    if found is None:
        return
    minutes = found.counters.get("elapsed_s", 0.0) / 60
    games = found.counters.get("games", 0.0)
    reached = experiment.stop.reached(minutes, found.step, games)
    if reached is not None:
        done = {"minutes": minutes, "steps": found.step, "games": games}
        raise ConfigError(
            f"{workdir.root} has already reached {reached}, after {minutes:.1f} minutes, {found.step} steps and "
            f"{games:.0f} games; raise the limit to train longer, for example: "
            f"podzero train {continuation(experiment, workdir.root, done)}"
        )


def _check_engines(experiment: Experiment, joins: bool) -> None:
    """Checks that the opponents' engines play the game and, without a cluster, that they are installed."""
    for name in experiment.evaluation.opponents or ():
        kind, _, level = name.partition(":")
        if kind not in ENGINES:
            continue
        player = EnginePlayer(kind, int(level))
        if joins and experiment.env.title in ENGINES[kind].games:
            continue
        try:
            engine_program(name, player, experiment.env.title)
        except ConfigError as error:
            raise ConfigError(f"evaluation.opponents: {error}") from None


def _check_solver(experiment: Experiment, joins: bool) -> None:
    """Checks, without a cluster, that the solver is installed if the evaluation needs it."""
    evaluation, game = experiment.evaluation, experiment.env.title
    plays, many = "solver" in (evaluation.opponents or ()), evaluation.positions > EvaluationConfig().positions
    if joins or not (plays or many):
        return
    from podzero.evaluation.positions import read_labels
    from podzero.evaluation.solvers import SOLVED, known_game, make_solver

    # The solver is needed only for positions beyond those that were labelled beforehand.
    labels = read_labels(known_game(game), "validation")
    beyond = many and labels is not None and evaluation.positions > len(labels.moves)
    if game in SOLVED and (plays or beyond):
        try:
            make_solver(game)
        except ConfigError as error:
            setting = "opponents: solver" if plays else f"positions = {evaluation.positions}"
            raise ConfigError(f"evaluation.{setting}: {error}") from None


def _check_made(experiment: Experiment) -> None:
    """Calls `check_parts` in a process of its own: a user's code may crash or hang."""
    env, limit_s = experiment.env, IMPORT_TIMEOUT_S
    own = [f"{section}.name = '{part.name}'" for section, part in experiment.own_parts.items()]
    what = " and ".join(own) or f"network.name = '{experiment.network.name}'"
    if not isinstance(env, GameConfig | ChanceGameConfig):
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
    from podzero.envs import check_steps, check_values, spec_of
    from podzero.evaluation.resolve import make_opponents
    from podzero.learner.contract import check_own_learner
    from podzero.networks import check_own_network
    from podzero.replay import open_records

    env = experiment.env
    # A run goes on after a rare failure of an environment: half of the steps may fail.
    spec = check_steps(env, 1, _STEPS, _STEPS // 2) if isinstance(env, GymnasiumConfig) else spec_of(env)
    check_values(experiment, spec)
    check_own_network(experiment.network, spec)
    check_own_search(experiment, spec)
    check_own_learner(experiment, spec)
    if experiment.actors.opponents:
        make_opponents(experiment, Path(), seed=0)
    if experiment.data.records is not None:
        open_records(experiment, spec)
