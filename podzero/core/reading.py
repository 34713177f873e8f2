"""Reads lines that programs write: ahead, so that their reader sees whether more have arrived; the last; as JSON."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

End = Exception | None
"""The end of the input: None, or the exception raised by reading it."""


def standard_input() -> Iterable[str]:
    """The lines of standard input, in UTF-8, without a byte order mark before the first."""
    # Bytes that are not text become U+FFFD, so that the lines after them are still answered.
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="replace")
    # None if it is closed.
    return sys.stdin or ()


def read_ahead(lines: Iterable[str], limit: int) -> Queue[str | End]:
    """Reads non-empty lines into a queue of at most `limit` items, whose last item is the end of the input."""
    waiting: Queue[str | End] = Queue(maxsize=limit)

    def read() -> None:
        end: End = None
        try:
            for line in lines:
                if line.strip():
                    waiting.put(line)
        # Raised again in the thread that takes the lines.
        except Exception as error:
            end = error
        waiting.put(end)

    # A daemon, because a blocking read from a terminal cannot be interrupted.
    Thread(target=read, name="read-ahead", daemon=True).start()
    return waiting


def last_lines(file: Path, most_bytes: int) -> list[bytes]:
    """The lines in the last bytes of a file; empty if it cannot be read, as while another process replaces it."""
    with suppress(OSError), file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, io.SEEK_END) - most_bytes))
        return opened.read().splitlines()
    return []


LARGEST_FILE = 2**26
"""The most characters that are read of a file which podzero writes as a whole, such as a manifest."""


def printable(text: str) -> str:
    """The text with escapes for characters that a terminal would act on instead of showing them; tabs stay."""
    return "".join(one if one.isprintable() or one == "\t" else one.encode("unicode_escape").decode() for one in text)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; a `ValueError` if there is none, also where it is nested too deeply for Python."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The `object_pairs_hook` of JSON in which no key is given twice, of which `json` would lose one value."""
    tree = dict(pairs)
    if len(tree) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key '{twice}' is given twice")
    return tree
