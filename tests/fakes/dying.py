"""A process that dies before any of its changes of files, or within one, as by SIGKILL or a loss of power."""

import io
import os
import warnings

CHANGES = ("mkdir", "rename", "replace", "unlink", "rmdir", "link", "symlink", "truncate", "ftruncate", "pwrite")
"""The functions of `os` that change files. `open` makes a file, and what is written into it follows."""
_DEAD = 9


def deaths(prepare, act):
    """Runs `act` in forks of this process until one ends; yields whenever one has died, each at a later moment.

    These are before each change, and just after a file was opened for what is to be written into it. Each time
    `prepare` comes first, in this process.
    """
    moment = 0
    while True:
        prepare()
        if not _dies(act, moment):
            return
        yield moment
        moment += 1


def _dies(act, moment):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's and JAX's: the fork needs none of this process's other threads
        child = os.fork()
    if not child:
        try:
            _die_at(moment)
            act()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, _DEAD), f"the fork that was to die at its moment {moment} has failed"
    return code == _DEAD


def _die_at(moment):
    left = [moment]

    def pass_by():
        left[0] -= 1
        if left[0] < 0:
            os._exit(_DEAD)

    def changing(change):
        def call(*args, **options):
            pass_by()
            return change(*args, **options)

        return call

    def opening(change, writes):
        def call(file, how=None, *args, **options):
            if not writes(how):
                return change(file, *([] if how is None else [how]), *args, **options)
            pass_by()
            opened = change(file, how, *args, **options)
            pass_by()
            return opened

        return call

    for name in CHANGES:
        setattr(os, name, changing(getattr(os, name)))
    os.open = opening(os.open, lambda flags: bool(flags & (os.O_WRONLY | os.O_RDWR)))
    io.open = opening(io.open, lambda mode: (mode or "r")[0] in "wax")
