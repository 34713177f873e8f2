"""The runs of a sweep, which are all combinations of the values that its settings take, and the folder they are in."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml

from podzero.config import Experiment, StopConfig, builtin_configs, load, read_yaml
from podzero.core.errors import ConfigError, os_errors
from podzero.files.workdir import SWEEP_FILE, Workdir, WorkdirError, read_json, refuse_url, write_atomically
from podzero.runtime.monitoring.status import RunStatus, read_status

SEED = "seed"
"""The setting whose values are repetitions of one combination."""
MAX_RUNS = 1000
"""Most runs of a sweep."""
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_NAMEABLE = re.compile(r"[\w.+-]{1,40}")


class Grid(NamedTuple):
    """What the arguments of `podzero sweep` ask for. Values are written as in an override."""

    swept: dict[str, list[str]]
    """The values of each setting with more than one, by the setting's dotted name."""
    fixed: dict[str, str]
    """The value of each setting with one."""


class SweepRun(NamedTuple):
    """A run of a sweep."""

    name: str
    """The name of its working directory."""
    settings: dict[str, str]
    """Its values of the swept settings."""
    overrides: list[str]
    """All settings that override those of the experiment, as `section.field=value`."""
    experiment: Experiment

    @property
    def combination(self) -> dict[str, str]:
        """The settings without the seed, which other runs share."""
        return {setting: value for setting, value in self.settings.items() if setting != SEED}

    @property
    def seed(self) -> str:
        """The seed; empty if seeds are not swept."""
        return self.settings.get(SEED, "")


def read_grid(arguments: Iterable[str]) -> Grid:
    """Reads settings as `section.field=a,b,c`, in which `0..4` means 0,1,2,3,4.

    A list of YAML is one value: `evaluation.opponents=[random],[random, solver]`.
    """
    found: dict[str, list[str]] = {}
    for argument in arguments:
        setting, _, text = argument.partition("=")
        if not setting or setting == argument:
            raise ConfigError(
                f"'{argument}': expected section.field=VALUES, for example learner.optimizer.learning_rate=1e-3,3e-3 "
                "or seed=0..4"
            )
        if setting in found:
            raise ConfigError(f"'{argument}': {setting} is given twice; give all of its values in one argument")
        found[setting] = list(_values(argument, text))
    swept = {setting: values for setting, values in found.items() if len(values) > 1}
    return Grid(swept, {setting: values[0] for setting, values in found.items() if setting not in swept})


def _values(argument: str, text: str) -> Iterator[str]:
    try:
        items = read_yaml(f"[{text}]")
    except yaml.YAMLError:
        raise ConfigError(f"'{argument}': the values are not YAML; expected a,b,c, or a range such as 0..4") from None
    if not items:
        raise ConfigError(f"'{argument}': expected at least one value")
    for item in items:
        ends = _RANGE.fullmatch(item) if isinstance(item, str) else None
        if ends is None:
            # 1e-3 is a string in YAML, and is shown as it was written.
            yield item if isinstance(item, str) and read_yaml(item) == item else json.dumps(item)
            continue
        first, last = int(ends[1]), int(ends[2])
        if last < first:
            raise ConfigError(f"'{argument}': the range {item} is empty; its last value must not be below its first")
        if last - first >= MAX_RUNS:
            raise ConfigError(f"'{argument}': the range {item} has more than {MAX_RUNS} values")
        yield from map(str, range(first, last + 1))


def plan(config: str, grid: Grid, samples: int | None = None) -> list[SweepRun]:
    """The runs of a sweep: those of all combinations with the first seed, then those with the second, and so on.

    `samples` is how many combinations are drawn, always the same ones; None for all.
    """
    choices = {setting: values for setting, values in grid.swept.items() if setting != SEED}
    seeds = grid.swept.get(SEED, [])
    sizes = tuple(map(len, choices.values()))
    indices: Sequence[int] = range(math.prod(sizes))
    if samples is not None and samples < len(indices):
        indices = sorted(random.Random(0).sample(indices, samples))
    if (count := len(indices) * max(len(seeds), 1)) > MAX_RUNS:
        raise ConfigError(f"the sweep has {count:,} runs; expected at most {MAX_RUNS:,}")
    combinations = [
        {setting: choices[setting][place] for setting, place in zip(choices, np.unravel_index(i, sizes), strict=True)}
        for i in indices
    ]
    runs: dict[str, SweepRun] = {}
    for seed in [{SEED: seed} for seed in seeds] or [{}]:
        for combination in combinations:
            run = _run(config, grid, combination | seed)
            same = runs.setdefault(run.experiment.model_dump_json(), run)
            if same is not run:
                raise ConfigError(f"the runs {same.name} and {run.name} have the same settings; give each value once")
    return list(runs.values())


