"""Opens files of recorded games, and gives each game of them or why it cannot be read."""

from __future__ import annotations

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Sequence
from io import TextIOWrapper
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path

from podzero.core.errors import ConfigError, os_errors
from podzero.core.types import EnvSpec
from podzero.tools.records.games import Fault, RecordedGame, read_lines
from podzero.tools.records.pgn import read_pgn
from podzero.tools.records.sgf import read_sgf

SUFFIXES = (".sgf", ".pgn", ".jsonl")
"""The kinds of files of games."""


def check_files(files: Iterable[Path], suffixes: Sequence[str]) -> None:
    """Checks that the files can be read before any of them is."""
    for file in files:
        if file.suffix.lower() not in suffixes:
            raise ConfigError(f"{file}: expected a file that ends in {', '.join(suffixes)}")
        if not file.is_file():
            raise ConfigError(f"{file} is not a file; give files of games, for example runs/mine/games/*.jsonl")


def read_games(file: Path, spec: EnvSpec) -> Iterator[RecordedGame | Fault]:
    """The games of a file whose name ends in one of `SUFFIXES`."""
    with os_errors(ConfigError, f"{file} cannot be read"), file.open("rb") as opened:
        if (head := opened.read(2)) in (BOM_UTF16_LE, BOM_UTF16_BE) or b"\0" in head:
            yield Fault(str(file), "unreadable", "it is in UTF-16; save it as UTF-8")
            return
        # A file of games may be larger than memory.
        data = mmap(opened.fileno(), 0, access=ACCESS_READ) if head else b""
        match file.suffix.lower():
            case ".sgf":
                yield from read_sgf(data, str(file), spec)
            case ".pgn":
                yield from read_pgn(data, str(file), spec)
            case _:
                opened.seek(0)
                lines = TextIOWrapper(opened, encoding="utf-8-sig", errors="replace")
                yield from read_lines(lines, str(file), spec)


def nth_game(file: Path, spec: EnvSpec, number: int = 1) -> RecordedGame:
    """The game of this number in a file; `ConfigError` if there is none, or it cannot be read."""
    found = next(islice(read_games(file, spec), number - 1, None), None)
    if not isinstance(found, RecordedGame):
        raise ConfigError(f"{found or f'{file} has no game {number}'}")
    return found
