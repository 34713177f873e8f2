"""One shard of replay: a Reverb server in this process."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import psutil

from podzero.config import Experiment
from podzero.replay import checkpoint
from podzero.replay.errors import PortTaken, ReplayRestoreError, SaveUnderWay
from podzero.replay.limits import Limits
from podzero.replay.link import CheckpointLink
from podzero.replay.shard import IDENTITY, Address, Shard
from podzero.replay.tables import REANALYSED, SAMPLES, STATES, Table, tables_of
from podzero.types import EnvSpec

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_START_S = 30.0
"""Longest wait for a server to answer itself."""
_RESTORED_S = 600.0
"""Longest wait for the first answer of a server that has restored a checkpoint: its machine may be swapping."""


class ReplayServer:
    """A Reverb server with the tables of one shard: one of samples, and two more when the experiment reanalyses.

    The limiters keep the experiment's samples per insert; sizes and tolerance are divided by the number of shards.
    Everything is in memory; `checkpoint` writes it to disk.
    """

    def __init__(
        self,
        experiment: Experiment,
        spec: EnvSpec,
        shard: int,
        restore_from: Path | None = None,
        host: str = LOOPBACK,
    ) -> None:
        """Starts listening.

        Args:
          experiment: what to serve; shard K listens on `replay.port + K`, or on a free port if that is 0.
          spec: of the environment whose samples are stored.
          shard: index of this shard.
          restore_from: a folder that `checkpoint` made, `replay/shard-K` below the folder of a whole checkpoint.
          host: the name or IP by which others reach this machine. At loopback, processes of this machine alone do.

        Raises:
          PortTaken: another process listens on the configured port.
          ReplayRestoreError: the checkpoint is damaged or incomplete.
          ReplayMismatch: its tables are others.
          ReplayTimeout: the server has started and does not answer, which says nothing about the checkpoint.
        """
        self._server: Any = None
        self._saving = threading.Lock()
        self._tables = tables_of(experiment, spec)
        data, identity = None, secrets.token_hex(6)
        if restore_from is not None:
            data, identity = checkpoint.unseal(restore_from, self._tables)
        port = _port(experiment.replay.port, shard)
        self._link = CheckpointLink()
        try:
            self._server = self._start(port, identity, data)
            if host == LOOPBACK:
                _keep_to_loopback(port)
            address = Address(f"{host}:{port}", identity)
            self._shards = {name: Shard(address, table) for name, table in self._tables.items()}
            self._shards[SAMPLES].wait(_START_S if restore_from is None else _RESTORED_S)
            if restore_from is not None:
                self._check_restored(restore_from)
        except BaseException:
            self.stop()
            raise

    def address(self) -> str:
        """`host:port#identity`, for writers and readers, which check the identity when they connect."""
        return str(self._shards[SAMPLES].address)

    def limits(self, table: str = SAMPLES) -> Limits:
        """The state of a table and its limiter."""
        return self._shards[table].wait(_START_S)

    def info(self) -> dict[str, float]:
        """Metrics for `Report`, named `replay/...`, and for the other tables `states/...` and `reanalysed/...`.

        `insert_blocked` and `sample_blocked` are 1 while the limiter blocks.
        """
        prefixes = {SAMPLES: "replay", STATES: STATES, REANALYSED: REANALYSED}
        return {
            f"{prefixes[name]}/{quantity}": value
            for name in self._tables
            for quantity, value in _metrics(self.limits(name)).items()
        }

    def checkpoint(self, folder: Path) -> Path:
        """Writes all tables into `folder`, replacing a checkpoint that it holds; returns `folder`.

        Reverb writes there itself, and copies nothing. Inserts and samples go on meanwhile.

        Raises:
          SaveUnderWay: another checkpoint is being written.
          RuntimeError: Reverb could not write; the folder was deleted.
          OSError: the folder or the manifest could not be written; the folder was deleted.
        """
        if not self._saving.acquire(blocking=False):
            raise SaveUnderWay(f"the replay server still writes another checkpoint, so none is written into {folder}")
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self._link.lead_to(folder)
            shard = self._shards[SAMPLES]
            written = Path(shard.client.checkpoint()).name
            return checkpoint.seal(folder, written, shard.address.identity, self._tables)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            self._link.lead_nowhere()
            self._saving.release()

    def stop(self) -> None:
        """Stops listening and deletes the tables; may be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        self._link.remove()

    def _start(self, port: int, identity: str, data: Path | None) -> Any:
        from reverb import Server
        from reverb.platform.checkpointers_lib import DefaultCheckpointer

        tables = [*map(_reverb_table, self._tables.values()), _identity_table(identity)]
        fallback = str(data) if data is not None else None
        try:
            return Server(tables, port, DefaultCheckpointer(str(self._link.path), fallback_checkpoint_path=fallback))
        except RuntimeError as error:
            if data is None:
                raise
            raise ReplayRestoreError(f"replay checkpoint {data.parent}: Reverb cannot read it: {error}") from None

    def _check_restored(self, folder: Path) -> None:
        """Compares the restored settings with the experiment's, since Reverb silently takes the saved ones."""
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


def _reverb_table(table: Table) -> Any:
    import tensorflow as tf
    from reverb import Table as ReverbTable
    from reverb import rate_limiters, selectors

    settings, signature = table.settings, table.signature
    exponent = settings.priority_exponent
    return ReverbTable(
        name=table.name,
        sampler=selectors.Uniform() if exponent is None else selectors.Prioritized(exponent),
        remover=selectors.Fifo(),
        max_size=settings.capacity // settings.samples_per_item,
        rate_limiter=rate_limiters.SampleToInsertRatio(
            settings.samples_per_insert,
            settings.min_size // settings.samples_per_item,
            (settings.min_diff / settings.samples_per_item, settings.max_diff / settings.samples_per_item),
        ),
        signature={signature.layout: tf.TensorSpec((signature.item_bytes,), tf.uint8)},
    )


def _identity_table(identity: str) -> Any:
    from reverb import Table, rate_limiters, selectors

    return Table(IDENTITY + identity, selectors.Fifo(), selectors.Fifo(), 1, rate_limiters.MinSize(1))


def _port(first: int, shard: int) -> int:
    """The port of a shard, after checking that it is free: Reverb would silently share one that is taken.

    Raises:
      PortTaken: another process listens there.
    """
    port = first + shard if first else 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a killed shard linger for a minute
        try:
            probe.bind(("", port))
        except OSError as error:
            raise PortTaken(
                f"replay shard {shard} cannot listen on port {port}: {error.strerror}. Stop the process that listens "
                "there, or set replay.port to another first port (0 chooses free ones)"
            ) from None
        return int(probe.getsockname()[1])


def _keep_to_loopback(port: int) -> None:
    """Takes the server of this process off all interfaces but loopback: Reverb opens its port on all of them."""
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            with socket.socket(fileno=os.dup(connection.fd)) as listening:
                try:
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
                except OSError as error:
                    log.warning(
                        "replay listens on all interfaces at port %d, since this system does not restrict it to "
                        "loopback (%s; Linux 5.7 and newer do): let a firewall close the port",
                        port,
                        error.strerror,
                    )
