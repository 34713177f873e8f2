"""The ledger of a run's samples: what became of each, from what writers and replay shards report. Pure.

For each table of replay two sums close (docs/watching.md explains the columns):

    made = refused + confirmed + lost + in_flight
    confirmed + restored + unheard = held + evicted + lost_with_shards

`unheard` is what replay took beyond what writers were told (below zero: the reverse). Reports of several processes are
apart by as long as the slowest of them is silent, a process that is killed takes its last counts along, and what a
writer gave up may have arrived. What these do not explain is `unexplained`: samples that nobody of this run wrote, or
that vanished. `unaccounted` is by how much the first sum does not close.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

COLUMNS = {
    "made": "made", "refused": "refused", "confirmed": "confirmed", "lost": "lost", "in_flight": "in flight",
    "restored": "restored", "held": "held", "evicted": "evicted", "lost_with_shards": "lost with shards",
    "unheard": "unheard", "sampled": "read", "trained": "trained on",
}  # fmt: skip
"""The columns that are shown, in words."""
Ledgers = Mapping[str, Mapping[str, Any]]
"""What `Books.ledger` returns, by table."""
REPORTS_APART_S = 60.0
"""Longest time between the reports of one moment, if none of the processes is silent."""


class Books:
    """Keeps the ledger of one table, over all resumptions. Times are in seconds, from one monotonic clock."""

    def __init__(self, table: str, shards: int, now: float, counters: Mapping[str, float]) -> None:
        """A run that resumes gives what `counters` returned for its checkpoint."""
        self._saved, self._counts = f"ledger/{table}/", f"count/{table}/"
        prefix = "replay" if table == "samples" else table
        self._of_shards = [f"{prefix}/{name}" for name in ("inserted", "size", "sampled")]
        own = ((name, count) for name, count in counters.items() if name.startswith(self._saved))
        self._sums = Counter({name.removeprefix(self._saved): int(count) for name, count in own})
        # The writers of an earlier start are gone.
        self._sums["lost"] += self._sums["made"] - self._refused - self._sums["confirmed"] - self._sums["lost"]
        self._lost_before = self._sums["lost"]
        self._in_flight: Counter[str] = Counter()
        self._heard: dict[str, float] = {}
        """When each writer, or shard of its tables, reported last: a silent one may know more."""
        self._shards: dict[str, list[int]] = {}
        """What each inserted over the life of its contents, which a checkpoint counts too; its size; its reads."""
        self._absent = shards
        """How many shards have not reported yet."""
        self._expected = self._sums["confirmed"] + self._sums["restored"] - self._sums["lost_with_shards"]
        """What they should have inserted by their first reports."""
        self._moved = self._unsure = 0
        """What was confirmed or inserted so far; of that, what was near the end of a process and may be untold."""
        self._ended_at = -math.inf
        self._moves = deque([(now, 0)])
        """`_moved` at the times of reports."""

    def add(self, worker: str, metrics: Mapping[str, float], now: float) -> None:
        """Adds a report of a writer (`ShardedWriter.metrics`) or of a shard (`ReplayServer.info`)."""
        before, heard_at = self._moved, self._heard.get(worker, now)
        for name, count in metrics.items():
            if name == f"{self._counts}in_flight":
                self._in_flight[worker] += int(count)
            elif name.startswith(self._counts):
                self._sums[name.removeprefix(self._counts)] += int(count)
        self._moved += int(metrics.get(f"{self._counts}confirmed", 0))
        if all(name in metrics for name in self._of_shards):
            self._add_shard(worker, [int(metrics[name]) for name in self._of_shards])
            self._heard[worker] = now
        elif worker not in self._shards:
            self._heard[worker] = now
        if heard_at - self._ended_at <= REPORTS_APART_S:
            self._unsure += self._moved - before
        # One entry a second bounds the memory when many workers report.
        if len(self._moves) > 1 and now - self._moves[-2][0] < 1.0:
            self._moves.pop()
        self._moves.append((now, self._moved))

    def ended(self, worker: str, now: float) -> None:
        """Records that a writer or a shard has ended, in whatever way; a shard's successor reports under its name."""
        self._unsure += self._recently(now)
        self._heard.pop(worker, None)
        self._ended_at = now
        self._sums["lost"] += self._in_flight.pop(worker, 0)

    def end(self, now: float) -> None:
        """Records that all writers have ended."""
        for worker in [worker for worker, count in self._in_flight.items() if count]:
            self.ended(worker, now)

    def counters(self) -> dict[str, float]:
        """The counters to store in a checkpoint."""
        return {f"{self._saved}{name}": float(count) for name, count in self._sums.items()}

    def ledger(self, trained: int, now: float) -> dict[str, Any]:
        """The columns, and `refused_for`, the reasons; the learner's batches had `trained` samples of this table."""
        sums, in_flight = self._sums, sum(self._in_flight.values())
        inserted, held, sampled = (sum(shard[index] for shard in self._shards.values()) for index in range(3))
        known = sums["confirmed"] + sums["restored"]
        unheard = 0 if self._absent else inserted + sums["lost_with_shards"] - known
        missed = self._recently(now) + self._unsure
        more = max(unheard - missed - in_flight - (sums["lost"] - self._lost_before), 0)
        columns = {name: sums[name] for name in ("made", "confirmed", "lost", "restored", "lost_with_shards")}
        return columns | {
            "refused": self._refused,
            "refused_for": {name[8:]: count for name, count in sums.items() if name.startswith("refused/")},
            "in_flight": in_flight,
            "held": held,
            "evicted": inserted - held,
            "unheard": unheard,
            "sampled": sampled,
            "trained": trained,
            "unaccounted": sums["made"] - self._refused - sums["confirmed"] - sums["lost"] - in_flight,
            "unexplained": more or min(unheard + missed, 0),
        }

    @property
    def _refused(self) -> int:
        return sum(count for name, count in self._sums.items() if name.startswith("refused/"))

    def _add_shard(self, name: str, found: list[int]) -> None:
        before = self._shards.get(name)
        self._shards[name] = found
        if before is not None:
            self._moved += max(found[0] - before[0], 0)
            # It restarted, from a checkpoint or empty, and reports before anybody can write.
            self._sums["lost_with_shards"] += max(before[0] - found[0], 0)
            return
        self._absent -= 1
        self._expected -= found[0]
        if not self._absent:
            self._sums["lost_with_shards"] += max(self._expected, 0)
            self._sums["restored"] += max(-self._expected, 0)

    def _recently(self, now: float) -> int:
        """What was confirmed or inserted lately: by so much two reports may differ that are to be of one moment."""
        since = min(self._heard.values(), default=now) - REPORTS_APART_S
        while len(self._moves) > 1 and self._moves[1][0] <= since:
            self._moves.popleft()
        return self._moved - self._moves[0][1]


def complete(ledgers: Ledgers) -> Ledgers:
    """Ledgers that were read; raises `ValueError` if one lacks a number."""
    for row in ledgers.values():
        if not all(isinstance(row.get(name), int) for name in (*COLUMNS, "unaccounted", "unexplained")):
            raise ValueError("a ledger lacks a number")
    return ledgers


def open_sums(ledger: Ledgers) -> str:
    """Says which sums of the tables' ledgers do not close, and by how many samples; empty if all do."""
    said = []
    for table, row in ledger.items():
        if row["unaccounted"]:
            said.append(f"{table}: {row['unaccounted']:+,} made, and not refused, confirmed, lost or in flight")
        if row["unexplained"]:
            what = "in replay that nobody of this run wrote" if row["unexplained"] > 0 else "confirmed and vanished"
            said.append(f"{table}: {abs(row['unexplained']):,} {what}")
    return "; ".join(said)
