"""One shard of replay: a Reverb server in a child process, and its checkpoints.

A checkpoint is a folder with Reverb's files and a manifest: the tables' settings and a digest of every file.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Self

from podzero.config import Experiment
from podzero.core.types import EnvSpec
from podzero.files.storage import SHARD_MANIFEST, altered, checkpoint_of, digests, read_saved, sealed, unsealed
from podzero.files.store import store_of
from podzero.files.workdir import write_atomically
from podzero.replay.errors import PortTaken, ReplayMismatch, ReplayRestoreError, ReplayTimeout, RequestRefused
from podzero.replay.process import ServerProcess, server_python
from podzero.replay.shard import SAMPLES, Address, Limits, Shard, Table, TableSettings, tables_of

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_START_S = 180.0
"""Longest wait for a server to listen: it imports TensorFlow while other processes start, too."""
_RESTORED_S = 1800.0
"""Longest wait for a server that restores a checkpoint first."""
_ANSWER_S = 30.0
"""Longest wait for an answer."""
_FIRST_ANSWER_S = 600.0
"""Longest wait for the first answer after a restoration: the machine may be swapping."""
_LONGEST_SAVE_S = 1740.0
"""Longest time of the first checkpoint: a minute less than the driver waits, so that it learns the reason."""
_SHORTEST_LIMIT_S = 120.0
_SAVE_FACTOR = 20.0
"""A later checkpoint may take so many times as long as the one before, within the two limits above."""


class ReplayServer:
    """A Reverb server with the tables of one shard, in memory; `checkpoint` writes them to disk.

    The limiters keep the experiment's samples per insert; sizes and tolerance are divided by the number of shards.
    """

    def __init__(
        self, experiment: Experiment, spec: EnvSpec, shard: int, restore_from: Path | None = None, host: str = LOOPBACK
    ) -> None:
        """Starts the server of shard K, on port `replay.port + K`, or on a free one if `replay.port` is 0.

        `restore_from` is a folder that `checkpoint` wrote, `replay/shard-K` below the folder of a complete checkpoint;
        `host` the name or IP by which others reach this machine: at loopback, only processes of this machine do.

        Raises:
          PortTaken: another process listens on the configured port.
          ReplayRestoreError: the checkpoint is damaged or incomplete.
          ReplayMismatch: the checkpoint has other tables.
          EnvironmentUnusable: the server's environment cannot be found or made.
          ServerFailed: the server did not start, for another reason than the checkpoint.
          ReplayTimeout: the server started but does not answer; the checkpoint may be intact.
        """
        self._saving = threading.Lock()
        self._save_s = _LONGEST_SAVE_S
        """Longest time of the next checkpoint."""
        tables = tables_of(experiment, spec)
        data, self._older = None, ""
        if restore_from is not None:
            data, self._older = unseal(restore_from, tables)
        with ExitStack() as opened:
            port = opened.enter_context(reserved_port(experiment.replay.port, shard))
            # Reverb takes the folder of its checkpoints once, when it starts, but each is written to another folder:
            # the path below `/proc` leads wherever `checkpoint` points the descriptor. Unlike a link in a temporary
            # folder, it is gone with this process, however that ends.
            self._link = os.open(os.devnull, os.O_PATH)
            opened.callback(os.close, self._link)
            wanted = {
                "port": port,
                "loopback": host == LOOPBACK,
                "checkpoints": f"/proc/{os.getpid()}/fd/{self._link}",
                "restore": None if data is None else str(data),
                # Reverb restores a checkpoint only into all of its tables.
                "tables": [
                    *map(_described, tables.values()),
                    *([{"name": _OLDER + self._older, "max_size": 1}] if self._older else []),
                ],
            }
            self._server = ServerProcess(server_python(), wanted, _START_S if data is None else _RESTORED_S)
            opened.callback(self._server.stop)
            # Reverb can only listen on all interfaces; `serve.py` restricts its socket where the kernel allows it.
            if host == LOOPBACK and not self._server.loopback:
                log.warning(
                    "replay listens on all interfaces at port %d, since this system does not restrict it to loopback "
                    "(Linux 5.7 and newer do): let a firewall close the port",
                    port,
                )
            self._shards = {
                name: opened.enter_context(closing(Shard(Address(f"{host}:{port}", ""), table)))
                for name, table in tables.items()
            }
            for one in self._shards.values():
                one.wait(_ANSWER_S if restore_from is None else _FIRST_ANSWER_S)
            if restore_from is not None:
                self._check_restored(restore_from)
            # From here on `stop` closes them.
            self._opened = opened.pop_all()

    def address(self) -> str:
        """`host:port#identity`; writers and readers check the identity when they connect."""
        return str(self._shards[SAMPLES].address)

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the server has used."""
        return self._server.cpu_seconds

    def limits(self, table: str = SAMPLES) -> Limits:
        """The state of a table and its limiter."""
        self._server.check_runs()
        try:
            return self._shards[table].wait(_ANSWER_S)
        except ReplayTimeout as timeout:
            self._server.check_runs()
            raise ReplayTimeout(f"{timeout}; the state of its process is '{self._server.state}'") from None

    def info(self) -> dict[str, float]:
        """Metrics for `Report`: `replay/...`, and `states/...` and `reanalysed/...` for the other tables."""
        metrics: dict[str, float] = {}
        for name in self._shards:
            limits, prefix = self.limits(name), "replay" if name == SAMPLES else name
            for field in ("size", "inserted", "sampled", "insert_blocked", "sample_blocked"):
                metrics[f"{prefix}/{field}"] = float(getattr(limits, field))
            metrics[f"{prefix}/samples_per_insert"] = limits.sampled / max(limits.inserted, 1)
        return metrics

    def checkpoint(self, folder: Path) -> Path:
        """Writes all tables into `folder`, in place of any checkpoint there; returns `folder`. Inserts and samples
        continue meanwhile. After a failure `folder` is deleted.

        Raises `RequestRefused` also if another checkpoint is being written, `ReplayUnavailable` if the server has not
        written it in time; what it still writes then is lost.
        """
        if not self._saving.acquire(blocking=False):
            raise RequestRefused(f"the replay server still writes another checkpoint, so none is written into {folder}")
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            # Reverb writes through the link into the folder itself, so that nothing is copied.
            leads_to = os.open(folder, os.O_PATH)
            os.dup2(leads_to, self._link, inheritable=False)
            os.close(leads_to)
            shard, limit_s, began = self._shards[SAMPLES], self._save_s, time.monotonic()
            self._save_s = min(2 * limit_s, _LONGEST_SAVE_S)  # in case that this one is too late
            written = Path(shard.connection.checkpoint(limit_s)).name
            took_s = time.monotonic() - began
            self._save_s = min(max(_SAVE_FACTOR * took_s, _SHORTEST_LIMIT_S), _LONGEST_SAVE_S)
            tables = {name: shard.table for name, shard in self._shards.items()}
            return seal(folder, written, self._older, tables)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            self._saving.release()

    def stop(self) -> None:
        """Stops listening and deletes the tables; may be called twice."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _check_restored(self, folder: Path) -> None:
        """Compares the restored settings with the experiment's, which Reverb silently replaces by the saved ones."""
        for name, shard in self._shards.items():
            found, expected = self.limits(name).settings, shard.table.settings
            if found != expected:
                raise ReplayRestoreError(f"replay checkpoint {folder} restored {found} of {name}; expected {expected}")