def _run(config: str, grid: Grid, settings: dict[str, str]) -> SweepRun:
    """A run, whose name has the last part of each setting's name, or the whole where two settings end alike."""
    overrides = [f"{setting}={value}" for setting, value in (grid.fixed | settings).items()]
    ends = Counter(setting.rpartition(".")[2] for setting in settings)
    parts = []
    for setting, value in settings.items():
        end = setting.rpartition(".")[2]
        # A value that cannot be part of a directory's name is numbered.
        named = value if _NAMEABLE.fullmatch(value) else f"-{grid.swept[setting].index(value) + 1}"
        parts.append((end if ends[end] == 1 else setting) + named)
    return SweepRun("-".join(parts) or "run", settings, overrides, load(config, overrides))


def shown(settings: Mapping[str, str]) -> str:
    """Settings in one line."""
    return ", ".join(itertools.starmap("{}={}".format, settings.items()))


METRICS = {"keeps_value": "share of moves that keep the value", "mean_return": "mean return", "rating": "Elo rating"}
"""The measures of strength in a status, in words; of those that runs have, the first compares them best."""
State = Literal["finished", "stopped early", "unfinished"]
"""`finished`: a limit of the section `stop` is reached. `stopped early`: others were better, with `--asha`."""


class SweepProgress(NamedTuple):
    """How far a run has come."""

    state: State
    status: RunStatus | None
    """The newest status; None before the run has started."""


class SweepFolder:
    """The folder of a sweep, which need not exist; the run NAME has the working directory NAME in it."""

    def __init__(self, root: Path) -> None:
        refuse_url(root)
        self.root = root.expanduser().absolute()
        self._file = self.root / SWEEP_FILE

    def workdir(self, run: SweepRun) -> Workdir:
        """The working directory of a run."""
        return Workdir(self.root / run.name)

    def open(self, config: str, grid: Grid, runs: Sequence[SweepRun]) -> None:
        """Writes what the sweep is, unless the folder holds another one or a run.

        Values and limits may differ from those with which the sweep was run before.
        """
        if Workdir(self.root).is_run:
            raise WorkdirError(f"{self.root} holds a run; a sweep has a folder of its own: choose another --to")
        fixed = {setting: value for setting, value in grid.fixed.items() if not setting.startswith("stop.")}
        given = {"config": absolute_config(config), "swept": sorted(grid.swept), "fixed": fixed}
        stored = self._read()
        for key, value in given.items():
            if stored and stored.get(key) != value:
                raise WorkdirError(
                    f"{self.root} holds another sweep: its {_WORDS[key]} {_said(stored.get(key))}, not {_said(value)}. "
                    "Choose another --to for this one"
                )
        for run in runs:
            self.workdir(run).check(run.experiment)
        with os_errors(WorkdirError, f"cannot write {self._file}"):
            self._write(given)

    def mark_stopped(self, run: SweepRun) -> None:
        """Records that a run was stopped early."""
        self._write({"stopped": sorted({*self._read().get("stopped", []), run.name})})

    def judgement(self, name: str, positions: int) -> dict[str, float] | None:
        """What `keep_judgement` has kept of a run's judgement in so many positions; None if there is none."""
        found: dict[str, float] | None = self._read().get("judged", {}).get(str(positions), {}).get(name)
        return found

    def keep_judgement(self, name: str, positions: int, measures: Mapping[str, float]) -> None:
        """Keeps a solver's judgement of a finished run."""
        judged = self._read().get("judged", {})
        judged.setdefault(str(positions), {})[name] = measures
        self._write({"judged": judged})

    def progress(self, run: SweepRun) -> SweepProgress:
        """What a run has done."""
        stopped = run.name in self._read().get("stopped", [])
        return progress(self.workdir(run), run.experiment.stop, stopped)

    def _read(self) -> dict[str, Any]:
        return read_json(self._file)

    def _write(self, facts: dict[str, Any]) -> None:
        write_atomically(self._file, json.dumps(self._read() | facts, indent=1) + "\n")


_WORDS = {"config": "experiment is", "swept": "swept settings are", "fixed": "other settings are"}


def _said(value: Any) -> str:
    words = shown(value) if isinstance(value, dict) else value if isinstance(value, str) else ", ".join(value or ())
    return words or "none"


def absolute_config(config: str) -> str:
    """The name of a built-in experiment, or the absolute path of a YAML file."""
    return config if config in builtin_configs() else str(Path(config).expanduser().absolute())


def progress(workdir: Workdir, limits: StopConfig, stopped: bool = False) -> SweepProgress:
    """What the run in `workdir`, which may be new, has done; `stopped` says whether it was stopped early."""
    try:
        found = read_status(workdir)
    except WorkdirError:
        return SweepProgress("unfinished", None)
    status = found.status
    counters = {"elapsed_s": status.elapsed_s, "games": float(status.games), **status.best}
    reached = limits.reached(limits.done(counters, status.step, status.hours, status.cost)) is not None
    # While the last snapshot is judged, the last checkpoint is there already.
    if reached and not found.alive and status.phase in ("judging", "ended"):
        return SweepProgress("finished", status)
    return SweepProgress("stopped early" if stopped else "unfinished", status)
