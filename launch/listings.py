"""The output of the commands `configs`, `settings`, `runs` and `status`.

Only these commands import this module, since rich takes time to import.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from podzero.config import FOR_SLICES, Experiment, builtin_configs
from podzero.config.section import IMPORT_PATH
from podzero.core.errors import ConfigError, nearest
from podzero.files.workdir import Workdir, WorkdirError, refuse_url
from podzero.launch.options import readable
from podzero.runtime.monitoring.status import StoredStatus, duration, read_status
from podzero.runtime.monitoring.view import status_panel


class Builtin(NamedTuple):
    """An experiment that comes with podzero."""

    name: str
    file: str
    card: str
    """The comment at the top of the file: the experiment's results, hardware and training time."""


def list_builtin() -> list[Builtin]:
    """The experiments that come with podzero, sorted by name."""
    return [Builtin(name, str(path), card(path)) for name, path in builtin_configs().items()]


def builtin_table(experiments: list[Builtin]) -> Table:
    """A table of experiments with the first lines and results of their cards; those for slices come last."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("name", no_wrap=True, style="cyan")
    table.add_column("experiment")
    table.add_column("result")
    general = [experiment for experiment in experiments if not experiment.name.startswith(FOR_SLICES)]
    for experiment in general:
        table.add_row(experiment.name, experiment.card.partition("\n")[0], _result(experiment.card))
    table.add_row()
    table.add_row("[bold]for TPU slices[/]", "[bold]docs/tpu.md says how to start one[/]")
    for experiment in experiments[len(general) :]:
        table.add_row(experiment.name, experiment.card.partition("\n")[0])
    return table


def _result(card: str) -> str:
    """The text after `Result:` in a card."""
    found = re.search(r"^Result:(.*?)(?=^\w+:|\Z)", card, re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def card(config: Path) -> str:
    """The comment at the top of an experiment's file."""
    lines: list[str] = []
    for line in config.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" ").rstrip())
    return "\n".join(lines)


INTRODUCTION = """\
# Settings

Every setting of an experiment, with its type, default and meaning. Set one in a YAML file, or on the command line as
`section.field=value`, for example `learner.optimizer.learning_rate=3e-4`. A file that begins with
`extends: connect_four` takes over the settings of that experiment ([experiments](experiments.md)).

This page is generated: `podzero settings > docs/settings.md`.
"""
_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}

_Schema = Mapping[str, Any]


def settings_page(section: str | None = None) -> str:
    """The settings of all sections or of one, as Markdown.

    Raises:
      ConfigError: there is no such section.
    """
    schema = Experiment.model_json_schema()
    fields = schema["properties"]
    sections = {name: field for name, field in fields.items() if _models(field)}
    if section is None:
        own = {name: field for name, field in fields.items() if name not in sections}
        chosen, lines = sections, [INTRODUCTION, *_table(own, schema["required"])]
    elif section in sections:
        chosen, lines = {section: sections[section]}, []
    else:
        raise ConfigError(f"no section '{section}'{nearest(section, sections)}; known: {', '.join(sections)}")
    for name, field in chosen.items():
        lines += _section(name, field, schema["$defs"], "##")
    return "\n".join(lines).strip()


def _section(path: str, field: _Schema, models: Mapping[str, _Schema], heading: str) -> Iterator[str]:
    """The lines of a section, for each of its kinds if there are several, and of the sections inside it."""
    kinds = [models[name] for name in _models(field)]
    if len(kinds) > 1:
        yield from ("", f"{heading} {path}", "", f"{_words(field)} One of the following, selected by `name`.")
        heading += "#"
    for kind in kinds:
        fields = kind["properties"]
        names = f": {', '.join(_choices(fields['name']))}" if len(kinds) > 1 else ""
        yield from ("", f"{heading} {path}{names}", "", _words(kind), "")
        yield from _table(fields, kind.get("required", ()))
        for name, inner in fields.items():
            if _models(inner):
                yield from _section(f"{path}.{name}", inner, models, f"{heading}#")


def _table(fields: Mapping[str, _Schema], required: Iterable[str]) -> Iterator[str]:
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in fields.items():
        default = "required" if name in required else _default(field)
        types = ", ".join(dict.fromkeys(map(_type, field.get("oneOf", [field]))))
        yield f"| `{name}` | {types} | {default} | {_words(field)} |"