def _described(table: Table) -> dict[str, Any]:
    """A table in the form that `reverb_server/serve.py` takes."""
    # Reverb counts items, podzero samples.
    settings, signature = table.settings, table.signature
    return {
        "name": table.name,
        "max_size": settings.capacity // settings.samples_per_item,
        "signature": {signature.layout: [signature.item_bytes]},
        "priority_exponent": settings.priority_exponent,
        "limiter": {
            "samples_per_insert": settings.samples_per_insert,
            "min_size_to_sample": settings.min_size // settings.samples_per_item,
            "error_buffer": [diff / settings.samples_per_item for diff in (settings.min_diff, settings.max_diff)],
        },
    }


@contextmanager
def reserved_port(first: int = 0, shard: int = 0) -> Iterator[int]:
    """Keeps port `first + shard`, or a free one if `first` is 0, from other processes until Reverb listens there.

    Raises `PortTaken` if another process listens there.
    """
    port = first + shard if first else 0
    with socket.socket() as reserved:
        # Reverb sets this, too, so that it can listen on a port to which this socket is only bound. It would silently
        # share one on which another Reverb listens. Connections of a server that was killed linger and do not count.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind(("", port))
        except OSError as error:
            raise PortTaken(
                f"replay shard {shard} cannot listen on port {port}: {error.strerror}. Stop the process that listens "
                "there, or set replay.port to another first port (0 chooses free ones)"
            ) from None
        yield int(reserved.getsockname()[1])


