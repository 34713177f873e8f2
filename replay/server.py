"""One shard of replay: a Reverb server in this process."""

from __future__ import annotations

import secrets
import socket
import tempfile
from pathlib import Path
from typing import Any

from podzero.config import Experiment
from podzero.replay import checkpoint
from podzero.replay.errors import PortTaken, ReplayRestoreError, ReplayTimeout, WrongServer
from podzero.replay.limits import Limits, Settings, shard_settings
from podzero.replay.shard import IDENTITY, TABLE, Address, Shard
from podzero.replay.signature import SampleSignature
from podzero.types import EnvSpec

_START_S = 30.0
"""Longest wait for a server that was just started to answer itself."""


class ReplayServer:
    """A Reverb server with one table of samples.

    Inserts and samples are held together by the experiment's samples per insert, its sizes and tolerance divided by
    the number of shards. Everything is in memory; `checkpoint` writes it down.
    """

    def __init__(
        self,
        experiment: Experiment,
        spec: EnvSpec,
        shard: int,
        restore_from: Path | None = None,
        host: str | None = None,
    ) -> None:
        """Starts listening.

        Args:
          experiment: `replay` and what depends on it; shard K listens on `replay.port + K`, or on a free port.
          spec: of the environment whose samples are kept.
          shard: index of this shard.
          restore_from: a folder that `checkpoint` made.
          host: the name or IP by which others reach this machine. By default its own IP towards other nodes, or
            loopback when it does not answer there.

        Raises:
          PortTaken: somebody listens on the configured port.
          ReplayRestoreError: the checkpoint is damaged, incomplete, or of another experiment.
        """
        self._server: Any = None
        self._signature = SampleSignature.of(experiment, spec)
        self._settings = shard_settings(experiment)
        data, identity = None, secrets.token_hex(6)
        if restore_from is not None:
            data, identity = checkpoint.unseal(restore_from, self._signature.layout, self._settings)
        port = _port(experiment.replay.port, shard)
        self._scratch = tempfile.TemporaryDirectory(prefix="podzero-replay-")
        try:
            self._server = self._start(port, identity, data)
            self._shard = self._reach([host] if host else [_own_ip(), "127.0.0.1"], port, identity)
        except BaseException:
            self.stop()
            raise
        if restore_from is not None:
            self._check_restored(restore_from)

    def address(self) -> str:
        """`host:port#identity`, for `make_writer` and `make_reader`; the identity proves who answers there."""
        return str(self._shard.address)

    def limits(self) -> Limits:
        """The state of the table and its limiter."""
        return self._shard.wait(_START_S)

    def info(self) -> dict[str, float]:
        """Figures for `Report`; `replay/insert_blocked` and `replay/sample_blocked` are 1 while the limiter holds."""
        limits = self.limits()
        return {
            "replay/size": float(limits.size),
            "replay/inserted": float(limits.inserted),
            "replay/sampled": float(limits.sampled),
            "replay/samples_per_insert": limits.sampled / max(limits.inserted, 1),
            "replay/insert_blocked": float(limits.insert_blocked),
            "replay/sample_blocked": float(limits.sample_blocked),
        }

    def checkpoint(self, folder: Path) -> Path:
        """Writes everything into `folder`, which becomes (or replaces) a checkpoint of its own; returns it.

        Reverb holds all inserts and samples back meanwhile.
        """
        written = Path(self._shard.client.checkpoint())
        return checkpoint.seal(written, folder, self._shard.address.identity, self._signature.layout, self._settings)

    def stop(self) -> None:
        """Stops listening and drops what is in memory; may be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        self._scratch.cleanup()

    def _start(self, port: int, identity: str, data: Path | None) -> Any:
        from reverb import Server
        from reverb.platform.checkpointers_lib import DefaultCheckpointer

        tables = [_samples_table(self._settings, self._signature), _identity_table(identity)]
        fallback = str(data) if data is not None else None
        try:
            return Server(tables, port, DefaultCheckpointer(self._scratch.name, fallback_checkpoint_path=fallback))
        except RuntimeError as error:
            if data is None:
                raise
            raise ReplayRestoreError(f"replay checkpoint {data.parent}: Reverb cannot read it: {error}") from None

    def _reach(self, hosts: list[str], port: int, identity: str) -> Shard:
        """This server as others will see it, by the first host at which it answers."""
        for host in hosts:
            shard = Shard(Address(f"{host}:{port}", identity), self._signature)
            if shard.limits() is not None:
                return shard
        shard.wait(_START_S)
        return shard

    def _check_restored(self, folder: Path) -> None:
        """Reverb takes a saved table's settings without a word, so they are compared once more as it runs them."""
        try:
            found = self.limits().settings
        except (ReplayTimeout, WrongServer) as error:
            self.stop()
            raise ReplayRestoreError(f"replay checkpoint {folder}: {error}") from None
        if found != self._settings:
            self.stop()
            raise ReplayRestoreError(f"replay checkpoint {folder} restored {found}; expected {self._settings}")


def _samples_table(settings: Settings, signature: SampleSignature) -> Any:
    import tensorflow as tf
    from reverb import Table, rate_limiters, selectors

    exponent = settings.priority_exponent
    return Table(
        name=TABLE,
        sampler=selectors.Uniform() if exponent is None else selectors.Prioritized(exponent),
        remover=selectors.Fifo(),
        max_size=settings.capacity // settings.bundle,
        rate_limiter=rate_limiters.SampleToInsertRatio(
            settings.samples_per_insert,
            settings.min_size // settings.bundle,
            (settings.min_diff / settings.bundle, settings.max_diff / settings.bundle),
        ),
        signature={signature.layout: tf.TensorSpec((signature.item_bytes,), tf.uint8)},
    )


def _identity_table(identity: str) -> Any:
    from reverb import Table, rate_limiters, selectors

    return Table(IDENTITY + identity, selectors.Fifo(), selectors.Fifo(), 1, rate_limiters.MinSize(1))


def _port(first: int, shard: int) -> int:
    """The port of a shard, seen to be free: Reverb would silently share one that is taken.

    Raises:
      PortTaken: somebody listens there.
    """
    port = first + shard if first else 0
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError as error:
            raise PortTaken(
                f"replay shard {shard} cannot listen on port {port}: {error.strerror}. Stop whoever listens there, "
                "or set replay.port to another first port (0 chooses free ones)"
            ) from None
        return int(probe.getsockname()[1])


def _own_ip() -> str:
    """The IP of this machine towards others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1 of RFC 5737: any address beyond this machine will do
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
