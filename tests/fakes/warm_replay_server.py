"""Stands in for the Python of the replay server's environment: Reverb is imported once, and each server is a fork.

To import TensorFlow takes seconds, and tests start many servers. `warm` gives an interpreter that hands its arguments
and its standard streams to a process that has imported Reverb already; that one forks, and the fork runs the program.
"""

import json
import os
import runpy
import select
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

LOOK_EVERY_S = 0.02


@contextmanager
def warm(python, folder):
    """Starts the process that forks; yields the interpreter to use instead of `python`, with the packages of its own.

    Both are in `folder`, as in an environment.
    """
    address, interpreter = folder / "warm", folder / "bin" / "python"
    interpreter.parent.mkdir()
    (folder / "lib").symlink_to(Path(python).parents[1] / "lib")
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {Path(__file__)} ask {address} "$@"\n')
    interpreter.chmod(0o755)
    command = [str(python), __file__, "serve", str(address)]
    quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=quiet)
    try:
        assert server.stdout.readline() == b"ready\n"
        yield interpreter
    finally:
        server.stdin.close()
        server.wait(20)


def ask(address, arguments):
    """In the place of the interpreter: lets the warm process run a program; returns its exit code."""
    with socket.socket(socket.AF_UNIX) as warm_process:
        warm_process.connect(address)
        socket.send_fds(warm_process, [json.dumps(arguments).encode()], [0, 1, 2])
        return int(warm_process.recv(16) or b"1")


def serve(address):
    """In the warm process: forks for each that asks, until standard input is closed."""
    import reverb  # noqa: F401
    import tensorflow  # noqa: F401

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    print("ready", flush=True)
    running = {}
    while True:
        readable, _, _ = select.select([0, listener, *running], [], [], LOOK_EVERY_S if running else None)
        if 0 in readable:
            return
        if listener in readable:
            client, _ = listener.accept()
            running[client] = fork(client, listener)
        for client, process in list(running.items()):
            gone = client in readable  # it sends nothing, so this is its end
            if gone:
                os.kill(process, 9)
            ended, status = os.waitpid(process, 0 if gone else os.WNOHANG)
            if ended:
                if not gone:
                    client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                client.close()
                del running[client]


def fork(client, listener):
    """Runs what `client` asks for in a fork; returns its process id."""
    text, streams, _, _ = socket.recv_fds(client, 65536, 3)
    process = os.fork()
    if process:
        for stream in streams:
            os.close(stream)
        return process
    listener.close()
    client.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    program, *rest = [argument for argument in json.loads(text) if argument not in ("-P", "-u")]
    sys.argv = [program, *rest]
    code = 1
    try:
        runpy.run_path(program, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    role, path, *others = sys.argv[1:]
    sys.exit(ask(path, others) if role == "ask" else serve(path))