_DATA = "reverb"
_OLDER = "identity-"
"""Prefix of the name of an empty table that servers had before Reverb's own identity was used; it ends with theirs."""
_ADVICE = "resume with the version of podzero that wrote it, or train elsewhere (--workdir) with init_from=RUN"


def seal(folder: Path, written: str, older: str, tables: Mapping[str, Table]) -> Path:
    """Renames Reverb's files, in the subfolder `written` of `folder`, and adds the manifest, with what `unseal` calls
    `older`; returns `folder`.
    """
    data = (folder / written).rename(folder / _DATA)
    manifest = {
        "identity": older,
        "tables": {
            name: {"layout": table.signature.layout, "settings": table.settings._asdict()}
            for name, table in tables.items()
        },
        "files": digests(data),
    }
    write_atomically(folder / SHARD_MANIFEST, sealed(manifest))
    return folder


def unseal(folder: Path, tables: Mapping[str, Table]) -> tuple[Path, str]:
    """Checks a checkpoint; returns the folder for Reverb to restore, and the identity of older servers that it descends
    from: for these there is one table more.

    Raises `StorageError` if this machine cannot read the files, which may be intact.
    """
    # Reverb alone would accept bad checkpoints. It refuses a corrupt record, but without a DONE file it restores an
    # empty table, and saved settings replace the experiment's, both silently.
    where = f"replay checkpoint {folder}"
    store_of(folder).get(folder)
    try:
        text = read_saved(folder / SHARD_MANIFEST, checkpoint_of(folder))
        if text is None:
            raise ReplayRestoreError(f"{where}: {SHARD_MANIFEST} is missing")
        manifest = unsealed(text)
        found = {name: (one["layout"], TableSettings(**one["settings"])) for name, one in manifest["tables"].items()}
        older, files = str(manifest["identity"]), dict(manifest["files"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReplayRestoreError(f"{where}: {SHARD_MANIFEST} is damaged ({error})") from None
    if found.keys() != tables.keys():
        raise ReplayMismatch(
            f"{where} holds the tables {', '.join(found)}; this experiment needs {', '.join(tables)} "
            f"(reanalyse.share); {_ADVICE}"
        )
    for name, table in tables.items():
        layout, settings = found[name]
        if layout not in table.signature.readable:
            raise ReplayMismatch(
                f"{where}, table {name}, holds '{layout}'; this experiment needs '{table.signature.layout}'; {_ADVICE}"
            )
        changes = [
            f"{field} {old} (now {new})"
            for field, old, new in zip(TableSettings._fields, settings, table.settings, strict=True)
            if old != new
        ]
        if changes:
            raise ReplayMismatch(
                f"{where}, table {name}, was written with other settings, which Reverb would restore: "
                f"{', '.join(changes)}; {_ADVICE}"
            )
    if (changed := altered(folder / _DATA, files)) is not None:
        raise ReplayRestoreError(f"{where}: {_DATA}/{changed} is missing, cut short or altered")
    return folder / _DATA, older
