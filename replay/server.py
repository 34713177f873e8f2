"""One shard of replay: a Reverb server in a child process."""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
from pathlib import Path
from typing import Any, Self

from podzero.config import Experiment
from podzero.core.types import EnvSpec
from podzero.replay import checkpoint
from podzero.replay.checkpoint import CheckpointLink
from podzero.replay.errors import (
    CheckpointRefused,
    PortTaken,
    ReplayRestoreError,
    ReplayTimeout,
    SaveUnderWay,
    ServerFailed,
)
from podzero.replay.process import ServerProcess, free_port, server_python
from podzero.replay.shard import IDENTITY, Address, Shard
from podzero.replay.tables import REANALYSED, SAMPLES, STATES, Limits, Table, tables_of

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


class ReplayServer:
    """A Reverb server with the tables of one shard, in memory; `checkpoint` writes them to disk.

    The limiters keep the experiment's samples per insert; sizes and tolerance are divided by the number of shards.
    """

    def __init__(
        self,
        experiment: Experiment,
        spec: EnvSpec,
        shard: int,
        restore_from: Path | None = None,
        host: str = LOOPBACK,
    ) -> None:
        """Starts the server.

        Args:
          experiment: the experiment; shard K listens on `replay.port + K`, or on a free port if `replay.port` is 0.
          spec: the environment's specification.
          shard: index of this shard.
          restore_from: a folder that `checkpoint` wrote, `replay/shard-K` below the folder of a complete checkpoint.
          host: name or IP by which others reach this machine; at loopback, only processes of this machine do.

        Raises:
          PortTaken: another process listens on the configured port.
          ReplayRestoreError: the checkpoint is damaged or incomplete.
          ReplayMismatch: the checkpoint has other tables.
          EnvironmentUnusable: the server's environment cannot be found or made.
          ServerFailed: the server did not start, for another reason than the checkpoint.
          ReplayTimeout: the server started but does not answer; the checkpoint may be intact.
        """
        self._server: ServerProcess | None = None
        self._shards: dict[str, Shard] = {}
        self._saving = threading.Lock()
        self._tables = tables_of(experiment, spec)
        data, identity = None, secrets.token_hex(6)
        if restore_from is not None:
            data, identity = checkpoint.unseal(restore_from, self._tables)
        port = _port(experiment.replay.port, shard)
        self._link = CheckpointLink()
        try:
            self._server = self._start(port, identity, data, host == LOOPBACK)
            # Reverb can only listen on all interfaces; `serve.py` restricts its socket where the kernel allows it.
            if host == LOOPBACK and not self._server.loopback:
                log.warning(
                    "replay listens on all interfaces at port %d, since this system does not restrict it to loopback "
                    "(Linux 5.7 and newer do): let a firewall close the port",
                    port,
                )
            address = Address(f"{host}:{port}", identity)
            self._shards = {name: Shard(address, table) for name, table in self._tables.items()}
            self._shards[SAMPLES].wait(_ANSWER_S if restore_from is None else _FIRST_ANSWER_S)
            if restore_from is not None:
                self._check_restored(restore_from)
        except BaseException:
            self.stop()
            raise

    def address(self) -> str:
        """`host:port#identity`; writers and readers check the identity when they connect."""
        return str(self._shards[SAMPLES].address)

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the server has used."""
        return 0.0 if self._server is None else self._server.cpu_seconds

    def limits(self, table: str = SAMPLES) -> Limits:
        """The state of a table and its limiter."""
        self._check_runs()
        try:
            return self._shards[table].wait(_ANSWER_S)
        except ReplayTimeout:
            self._check_runs()
            raise

    def info(self) -> dict[str, float]:
        """Metrics for `Report`: `replay/...`, and `states/...` and `reanalysed/...` for the other tables."""
        prefixes = {SAMPLES: "replay", STATES: STATES, REANALYSED: REANALYSED}
        return {
            f"{prefixes[name]}/{quantity}": value
            for name in self._tables
            for quantity, value in _metrics(self.limits(name)).items()
        }

    def checkpoint(self, folder: Path) -> Path:
        """Writes all tables into `folder`, in place of any checkpoint there; returns `folder`. Inserts and samples
        continue meanwhile. After a failure `folder` is deleted.

        Raises:
          SaveUnderWay: another checkpoint is being written.
          RequestRefused: Reverb could not write.
          ReplayUnavailable: the server disappeared while it wrote.
          OSError: the folder or the manifest could not be written.
        """
        if not self._saving.acquire(blocking=False):
            raise SaveUnderWay(f"the replay server still writes another checkpoint, so none is written into {folder}")
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            # Reverb writes through the link into the folder itself, so that nothing is copied.
            self._link.lead_to(folder)
            shard = self._shards[SAMPLES]
            written = Path(shard.connection.checkpoint()).name
            return checkpoint.seal(folder, written, shard.address.identity, self._tables)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            try:
                self._link.lead_nowhere()
            finally:
                self._saving.release()

    def stop(self) -> None:
        """Stops listening and deletes the tables; may be called twice."""
        server, self._server = self._server, None
        for shard in self._shards.values():
            shard.close()
        if server is not None:
            server.stop()
        self._link.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, port: int, identity: str, data: Path | None, loopback: bool) -> ServerProcess:
        wanted = {
            "port": port,
            "loopback": loopback,
            "checkpoints": str(self._link.path),
            "restore": None if data is None else str(data),
            "tables": [*map(_described, self._tables.values()), _identity_table(identity)],
        }
        try:
            return ServerProcess(server_python(), wanted, _START_S if data is None else _RESTORED_S)
        except CheckpointRefused as error:
            assert data is not None
            raise ReplayRestoreError(f"replay checkpoint {data.parent}: Reverb cannot read it: {error}") from None

    def _check_runs(self) -> None:
        code = None if self._server is None else self._server.exit_code
        if code is not None:
            raise ServerFailed(f"the replay server has ended with exit code {code}")

    def _check_restored(self, folder: Path) -> None:
        """Compares the restored settings with the experiment's, which Reverb silently replaces by the saved ones."""
        for name, table in self._tables.items():
            found = self.limits(name).settings
            if found != table.settings:
                raise ReplayRestoreError(
                    f"replay checkpoint {folder} restored {found} of table {name}; expected {table.settings}"
                )


def _metrics(limits: Limits) -> dict[str, float]:
    return {
        "size": float(limits.size),
        "inserted": float(limits.inserted),
        "sampled": float(limits.sampled),
        "samples_per_insert": limits.sampled / max(limits.inserted, 1),
        "insert_blocked": float(limits.insert_blocked),
        "sample_blocked": float(limits.sample_blocked),
    }


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
            "min_size": settings.min_size // settings.samples_per_item,
            "min_diff": settings.min_diff / settings.samples_per_item,
            "max_diff": settings.max_diff / settings.samples_per_item,
        },
    }


def _identity_table(identity: str) -> dict[str, Any]:
    limiter = {"samples_per_insert": None, "min_size": 1, "min_diff": None, "max_diff": None}
    return {
        "name": IDENTITY + identity, "max_size": 1, "signature": None, "priority_exponent": None, "limiter": limiter,
    }  # fmt: skip


def _port(first: int, shard: int) -> int:
    """The port of a shard."""
    # Reverb would silently share a port that is taken.
    port = first + shard if first else 0
    try:
        return free_port(port)
    except OSError as error:
        raise PortTaken(
            f"replay shard {shard} cannot listen on port {port}: {error.strerror}. Stop the process that listens "
            "there, or set replay.port to another first port (0 chooses free ones)"
        ) from None