def _type(field: _Schema) -> str:
    """The type of a field, with its bounds."""
    match field:
        case {"anyOf": [inner, {"type": "null"}]}:
            return f"{_type(inner)}, or null"
        case {"const": _} | {"enum": _}:
            return ", ".join(f"`{choice}`" for choice in _choices(field))
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}s"
        case {"type": "object"}:
            return "mapping"
        case {"type": kind}:
            bounds = " and ".join(f"{sign} {field[key]:g}" for key, sign in _BOUNDS.items() if key in field)
            return f"{kind} {bounds}".rstrip()
        case _:
            return "section"


def _choices(field: _Schema) -> list[str]:
    # A name that is none of a list is an import path.
    return [str(choice) for choice in field.get("enum", [field.get("const", IMPORT_PATH)])]


def _models(field: _Schema) -> list[str]:
    """The names of the models that a field may hold; empty for a plain value."""
    if "$ref" in field:
        return [field["$ref"].removeprefix("#/$defs/")]
    inner = [*field.get("oneOf", ()), *field.get("anyOf", ()), *filter(None, [field.get("items")])]
    return [name for option in inner for name in _models(option)]


def _default(field: _Schema) -> str:
    # pydantic leaves out empty mappings made by a factory.
    default = field.get("default", {})
    if _models(field) and isinstance(default, dict):
        return "see below"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _words(field: _Schema) -> str:
    return str(field["description"]).replace("\n", " ")


REFRESH_S = 2.0
"""Interval at which a watched status is read, the same as that at which a run writes it."""
METRICS = ("loss", "rating", "keeps_value", "mean_return")
"""The metrics in the list of runs."""

RunState = Literal["running", "ended", "interrupted", "not started", "damaged"]


class ListedRun(NamedTuple):
    """A run in the list of runs."""

    directory: str
    experiment: str
    state: RunState
    """`interrupted`: the run has not ended, but no process trains it. `damaged`: its files cannot be read."""
    age_s: float | None
    """Seconds since the status was written; None without a status."""
    step: int
    metrics: dict[str, float]
    """The newest values of those `METRICS` that the run has."""
    problem: str = ""
    """Why a damaged run cannot be read."""


def find_runs(root: Path) -> list[ListedRun]:
    """The runs in `root` and its subdirectories, at most two levels deep, sorted by directory.

    Raises:
      WorkdirError: there is no such directory.
    """
    refuse_url(root)
    if not root.is_dir():
        raise WorkdirError(f"no such directory: {root}; name the one that contains your runs")
    folders = {file.parent for pattern in ("", "*/", "*/*/") for file in root.glob(f"{pattern}experiment.yaml")}
    return [_run(folder) for folder in sorted(folders)]


def runs_table(runs: Iterable[ListedRun]) -> Table:
    """A table of runs."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("directory", "experiment", "state", "status age", "step", "newest metrics"):
        table.add_column(column, justify="right" if column in ("status age", "step") else "left")
    for run in runs:
        age = "" if run.age_s is None else duration(run.age_s)
        metrics = ", ".join(f"{name} {readable(value)}" for name, value in run.metrics.items())
        table.add_row(run.directory, run.experiment, run.state, age, f"{run.step:,}", metrics or escape(run.problem))
    return table


def watch_status(workdir: Workdir, every_s: float = REFRESH_S) -> Iterator[StoredStatus]:
    """Yields the status of a run every `every_s` seconds, and once more after its process has ended.

    Raises:
      WorkdirError: there is no run, or it has no status.
    """
    while (found := read_status(workdir)).alive:
        yield found
        time.sleep(every_s)
    yield found


def show_statuses(statuses: Iterable[StoredStatus], directory: Path, as_json: bool) -> None:
    """Shows each status in place of the previous one, or prints each as a line of JSON.

    Without a terminal only the last status is shown.
    """
    if as_json:
        for found in statuses:
            print(found.to_json(), flush=True)
        return
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        for found in statuses:
            live.update(Group(status_panel(found.status), Text(f"{directory}: {found.summary}")), refresh=True)
    # Live ends the line only on a terminal.
    if not console.is_terminal:
        console.line()


def _run(folder: Path) -> ListedRun:
    workdir, name = Workdir(folder), ""
    try:
        name = workdir.experiment().name
        found = read_status(workdir)
    except WorkdirError as error:
        if name and not workdir.status_file.exists():
            return ListedRun(str(folder), name, "not started", None, 0, {})
        return ListedRun(str(folder), name, "damaged", None, 0, {}, str(error))
    status = found.status
    metrics = {key: value for key in METRICS if (value := getattr(status, key)) is not None}
    return ListedRun(str(folder), name, _state(found), round(found.age_s, 1), status.step, metrics)


def _state(found: StoredStatus) -> RunState:
    if found.alive:
        return "running"
    return "ended" if found.status.phase == "ended" else "interrupted"
