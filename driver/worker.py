"""A place in the crew of a run, whoever fills it: what it works at, and what it has to say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from podzero.cluster.remote import Call, ClusterError, Role, RoleDied
from podzero.monitoring.reports import Figures, LogLine

ANSWER_TIMEOUT_S = 20.0
"""A role that does not hand over its figures for so long is only skipped: it may be compiling."""
LAST_WORDS_S = 2.0


@dataclass
class Post:
    """One place, and the process that fills it at present."""

    role: Role
    work: Call | None = None
    """The pending `run`; None for roles that only answer."""
    fetch: Call | None = None
    """The pending `drain`."""

    def ended(self) -> Exception | None:
        """What ended its work, which was to go on; None while it does."""
        if self.work is None or not self.work.done:
            return None
        try:
            self.work.result(ANSWER_TIMEOUT_S)
        except Exception as raised:
            return raised
        return RoleDied(f"{self.role.name} returned")

    def fetched(self) -> list[Figures | LogLine]:
        """What it has said, if its answer is there; asks for more."""
        items: list[Figures | LogLine] = []
        if self.fetch is not None:
            if not self.fetch.done:
                return items
            try:
                items = self.fetch.result(ANSWER_TIMEOUT_S)
            except (ClusterError, RoleDied):
                return items  # its death is found by the crew, which knows what to do
        self.fetch = self.role.begin("drain")
        return items

    def last_words(self) -> list[Figures | LogLine]:
        """What it had not yet said when it ended its work."""
        items: list[Figures | LogLine] = []
        for fetch in filter(None, [self.fetch, self.role.begin("drain")]):
            with suppress(ClusterError, RoleDied):
                items += fetch.result(LAST_WORDS_S)
        return items


def await_end(posts: Sequence[Post], timeout_s: float) -> None:
    """Waits until each post's work has ended, all together no longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(post.work and not post.work.done for post in posts):
        time.sleep(0.1)
