"""The section of a report on the experiment: how it differs from its base. Pure."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from podzero.changes import RecordedChange, flatten
from podzero.config import Experiment
from podzero.tools.report.figures import Section, Table


def settings(experiment: Experiment, base: Experiment | None, changes: Sequence[RecordedChange] = ()) -> Section:
    """The settings that differ from those of `base`, and those that were changed at resumptions.

    Args:
      experiment: of the run.
      base: the built-in experiment of its name; None compares with the defaults of the schema.
      changes: at resumptions.
    """
    changed = (_changed(changes),) if changes else ()
    own = flatten(experiment.model_dump(mode="json"))
    if base is None:
        chosen = flatten(experiment.model_dump(mode="json", exclude_defaults=True))
        other = {key: default for key, default in _defaults().items() if key in own}
        rows = [(key, _text(other, key), _text(own, key)) for key in sorted(chosen)]
        caption, name = "Settings that differ from the defaults: no built-in experiment has this name.", "default"
    else:
        other = flatten(base.model_dump(mode="json"))
        rows = [
            (key, _text(other, key), _text(own, key))
            for key in sorted({*own, *other})
            if own.get(key) != other.get(key)
        ]
        caption, name = f"Settings that differ from the built-in experiment {base.name}.", base.name
    if not rows:
        facts = {"differences": f"none from the built-in experiment {experiment.name}"}
        return Section("Settings", facts=facts, tables=changed, text=experiment.to_yaml())
    table = Table(caption, ("setting", name, "this run"), rows)
    return Section("Settings", tables=(table, *changed), text=experiment.to_yaml())


def _changed(changes: Sequence[RecordedChange]) -> Table:
    rows = [
        (f"{step:,}", time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(t)), name, json.dumps(old), json.dumps(new))
        for t, step, (name, old, new) in changes
    ]
    return Table(
        "Settings that were changed when the run was resumed.", ("step", "time", "setting", "before", "after"), rows
    )


def _defaults() -> dict[str, Any]:
    """The defaults of all settings outside `env` and `network`, which depend on their kinds."""
    fields = Experiment.model_fields
    sections = {
        name: field.default.model_dump(mode="json")
        for name, field in fields.items()
        if name not in ("name", "env", "network", "seed")
    }
    return flatten(sections) | {"seed": fields["seed"].default}


def _text(flat: Mapping[str, Any], key: str) -> str:
    if key not in flat:
        return "\N{EN DASH}"
    value = flat[key]
    return value if isinstance(value, str) else json.dumps(value)
