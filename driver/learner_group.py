"""The learner's processes, one on each host: started together, saved together, ended together."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from podzero.cluster.remote import STOP_TIMEOUT_S, ClusterError, MachineLost, RoleDied
from podzero.driver.worker import ANSWER_TIMEOUT_S, Post
from podzero.monitoring.reports import Figures, LogLine

log = logging.getLogger(__name__)

SAVE_TIMEOUT_S = 600.0
BLAME_TIMEOUT_S = 60.0
"""How long to look for the host whose loss made others fail: Ray takes 15 s to give a machine up."""
_LOOK_S = 0.2


class RunFailed(RuntimeError):
    """The run cannot go on; the message says who failed, why, and what to do."""


class LearnerTeam:
    """All hosts of the learner, rank 0 first."""

    def __init__(self, posts: Sequence[Post]) -> None:
        self.posts = list(posts)

    @property
    def leader(self) -> Post:
        """Host 0, which decides, publishes and reports."""
        return self.posts[0]

    def begin(self) -> None:
        """Starts training."""
        for post in self.posts:
            post.work = post.role.begin("run")

    @property
    def working(self) -> bool:
        """Whether all hosts are at work; False once host 0 has ended as it should.

        Raises:
          MachineLost: a host is gone with its machine.
          RunFailed: a host failed.
        """
        for post in self.posts:
            if post.work is not None and post.work.done:
                self._check(post)
        work = self.leader.work
        return work is not None and not work.done

    def checkpoint(self, folder: Path) -> int:
        """Saves the state of the next dispatch boundary; returns its step once all hosts have written their parts.

        Raises:
          ClusterError, RoleDied: a host did not answer.
        """
        saves = [post.role.begin("checkpoint", folder) for post in self.posts]
        steps = {int(save.result(SAVE_TIMEOUT_S)) for save in saves}
        assert len(steps) == 1, f"the hosts saved different steps: {steps}"
        return steps.pop()

    def stop(self) -> list[Figures | LogLine]:
        """Ends training on all hosts, which still answer afterwards; returns their last words.

        Raises:
          ClusterError: they did not end in time, or failed on the way.
          RoleDied: one is gone.
        """
        self.leader.role.ask("stop", timeout_s=STOP_TIMEOUT_S)
        for post in self.posts:
            if post.work is not None:
                _await(post)
        return [item for post in self.posts for item in post.last_words()]

    def kill(self) -> None:
        """Ends all hosts without ceremony, host 0 last: the others would complain about its silence."""
        for post in reversed(self.posts):
            post.role.kill()

    def _check(self, post: Post) -> None:
        """Raises what ended a host's work; where it was the loss of another host, that."""
        assert post.work is not None
        try:
            post.work.result(ANSWER_TIMEOUT_S)
        except MachineLost:
            raise
        except Exception as failure:
            gone = self._gone(besides=post)
            for loss in gone:
                if isinstance(loss, MachineLost):
                    raise loss from failure
            if isinstance(failure, RoleDied):
                gone.insert(0, failure)
            words = "; ".join(map(str, gone)) or f"the {post.role.name} failed: {failure}"
            raise RunFailed(words) from failure

    def _gone(self, besides: Post) -> list[RoleDied]:
        """The hosts whose processes are gone, which may be why another one failed; ends at the first lost machine."""
        until = time.monotonic() + BLAME_TIMEOUT_S
        others, gone = [post for post in self.posts if post is not besides], list[RoleDied]()
        while others and time.monotonic() < until:
            for post in [other for other in others if other.work and other.work.done]:
                others.remove(post)
                assert post.work is not None
                try:
                    post.work.result(ANSWER_TIMEOUT_S)
                except RoleDied as loss:
                    gone.append(loss)
                    if isinstance(loss, MachineLost):
                        return gone
                except Exception as failure:  # it failed as the first one did
                    log.warning("%s failed as well: %s", post.role.name, failure)
            time.sleep(_LOOK_S)
        return gone


def _await(post: Post) -> None:
    """Waits for the end of a host's work."""
    assert post.work is not None
    try:
        post.work.result(4 * STOP_TIMEOUT_S)
    except (ClusterError, RoleDied):
        raise
    except Exception as failure:  # of any kind that a program has
        raise ClusterError(f"the {post.role.name} failed while it ended: {failure}") from failure
