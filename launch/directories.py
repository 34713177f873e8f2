"""Which experiment `podzero train` runs, and in which working directory."""

from __future__ import annotations

import glob
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from podzero.changes import NEUTRAL, Change, differences
from podzero.config import Experiment, builtin_configs, load
from podzero.errors import ConfigError
from podzero.workdir import Workdir, WorkdirError, split_step, step_folders, unused

RUNS = Path("runs")
"""Where working directories are made by default."""
MAX_NAMED = 3
"""The most settings after which a directory is named; one that differs in more gets a number."""
_NAMEABLE = re.compile(r"[\w.+-]{1,60}")
_SHOWN = 3
"""The most settings that a reason lists."""


class Placement(NamedTuple):
    """A directory for an experiment."""

    name: str
    reason: str
    """For people, as a sentence: which directory this is, and why it was chosen."""


class Start(NamedTuple):
    """What `podzero train` does."""

    experiment: Experiment
    root: Path
    """The working directory."""
    step: int | None
    """The step of the checkpoint from which the run resumes; None takes the newest."""
    reason: str


def find_start(config: str, overrides: Iterable[str], workdir: Path | None, runs: Path = RUNS) -> Start:
    """Finds the experiment and the working directory of a command.

    A working directory as `config` is resumed with the experiment that it holds. An experiment without `workdir` goes
    to the directory below `runs` that holds it, or to a new one (`place`).

    Args:
      config: the name of an experiment, a YAML file, a working directory `DIR`, or `DIR@STEP`.
      overrides: `section.field=value` items.
      workdir: the working directory that the user chose.
      runs: where directories are made otherwise.

    Raises:
      ConfigError: there is no such experiment, checkpoint or setting.
      WorkdirError: the directory holds another experiment, or no run, or is no folder.
    """
    overrides = tuple(overrides)
    found = None if config in builtin_configs() or Path(config).expanduser().is_file() else split_step(config)
    if found is not None:
        return _resumption(*found, overrides, workdir)
    experiment = load(config, overrides)
    if workdir is None:
        home = runs / experiment.name
        placement = place(experiment, _as_it_stands(config), _held(home))
        workdir, reason = home.with_name(placement.name), placement.reason.format(runs=home.parent)
    else:
        reason = f"{'Resuming the' if Workdir(workdir).is_run else 'New'} run in {workdir}"
    Workdir(workdir).check(experiment)
    return Start(experiment, workdir, None, reason + _changed(Workdir(workdir), experiment))


def place(experiment: Experiment, standing: Experiment | None, held: Mapping[str, Experiment | None]) -> Placement:
    """Chooses the directory of an experiment. Pure, and the same again once the experiment is in that directory.

    An experiment as it stands in its file, apart from settings that do not change what is learned, is in the directory
    of its name. One with a few other settings is in a directory that is named after them, as `cartpole-seed1`. Where
    another experiment is in that directory, a number is added.

    Args:
      experiment: what is run.
      standing: the same without overrides; None if that cannot be run.
      held: the experiments of the directories that may hold it, by name; None for one that cannot be read.

    Returns:
      the placement; `{runs}` in its reason stands for the folder of the directories.
    """
    name = Path(experiment.name).name
    differing = [] if standing is None else _other_settings(standing, experiment)
    changes = [change for change in differing if change.setting != "name"]
    suffix = _suffix(changes)
    preferred = f"{name}-{suffix}" if suffix else name
    mine = [found for found, other in held.items() if other is not None and not _other_settings(other, experiment)]
    if mine:
        chosen = preferred if preferred in mine else min(mine, key=lambda found: (len(found), found))
        return Placement(chosen, f"Resuming the run in {{runs}}/{chosen}, which holds this experiment")
    chosen = next(candidate for candidate in _numbered(preferred) if held.get(candidate) is None)
    reason = f"New run in {{runs}}/{chosen}"
    if chosen != preferred:
        other = held[preferred]
        assert other is not None
        reason += f", since {{runs}}/{preferred} holds another experiment ({_listed(differences(other, experiment))})"
    elif suffix:
        reason += f", named after what differs from {name}: " + ", ".join(
            f"{change.setting}={change.new}" for change in changes
        )
    return Placement(chosen, reason)


