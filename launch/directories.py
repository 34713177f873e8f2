"""Chooses the experiment that `podzero train` runs, and its working directory."""

from __future__ import annotations

import glob
import itertools
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from podzero.config import Experiment, Layers, builtin_configs, load, parse, read_layers
from podzero.core.errors import ConfigError
from podzero.files.changes import NEUTRAL, Change, differences
from podzero.files.workdir import Workdir, WorkdirError, split_step, step_folders, unused
from podzero.tools.commands.options import RUNS

MAX_NAMED = 3
"""Most changed settings after which a directory is named; with more, it is numbered."""
_NAMEABLE = re.compile(r"[\w.+-]{1,60}")
_SHOWN = 3
"""Most settings listed in a reason."""


class ChosenDirectory(NamedTuple):
    """The name of an experiment's directory."""

    name: str
    reason: str
    """A sentence that tells the user which directory was chosen and why."""


class Start(NamedTuple):
    """What `podzero train` starts."""

    experiment: Experiment
    root: Path
    """The working directory."""
    step: int | None
    """The step of the checkpoint to resume from; None for the newest."""
    reason: str
    """As in `ChosenDirectory`."""
    layers: Layers
    """The files that the experiment comes from."""


def find_start(config: str, overrides: Iterable[str], workdir: Path | None, runs: Path = RUNS) -> Start:
    """Finds the experiment and the working directory for the arguments of `podzero train`.

    Args:
      config: the name of an experiment, a YAML file, or a run to resume as `DIR` or `DIR@STEP`.
      overrides: settings as `section.field=value`.
      workdir: the working directory; None for one in `runs` (see `place`).
      runs: the folder for working directories that the user does not name.

    Raises:
      ConfigError: there is no such experiment, checkpoint or setting.
      WorkdirError: the directory holds another experiment or no run, or is not a folder.
    """
    overrides = tuple(overrides)
    found = None if config in builtin_configs() or Path(config).expanduser().is_file() else split_step(config)
    if found is not None:
        return _resumption(*found, overrides, workdir)
    layers = read_layers(config, overrides)
    experiment = parse(layers.tree, config, layers.inherited)
    if workdir is None:
        home = runs / experiment.name
        placement = place(experiment, _as_it_stands(config), _held(home))
        workdir, reason = home.with_name(placement.name), placement.reason.format(runs=home.parent)
    else:
        reason = f"{'Resuming the' if Workdir(workdir).is_run else 'New'} run in {workdir}"
    Workdir(workdir).check(experiment)
    return Start(experiment, workdir, None, reason + _changed(Workdir(workdir), experiment), layers)


def place(
    experiment: Experiment, standing: Experiment | None, held: Mapping[str, Experiment | None]
) -> ChosenDirectory:
    """Chooses an experiment's directory: always the same one once that holds the experiment.

    An experiment goes to the directory of its name. Overrides that change what is learned are appended if they are few,
    for example `cartpole-seed1`. If another experiment is there, a number is appended.

    Args:
      experiment: the experiment to run.
      standing: the experiment without overrides; None if it is invalid without them.
      held: the experiment in each existing directory, by the directory's name; None if it cannot be read.

    Returns:
      the choice, with the placeholder `{runs}` for the parent folder in its reason.
    """
    # A name may hold several folders, of which this is the last.
    name = Path(experiment.name).name
    # Of all differences, those that change what is learned.
    differing = [] if standing is None else differences(standing, experiment, NEUTRAL)
    changes = [change for change in differing if change.setting != "name"]
    suffix = _suffix(changes)
    preferred = f"{name}-{suffix}" if suffix else name
    # Resume the run that holds this experiment, if there is one.
    mine = [found for found, other in held.items() if other is not None and not differences(other, experiment, NEUTRAL)]
    if mine:
        # By length first, so that `hex-2` comes before `hex-10`.
        chosen = preferred if preferred in mine else min(mine, key=lambda found: (len(found), found))
        return ChosenDirectory(chosen, f"Resuming the run in {{runs}}/{chosen}, which holds this experiment")
    # Else take the first free name. An unreadable experiment's is taken too: `Workdir.check` then names the bad file.
    numbered = (f"{preferred}-{number}" for number in itertools.count(2))
    chosen = next(candidate for candidate in itertools.chain([preferred], numbered) if held.get(candidate) is None)
    reason = f"New run in {{runs}}/{chosen}"
    if chosen != preferred:
        other = held[preferred]
        assert other is not None
        reason += f", since {{runs}}/{preferred} holds another experiment ({_listed(differences(other, experiment))})"
    elif suffix:
        reason += f", named after what differs from {name}: " + ", ".join(
            f"{change.setting}={change.new}" for change in changes
        )
    return ChosenDirectory(chosen, reason)


