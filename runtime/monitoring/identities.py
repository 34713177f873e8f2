"""The names of a run at services that keep metrics, so that a resumed run is the same one there."""

from __future__ import annotations

import json
from collections.abc import Callable

from podzero.workdir import Workdir, read_json, write_atomically


def identity(workdir: Workdir, service: str, create: Callable[[], str]) -> str:
    """The id of this run at a service; `create` makes it at the first time, and the working directory keeps it.

    Raises:
      OSError: it cannot be kept.
    """
    held = read_json(workdir.writers_file)
    if not isinstance(held.get(service), str):
        held[service] = create()
        write_atomically(workdir.writers_file, json.dumps(held) + "\n")
    return str(held[service])
