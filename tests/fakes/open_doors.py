"""The sockets at which processes listen, and which of the list of doors they are."""

import ipaddress
import os
import re
from contextlib import suppress

import psutil

from podzero.benchmarks.doors import DOORS


def sockets_of(processes):
    """The command line, address and port of each socket at which processes listen."""
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            # The driver is this process, whose command line is xdist's if tests run in parallel.
            title = "podzero" if process.pid == os.getpid() else " ".join(process.cmdline())
            sockets = process.net_connections("tcp")
            found |= {(title, *one.laddr) for one in sockets if one.status == psutil.CONN_LISTEN}
    return found


def reach_of(address):
    """The reach of a socket's address, as in `Reach`."""
    found = ipaddress.ip_address(address.removeprefix("::ffff:"))
    return "loopback" if found.is_loopback else "all" if found.is_unspecified else "node"


def doors_of(socket, joined=False):
    """The doors that a socket may be: those of its process that have its reach."""
    title, address, _ = socket
    return [
        door
        for door in DOORS
        if re.search(door.process, title) and (door.joined if joined else door.alone) in (reach_of(address), "as set")
    ]


def family():
    """This process and all below it."""
    return [psutil.Process(), *psutil.Process().children(recursive=True)]
