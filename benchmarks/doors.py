"""What the processes of a run listen on: the table of docs/operations.md, to which tests hold their sockets."""

from __future__ import annotations

from typing import Literal, NamedTuple

Reach = Literal["loopback", "node", "all", "as set"]
"""Which addresses a socket is bound to: 127.0.0.1, that by which other nodes reach the node, all, or the setting's."""


class Door(NamedTuple):
    """A kind of listening TCP socket."""

    who: str
    """What listens, in words."""
    process: str
    """A regular expression that the command lines of its processes hold."""
    port: str
    """The setting of the port, or what chooses it."""
    alone: Reach
    """Where it listens if the run has this machine alone."""
    joined: Reach
    """Where it listens in a cluster."""
    credential: str
    """What a client must have."""


_RAY = r"raylet|gcs_server|ray/_private|ray/dashboard|^ray::|pytest|podzero"
DOORS = (
    Door("Ray, in each process", _RAY, "free", "loopback", "all", "Ray's token"),
    Door("replay shard", r"reverb_server/serve\.py", "`replay.port`", "all", "all", "none"),
    Door("inference server", "^ray::InferenceProcess", "free", "loopback", "node", "none"),
    Door("learner of several hosts", "^ray::LearnerProcess", "free", "loopback", "node", "none"),
    Door("`metrics.prometheus`", "pytest|podzero", "as set", "as set", "as set", "none"),
    Door("`report`, `play`", "podzero", "`--port`", "loopback", "loopback", "random token"),
)
"""All doors. Of a replay shard that has this machine alone, the kernel refuses what does not come by loopback; the last
two may be opened by `metrics.prometheus=0.0.0.0:PORT` and `--host`.
"""
