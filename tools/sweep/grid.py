"""The runs of a sweep: all combinations of the values that its settings take."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import yaml

from podzero.config import Experiment, load, read_yaml
from podzero.core.errors import ConfigError

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

    Raises:
      ConfigError: there is no such experiment or setting, a value does not fit it, two runs would be the same, or there
        are more than `MAX_RUNS`.
    """
    choices = {setting: values for setting, values in grid.swept.items() if setting != SEED}
    seeds = grid.swept.get(SEED, [])
    indices: Sequence[int] = range(math.prod(map(len, choices.values())))
    if samples is not None and samples < len(indices):
        indices = sorted(random.Random(0).sample(indices, samples))
    if (count := len(indices) * max(len(seeds), 1)) > MAX_RUNS:
        raise ConfigError(f"the sweep has {count:,} runs; expected at most {MAX_RUNS:,}")
    combinations = [_combination(choices, index) for index in indices]
    repeats = [{SEED: seed} for seed in seeds] or [{}]
    runs = [_run(config, grid, combination | seed) for seed in repeats for combination in combinations]
    _check_different(runs)
    return runs


def _combination(choices: dict[str, list[str]], index: int) -> dict[str, str]:
    """The combination at an index; the values of the last setting alternate fastest."""
    found = {}
    for setting, values in reversed(choices.items()):
        index, place = divmod(index, len(values))
        found[setting] = values[place]
    return dict(reversed(found.items()))


def _run(config: str, grid: Grid, settings: dict[str, str]) -> SweepRun:
    overrides = [f"{setting}={value}" for setting, value in (grid.fixed | settings).items()]
    parts = [
        _short(setting, settings) + _nameable(value, grid.swept[setting].index(value))
        for setting, value in settings.items()
    ]
    return SweepRun("-".join(parts) or "run", settings, overrides, load(config, overrides))


def _short(setting: str, settings: Iterable[str]) -> str:
    """The last part of a setting's name, or the whole where two settings end alike."""
    last = setting.rpartition(".")[2]
    alike = [other for other in settings if other.rpartition(".")[2] == last]
    return last if len(alike) == 1 else setting


def _nameable(value: str, place: int) -> str:
    """A value as part of a directory's name; one that cannot be is numbered."""
    return value if _NAMEABLE.fullmatch(value) else f"-{place + 1}"


def _check_different(runs: Sequence[SweepRun]) -> None:
    named: dict[str, str] = {}
    for run in runs:
        settings = run.experiment.model_dump_json()
        if settings in named:
            raise ConfigError(
                f"the runs {named[settings]} and {run.name} would have the same settings; give each value once"
            )
        named[settings] = run.name


def shown(settings: Mapping[str, str]) -> str:
    """Settings in one line."""
    return ", ".join(itertools.starmap("{}={}".format, settings.items()))
