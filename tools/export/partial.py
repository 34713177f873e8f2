"""Files that get their names only when all of them are complete and right."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from podzero.tools.export.errors import ExportError
from podzero.workdir import sync


def check_writable(file: Path) -> None:
    """Refuses a file that cannot be written, before there is anything to write.

    Raises:
      ExportError: its folder is missing or may not be written, or it is a folder itself.
    """
    if not file.parent.is_dir():
        raise _refusal(file, "its folder does not exist")
    if file.is_dir():
        raise _refusal(file, "it is a folder")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise _refusal(file, "its folder may not be written")


class PartialFiles:
    """A context in which files are written beside their final places; leaving it without an error renames all of them,
    and an error removes them and leaves the files that were there before.
    """

    def __init__(self) -> None:
        self._partial: dict[Path, Path] = {}

    def write(self, file: Path, contents: bytes) -> Path:
        """Writes what will become `file`, and returns where it lies until then.

        Raises:
          ExportError: it cannot be written, as on a full disk.
        """
        partial = self._partial[file] = file.with_name(f".{os.getpid()}.{file.name}")
        try:
            partial.write_bytes(contents)
            sync(partial)
        except OSError as error:
            raise _refusal(file, error.strerror) from None
        return partial

    def __enter__(self) -> PartialFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self._rename()
        finally:
            for partial in self._partial.values():
                partial.unlink(missing_ok=True)

    def _rename(self) -> None:
        for file, partial in self._partial.items():
            try:
                os.replace(partial, file)
                sync(file.parent)
            except OSError as error:
                raise _refusal(file, error.strerror) from None


def _refusal(file: Path, why: str | None) -> ExportError:
    return ExportError(f"cannot write {file}: {why}; name another file by --to")
