"""Asks before a Python file that an experiment names is imported; a folder is asked about once.

Whoever trains or evaluates what a stranger made would otherwise run the stranger's code unawares. Only the command line
asks: Python programs that use podzero, and the processes of a run, import what they are given.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import typer

from podzero.config import Experiment
from podzero.errors import ConfigError
from podzero.importing import approve, ask_before_import, file_digest
from podzero.storage import user_config
from podzero.workdir import read_json, write_atomically

_SHIPPED = Path(__file__).resolve().parents[1] / "configs"
"""The experiments that come with podzero."""
_MAX_DIGESTS = 1000


class TrustedCode:
    """What the user trusts: all files in some folders and below, and single files by their SHA-256.

    A file of a trusted folder is remembered by its digest as well, so that the copy in a run's directory is known.

    Args:
      record: the JSON file that holds both.
      ask: asks the user a question; returns whether the answer is yes. None: there is nobody to ask.
      command: the command line, for messages.
    """

    def __init__(self, record: Path, ask: Callable[[str], bool] | None, command: str) -> None:
        self._record = record
        self._ask = ask
        self._command = command

    def approve(self, file: Path) -> None:
        """Returns if the file may be imported.

        Raises:
          ConfigError: the user does not trust it, or there is nobody to ask.
        """
        file = file.expanduser().resolve()
        digest = file_digest(str(file))
        if digest is None or file.is_relative_to(_SHIPPED):
            return  # what cannot be read is not imported either
        held = read_json(self._record)
        folders, digests = list(held.get("folders", [])), list(held.get("digests", []))
        if not any(file.is_relative_to(folder) for folder in folders):
            if digest in digests:
                return
            self._ask_for(file)
            folders.append(str(file.parent))
        elif digest in digests:
            return
        held = {"folders": folders, "digests": [*digests, digest][-_MAX_DIGESTS:]}
        with suppress(OSError):  # a user without a home is asked again
            self._record.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._record, json.dumps(held, indent=1) + "\n")

    def _ask_for(self, file: Path) -> None:
        what = f"{file} is code that the experiment names. It would run with all your rights."
        if self._ask is None:
            raise ConfigError(f"{what} Read it first; if you trust it: podzero --trust {self._command}")
        if not self._ask(f"{what}\nDo you trust the code in {file.parent}, now and later?"):
            raise ConfigError(f"{file} is not trusted, so nothing was run")


def ask_before_imports(environment: Mapping[str, str], trust_all: bool) -> None:
    """Makes this process ask before it imports a file, unless `trust_all`."""
    if trust_all:
        return
    asks = sys.stdin.isatty() and sys.stderr.isatty() and "--json" not in sys.argv[1:]
    record = user_config(environment) / "trusted.json"
    trusted = TrustedCode(record, _confirm if asks else None, shlex.join(sys.argv[1:]))
    ask_before_import(trusted.approve)


def _confirm(question: str) -> bool:
    return typer.confirm(question, err=True)


def approve_files(experiment: Experiment) -> None:
    """Asks for the Python files of an experiment, which other processes will import.

    Raises:
      ConfigError: the user does not trust one of them.
    """
    for file in experiment.code_files:
        approve(file)
