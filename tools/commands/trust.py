"""Asks before code that an experiment names is imported: a folder of files and the name of a module once each.

Whoever trains or evaluates what a stranger made would otherwise run the stranger's code unawares, or any function of an
installed package with the stranger's arguments. Only the command line asks: Python programs that use podzero import
what they are given, and the processes of a run what was approved before they started.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import typer

from podzero.config import Experiment
from podzero.core.errors import ConfigError
from podzero.core.importing import approve, ask_before_import, file_digest, file_of, place_of
from podzero.core.machine import user_config
from podzero.files.players import TrainedPlayer, parse_player, starts_program
from podzero.files.workdir import read_json, write_atomically

_SHIPPED = Path(__file__).resolve().parents[2] / "configs"
"""The experiments that come with podzero."""
_KNOWN = {
    # Functions of arrays. None of them takes the name of a file, of a module or of a command.
    "optax": (),
    "optax.contrib": (),
    # All but this one compute from observations, actions and rewards; it makes folders and writes videos there.
    "gymnasium.wrappers": ("RecordVideo",),
}
"""The modules whose own functions and classes are called without a question, with whatever arguments, and what is asked
for nevertheless. What they import from other packages is asked for as well (`podzero.core.importing`)."""
_KNOWN_IMPORTS = ("ale_py", "minatar")
"""The modules that only register environments when they are imported; the extra `envs` installs them."""
_MAX_REMEMBERED = 1000


class TrustedCode:
    """What the user trusts: all files in some folders and below, single files by their SHA-256, and names in modules.

    A file of a trusted folder is remembered by its digest as well, so that the copy in a run's directory is known.

    Args:
      record: the JSON file that holds all three.
      ask: asks the user a question; returns whether the answer is yes. None: there is nobody to ask.
      command: the command line, for messages.
      trust_all: whether everything is approved without a question. That is remembered, except for folders.
    """

    def __init__(self, record: Path, ask: Callable[[str], bool] | None, command: str, trust_all: bool = False) -> None:
        self._record = record
        self._ask = ask
        self._command = command
        self._trust_all = trust_all
        self._approved: set[str] = set()

    def approve(self, import_path: str) -> None:
        """Raises `ConfigError` unless the code at `file.py:Name` or `module:Name`, or either without a name, may be
        imported, or the engine of a player such as `gtp:COMMAND` started: the user does not trust it, there is nobody
        to ask, or the file cannot be read.
        """
        if import_path in self._approved:
            return
        place = place_of(import_path)
        if starts_program(import_path):
            self._approve_name(import_path, import_path)
        elif place.endswith(".py"):
            self._approve_file(place)
        elif not _is_known(import_path):
            self._approve_name(import_path, f"{import_path}, with any arguments")
        self._approved.add(import_path)

    def _approve_name(self, name: str, trusted: str) -> None:
        if name not in (held := self._held())["names"]:
            self._ask_for(name, trusted)
            held["names"].append(name)
            self._remember(held)

    def _approve_file(self, place: str) -> None:
        file = file_of(place).resolve()
        digest = file_digest(place)  # not of `file`: a link may lead to a name that does not end in .py
        if digest is None and not self._trust_all:  # another process might find it
            raise ConfigError(f"the experiment names code in {file}, where no file can be read; correct its path")
        if digest is None or file.is_relative_to(_SHIPPED):
            return
        held = self._held()
        known = digest in held["digests"]
        if not any(file.is_relative_to(folder) for folder in held["folders"]):
            if known:
                return
            self._ask_for(str(file), f"the code in {file.parent}")
            if not self._trust_all:
                held["folders"].append(str(file.parent))
        if not known:
            held["digests"].append(digest)
            self._remember(held)

    def _ask_for(self, code: str, trusted: str) -> None:
        if self._trust_all:
            return
        # On a terminal, escape codes would show another name.
        code, trusted = (text if text.isprintable() else repr(text) for text in (code, trusted))
        what = f"{code} is code that the experiment names. It would run with all your rights."
        if self._ask is None:
            raise ConfigError(f"{what} Read it first; if you trust it: podzero --trust {self._command}")
        if not self._ask(f"{what}\nDo you trust {trusted}, now and later?"):
            raise ConfigError(f"{code} is not trusted, so nothing was run")

    def _held(self) -> dict[str, list[Any]]:
        held = read_json(self._record)
        return {key: list(held.get(key, ())) for key in ("folders", "digests", "names")}

    def _remember(self, held: Mapping[str, list[Any]]) -> None:
        text = json.dumps({key: values[-_MAX_REMEMBERED:] for key, values in held.items()}, indent=1)
        with suppress(OSError):  # a user without a home is asked again
            self._record.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._record, text + "\n")


def _is_known(import_path: str) -> bool:
    place, _, name = import_path.rpartition(":")
    return import_path in _KNOWN_IMPORTS or not (name.startswith("_") or name in _KNOWN.get(place, (name,)))


def ask_before_imports(environment: Mapping[str, str], trust_all: bool) -> None:
    """Makes this process ask before it imports code that an experiment names, unless `trust_all`."""
    if trust_all and "PODZERO_TRUST" in environment:
        return  # nothing need be remembered: later commands have the variable too
    asks = sys.stdin.isatty() and sys.stderr.isatty() and "--json" not in sys.argv[1:]
    record = user_config(environment) / "trusted.json"
    confirm = partial(typer.confirm, err=True) if asks else None
    ask_before_import(TrustedCode(record, confirm, shlex.join(sys.argv[1:]), trust_all).approve)


def approve_code(experiment: Experiment) -> None:
    """Asks for the code that an experiment names, its teacher and its opponents included, before processes import it,
    and for the commands of engines that its evaluation would start.

    Raises `ConfigError` if the user does not trust it, `WorkdirError` if a teacher or opponent cannot be read.
    """
    experiments = [experiment]
    for who in filter(None, (experiment.teacher, *(opponent.who for opponent in experiment.actors.opponents))):
        player = None
        with suppress(ConfigError):  # whether the agent exists is checked elsewhere
            player = parse_player(who)
        if isinstance(player, TrainedPlayer):
            experiments.append(player.workdir.experiment())
    for each in experiments:
        approve(*each.import_paths)
    approve(*filter(starts_program, experiment.evaluation.opponents or ()))
