"""The trained agents that come with podzero: `zoo:NAME` is the working directory `podzero/zoo/NAME`.

Each holds an experiment, one snapshot, the metrics of its training with one line a minute for each worker, and a card
that says how it was trained and how strong it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from podzero.errors import ConfigError, nearest
from podzero.workdir import Workdir

PREFIX = "zoo:"
"""Of the names of these agents as players."""
_FOLDER = Path(__file__).parent / "zoo"


def zoo_names() -> list[str]:
    """The names of all agents, sorted."""
    return sorted(card.parent.name for card in _FOLDER.glob("*/card.yaml"))


def zoo_workdir(name: str) -> Workdir:
    """The working directory of an agent.

    Raises:
      ConfigError: there is no agent of this name.
    """
    names = zoo_names()
    if name not in names:
        raise ConfigError(f"no agent '{name}' comes with podzero{nearest(name, names)}; there are: {', '.join(names)}")
    return Workdir(_FOLDER / name)


def zoo_card(name: str) -> dict[str, Any]:
    """How an agent was trained and judged.

    Returns:
      `game`, `network`, `command`, `commit`, `date`, `hours`, `hardware`, `games`, and `judged`, a list of sentences.
    """
    card: dict[str, Any] = yaml.safe_load((zoo_workdir(name).root / "card.yaml").read_text())
    return card | {"date": str(card["date"])}
