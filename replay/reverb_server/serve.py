"""A Reverb server as a process of its own, independent of podzero.

    python replay/reverb_server/serve.py

The first line of standard input is one JSON object:

    port          the port
    loopback      whether only this machine may connect
    checkpoints   the folder to which checkpoints are written
    restore       a checkpoint to restore, or null
    tables        a list of tables, each with
                  name, max_size, and if wanted
                  signature (a name and the shape of uint8 below it)
                  priority_exponent (else sampled uniformly)
                  limiter: samples_per_insert, min_size_to_sample, error_buffer of SampleToInsertRatio (else unlimited)

It answers with one line of JSON: `{"ready": {"reverb": VERSION, "loopback": true}}`, or ends with
`{"error": TEXT, "restoring": whether it could not read the checkpoint}`. The server then runs until standard input is
closed, which also happens when the process that started it dies; before it answers, it dies with that process.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
from importlib.metadata import version

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


class CheckpointUnreadable(Exception):
    """Reverb cannot restore the checkpoint."""


def main():
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # What libraries print must not come between the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Ctrl-C is for the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A restoration takes long, and standard input is not read meanwhile.
    die_with_parent(signal.SIGKILL)
    wanted = json.loads(sys.stdin.readline())
    if is_closed(sys.stdin):
        return 1  # the parent died before the call above
    try:
        server, ready = start(wanted)
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}", "restoring": isinstance(error, CheckpointUnreadable)}
        print(json.dumps(said), file=answers, flush=True)
        return 1
    # From here on the end of standard input tells that the parent died, also this process if it was stopped: the signal
    # lets it go on. It would also come if only the thread that started this process ended.
    die_with_parent(signal.SIGCONT)
    print(json.dumps({"ready": ready}), file=answers, flush=True)
    sys.stdin.read()
    server.stop()
    return 0


def die_with_parent(number):
    """Lets the kernel send this process a signal when the thread that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def is_closed(pipe):
    """Whether the other end of a pipe is closed."""
    events = select.poll()
    events.register(pipe, 0)
    return any(event & select.POLLHUP for _, event in events.poll(0))


def start(wanted):
    """Starts the server that `wanted` describes; returns it and its part of the answer."""
    import reverb
    from reverb.platform.checkpointers_lib import DefaultCheckpointer

    checkpointer = DefaultCheckpointer(wanted["checkpoints"], fallback_checkpoint_path=wanted["restore"])
    tables = [table(**fields) for fields in wanted["tables"]]
    try:
        server = reverb.Server(tables, wanted["port"], checkpointer)
    except RuntimeError as error:
        # "BuildAndStart" is gRPC's error for a port that is taken. A lack of memory raises another type.
        if wanted["restore"] is None or "BuildAndStart" in str(error):
            raise
        raise CheckpointUnreadable(str(error)) from error
    loopback = wanted["loopback"] and keep_to_loopback(wanted["port"])
    return server, {"reverb": version("dm-reverb"), "loopback": loopback}


def table(name, max_size, signature=None, priority_exponent=None, limiter=None):
    import reverb
    import tensorflow as tf

    uniform, limiters = priority_exponent is None, reverb.rate_limiters
    return reverb.Table(
        name=name,
        sampler=reverb.selectors.Uniform() if uniform else reverb.selectors.Prioritized(priority_exponent),
        remover=reverb.selectors.Fifo(),
        max_size=max_size,
        rate_limiter=limiters.SampleToInsertRatio(**limiter) if limiter else limiters.MinSize(1),
        signature=signature and {field: tf.TensorSpec(shape, tf.uint8) for field, shape in signature.items()},
    )


def keep_to_loopback(port):
    """Restricts the server to loopback, since Reverb listens on all interfaces; returns whether that succeeded."""
    restricted = 0
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            copy = os.dup(descriptor)
        except OSError:  # closed meanwhile
            continue
        try:
            listening = socket.socket(fileno=copy)
        except OSError:  # no socket
            os.close(copy)
            continue
        with listening:
            if is_listening(listening, port):
                try:
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
                except OSError:
                    return False
                restricted += 1
    return restricted > 0


def is_listening(candidate, port):
    if candidate.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    accepts = candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return bool(accepts) and candidate.getsockname()[1] == port


if __name__ == "__main__":
    sys.exit(main())
