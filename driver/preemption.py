"""Google Cloud's word that this machine will be taken away: its metadata server is asked, and waited for.

`instance/preempted` becomes TRUE when a spot machine is about to be shut down, as a rule half a minute before;
`instance/maintenance-event` says so before work on the host (https://cloud.google.com/compute/docs/metadata). A request
waits at the server until the value changes, so that one is enough for a minute and none comes late.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlencode

from podzero.cluster.stale_processes import CHIP_FILES

log = logging.getLogger(__name__)

HOST_VARIABLE = "GCE_METADATA_HOST"
"""Environment variable that names another metadata server, as in Google's own libraries: `host` or `host:port`."""
ANNOUNCEMENTS = {
    "instance/preempted": {"TRUE": "this machine is about to be preempted"},
    "instance/maintenance-event": {
        "TERMINATE_ON_HOST_MAINTENANCE": "this machine is about to be stopped for maintenance of its host",
    },
}
"""What is asked, and what the answers that announce an end mean; a machine that only moves (MIGRATE_...) stays."""
HOLD_S = 60
"""How long the server may hold a request back while nothing changes."""
ANSWER_TIMEOUT_S = HOLD_S + 15.0
PAUSE_S = 1.0
"""Shortest time between two requests, for a server that does not hold them back."""
LONGEST_PAUSE_S = 30.0
"""Pauses double up to this while the server fails."""
MOST_BYTES = 4096
NOT_FOUND = 404


def metadata_host(devices: Path = Path("/dev")) -> str | None:
    """Where this machine's metadata server can be expected: on machines with TPU chips, or where the environment says.

    Args:
      devices: where the device files lie.
    """
    chips = any(file for pattern in CHIP_FILES for file in devices.glob(pattern))
    return os.environ.get(HOST_VARIABLE) or ("metadata.google.internal" if chips else None)


def watch_for_notices(give: Callable[[str], None]) -> list[threading.Thread]:
    """Calls `give` with words for people whenever the end of this machine is announced, as long as the process lives.

    It never fails, and never holds up the end of the process; where no metadata server can be expected nothing
    is asked at all.

    Args:
      give: called in another thread, once for each announcement.

    Returns:
      The threads that watch, one for each of `ANNOUNCEMENTS`.
    """
    host = metadata_host()
    watchers = [
        threading.Thread(target=_watch, args=(host, key, give), name=f"watch {key}", daemon=True)
        for key in (ANNOUNCEMENTS if host else ())
    ]
    for watcher in watchers:
        watcher.start()
    return watchers


class _Unknown(Exception):
    """The server does not know the key."""


def _watch(host: str, key: str, give: Callable[[str], None]) -> None:
    """Follows one key for ever, or until the server says that it does not know it, as GKE's does."""
    state, value, pause = "0", "", PAUSE_S  # no state is "0", so that the first answer comes at once
    while True:
        try:
            new, state = _ask(host, key, state)
        except _Unknown:
            log.info("the metadata server does not tell %s; such an end of this machine comes unannounced", key)
            return
        except (OSError, HTTPException, ValueError):
            pause = min(2 * pause, LONGEST_PAUSE_S)
        else:
            pause = PAUSE_S
            if new != value and new in ANNOUNCEMENTS[key]:
                give(ANNOUNCEMENTS[key][new])
            value = new
        time.sleep(pause)


def _ask(host: str, key: str, state: str) -> tuple[str, str]:
    """The value of a key and its state, as soon as the state is another, or after `HOLD_S`.

    Raises:
      _Unknown: the server does not know the key.
      OSError, HTTPException, ValueError: no answer, or none that can be used.
    """
    query = urlencode({"wait_for_change": "true", "last_etag": state, "timeout_sec": HOLD_S})
    connection = HTTPConnection(host, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", f"/computeMetadata/v1/{key}?{query}", headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        if answer.status == NOT_FOUND:
            raise _Unknown
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return answer.read(MOST_BYTES).decode("ascii").strip(), answer.headers.get("ETag", "0")
    finally:
        connection.close()
