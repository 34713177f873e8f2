"""A replay shard's process, and how other processes find the shards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from podzero.config import Experiment
from podzero.runtime.checkpoints import SavedShard
from podzero.runtime.cluster.directory import AddressBook, keep_announced
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, own_address
from podzero.runtime.processes.process import Process

if TYPE_CHECKING:
    from podzero.replay import ReplayServer

log = logging.getLogger(__name__)

SILENT_DRAINS = 4
"""How many requests for metrics in a row a replay server may leave unanswered before it counts as failed.

Each waits half a minute. A server that swaps, or whose disk is slow, still holds its samples; a new one would only have
those of the last checkpoint.
"""


@dataclass(eq=False)
class ReplayProcess(Process):
    """A replay shard, which starts with the first of its `contents` that is whole, or empty."""

    contents: Sequence[SavedShard] = ()
    server: ReplayServer = field(init=False, repr=False)
    _silent: int = field(default=0, init=False, repr=False)
    """How many requests for metrics in a row the server has left unanswered."""

    def build(self) -> None:
        """Starts the Reverb server and announces its address."""
        from podzero.envs import spec_of
        from podzero.replay import ReplayRestoreError, ReplayServer

        experiment = self.context.experiment
        spec = spec_of(experiment.env)
        server, found = None, None
        for content in self.contents:
            try:
                server, found = ReplayServer(experiment, spec, self.index, content.folder, own_address()), content
                break
            except ReplayRestoreError as damage:
                log.warning("the contents of a replay shard are damaged", exc_info=damage)
        self.server = server or ReplayServer(experiment, spec, self.index, host=own_address())
        if self.contents and found != self.contents[0]:
            self._report_loss(self.contents[0], found)
        keep_announced(self.context.directory, self.name, self.attempt, self.server.address())

    def _report_loss(self, wanted: SavedShard, found: SavedShard | None) -> None:
        """Logs and counts the samples that are missing because the contents `wanted` were damaged."""
        missing = max(0, wanted.samples - self.server.limits().size)
        log.warning(
            "%s continues %s: %s of the samples of %s are missing",
            self.name,
            f"with the older contents of {found.folder}" if found else "empty",
            f"{missing:,} of {wanted.samples:,}" if wanted.samples else "an unknown number",
            wanted.folder,
        )
        self.reports.report(self.name, {"count/damaged_shards": 1.0, "count/missing_samples": float(missing)})

    def refresh(self) -> None:
        """Reports the metrics of the tables."""
        from podzero.replay.errors import ReplayTimeout

        try:
            self.reports.report(self.name, self.server.info())
        except ReplayTimeout as timeout:
            self._silent += 1
            if self._silent >= SILENT_DRAINS:
                raise
            log.warning("metrics are missing, request %d of %d: %s", self._silent, SILENT_DRAINS, timeout)
        else:
            self._silent = 0

    def checkpoint(self, folder: Path) -> int:
        """Writes the shard's contents into `folder`; returns how many samples there were when it began."""
        samples = self.server.limits().size
        self.server.checkpoint(folder)
        return samples


def replay_addresses(
    book: AddressBook, experiment: Experiment, rank: int = 0, hosts: int = 1
) -> Callable[[], list[str]]:
    """Waits until the replay shards listen; returns a function that gives their current addresses, by index.

    Args:
      book: the addresses that this process knows.
      experiment: the run's experiment.
      rank: the rank of the learner host that reads the shards; other processes use all shards.
      hosts: the number of learner hosts that share the shards.
    """
    names = [f"replay-{index}" for index in range(experiment.replay_shards)]
    # The driver waits as long: with less, a replay that takes longer to restore could never be resumed.
    return book.await_servers(names[rank::hosts], BUILD_TIMEOUT_S)
