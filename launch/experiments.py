"""The list of the experiments that come with podzero."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from podzero.config import FOR_SLICES, builtin_configs


class Builtin(NamedTuple):
    """An experiment that comes with podzero."""

    name: str
    file: str
    card: str
    """The comment at the top of the file: what the experiment reaches, on what hardware, in how long."""


def list_builtin() -> list[Builtin]:
    """All experiments that come with podzero, by name."""
    return [Builtin(name, str(path), card(path)) for name, path in builtin_configs().items()]


def builtin_table(experiments: list[Builtin]) -> Table:
    """The experiments for people: names, the first lines of their cards, and their results; those for slices last."""
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
    """What a card says after `Result:`."""
    found = re.search(r"^Result:(.*?)(?=^\w+:|\Z)", card, re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def card(config: Path) -> str:
    """The comment at the top of an experiment's file."""
    lines: list[str] = []
    for line in config.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" ").rstrip())
    return "\n".join(lines)