def continuation(experiment: Experiment, root: Path, done: Mapping[str, float] | None) -> str:
    """The arguments of `podzero train` that continue a run that has ended.

    Args:
      experiment: the run's experiment.
      root: the run's working directory.
      done: if the run has reached a limit, its minutes, steps and games as far as they are known; the arguments then
        double the limits. None if it ended for another reason.
    """
    limits = {} if done is None else experiment.stop.model_dump(exclude_none=True)
    higher = [f"stop.{name}={math.ceil(2 * max(limit, (done or {}).get(name, 0)))}" for name, limit in limits.items()]
    return shlex.join([str(root), *higher])


def _resumption(folder: Path, step: int | None, overrides: tuple[str, ...], workdir: Path | None) -> Start:
    """Resumes the run in `folder`."""
    if workdir is not None and workdir.expanduser().absolute() != Workdir(folder).root:
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
    experiment = parse(layers.tree, str(held.experiment_file), given=layers.commanded)
    try:
        held.check(experiment)
    except WorkdirError as error:
        anew = shlex.join([str(folder / "experiment.yaml"), *overrides, "--workdir", str(unused(folder))])
        raise WorkdirError(f"{error}: podzero train {anew}") from None
    if step is None:
        reason = f"Resuming the run in {folder}"
    else:
        _check_step(held, folder, step)
        reason = f"Resuming the run in {folder} from its checkpoint of step {step}; everything later is set aside"
    return Start(experiment, folder, step, reason + _changed(held, experiment), layers)


def _check_step(workdir: Workdir, folder: Path, step: int) -> None:
    present = step_folders(workdir.checkpoints)
    if step not in present:
        known = ", ".join(map(str, present)) or "none"
        other = f"{folder}@{present[-1]}" if present else str(folder)
        raise ConfigError(
            f"{folder} holds no checkpoint of step {step}; there are: {known}; for example: "
            f"podzero train {shlex.quote(other)}"
        )


def _as_it_stands(config: str) -> Experiment | None:
    """The experiment without overrides; None if it is invalid without them."""
    try:
        return load(config)
    except ConfigError:
        return None


def _held(home: Path) -> dict[str, Experiment | None]:
    """The experiments in `home` and in the directories named `home-...` beside it."""
    folders = sorted(home.parent.glob(f"{glob.escape(home.name)}*"))
    runs = [Workdir(folder) for folder in folders if f"{folder.name}-".startswith(f"{home.name}-")]
    return {run.root.name: _readable(run) for run in runs if run.is_run}


def _readable(run: Workdir) -> Experiment | None:
    try:
        return run.experiment()
    except WorkdirError:
        return None


def _suffix(changes: list[Change]) -> str:
    """The changes as part of a directory's name; empty if they are too many or too long."""
    suffix = "-".join(f"{change.setting.rpartition('.')[2]}{_value(change.new)}" for change in changes)
    return suffix if len(changes) <= MAX_NAMED and _NAMEABLE.fullmatch(suffix) else ""


def _value(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value).lower()


def _changed(workdir: Workdir, experiment: Experiment) -> str:
    """The settings that a resumed run changes, as the end of a sentence."""
    changes = differences(workdir.experiment(), experiment) if workdir.is_run else []
    return f"; changed: {_listed(changes)}" if changes else ""


def _listed(changes: list[Change]) -> str:
    more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return "; ".join(map(str, changes[:_SHOWN])) + more