def go_on(experiment: Experiment, root: Path, done: Mapping[str, float] | None) -> str:
    """The arguments of the command that goes on with a run that has ended.

    Args:
      experiment: of the run.
      root: its working directory.
      done: the minutes, steps and games of the run, as far as known, which has reached a limit: the command sets twice
        as high ones. None if it ended for another reason.
    """
    limits = {} if done is None else experiment.stop.model_dump(exclude_none=True)
    higher = [f"stop.{name}={math.ceil(2 * max(limit, (done or {}).get(name, 0)))}" for name, limit in limits.items()]
    return shlex.join([str(root), *higher])


def _resumption(folder: Path, step: int | None, overrides: tuple[str, ...], workdir: Path | None) -> Start:
    """The start that goes on with the run in `folder`."""
    if workdir is not None and workdir.expanduser().absolute() != Workdir(folder).root:
        raise ConfigError(
            f"podzero train {folder} goes on with the run in that directory: leave out --workdir {workdir}; for a new "
            f"run with its experiment give {folder / 'experiment.yaml'} and a --workdir"
        )
    held = Workdir(folder)
    if not held.is_run:
        raise WorkdirError(
            f"{folder} holds no experiment.yaml, so it is not the working directory of a run: give the name of an "
            "experiment (`podzero configs` lists them), a YAML file, or a working directory (`podzero runs` lists them)"
        )
    held.experiment()  # its error names the file
    experiment = load(str(held.experiment_file), overrides)
    try:
        held.check(experiment)
    except WorkdirError as error:
        anew = shlex.join([str(folder / "experiment.yaml"), *overrides, "--workdir", str(unused(folder))])
        raise WorkdirError(f"{error}: podzero train {anew}") from None
    if step is None:
        reason = f"Resuming the run in {folder}"
    else:
        _check_step(held, folder, step)
        reason = f"Resuming the run in {folder} from its checkpoint of step {step}; what is later is set aside"
    return Start(experiment, folder, step, reason + _changed(held, experiment))


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
    """The experiment without overrides; None if it needs some of them."""
    try:
        return load(config)
    except ConfigError:
        return None


def _held(home: Path) -> dict[str, Experiment | None]:
    """The experiments in the directory `home` and in those whose names begin with its name."""
    folders = sorted(home.parent.glob(f"{glob.escape(home.name)}*"))
    runs = [Workdir(folder) for folder in folders if f"{folder.name}-".startswith(f"{home.name}-")]
    return {run.root.name: _readable(run) for run in runs if run.is_run}


def _readable(run: Workdir) -> Experiment | None:
    try:
        return run.experiment()
    except WorkdirError:
        return None


def _other_settings(one: Experiment, other: Experiment) -> list[Change]:
    """The settings, apart from the neutral ones, that make two experiments different."""
    return differences(one, other, NEUTRAL)


def _suffix(changes: list[Change]) -> str:
    """What names a directory after the settings that differ; empty if there are none, or too many or too long ones."""
    suffix = "-".join(f"{change.setting.rpartition('.')[2]}{_value(change.new)}" for change in changes)
    return suffix if len(changes) <= MAX_NAMED and _NAMEABLE.fullmatch(suffix) else ""


def _value(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value).lower()


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def _changed(workdir: Workdir, experiment: Experiment) -> str:
    """The settings that this start changes in a run that is resumed, as the end of a sentence."""
    changes = differences(workdir.experiment(), experiment) if workdir.is_run else []
    return f"; changed: {_listed(changes)}" if changes else ""


def _listed(changes: list[Change]) -> str:
    more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return "; ".join(map(str, changes[:_SHOWN])) + more
