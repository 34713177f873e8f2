"""What the tests of several packages share."""

import gc
import ipaddress
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from podzero.core.machine import cpu_kind, user_cache

# Before anything imports jax: the tests are about podzero, not about the accelerator that may be there.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# XLA's programs, small ones too, are shared by the processes of a run and by the runs of all checkouts.
# jax's own bound would lock and list the whole folder at each program: 50 ms of CPU time among 1,000 programs.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(user_cache() / "tests" / (cpu_kind() or "any")))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# A job in the background ignores Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests start hundreds of processes, each of which would compile the modules that it imports: 1 to 2 s of CPU time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests write experiments with code of their own into folders that nobody has been asked about.
os.environ.setdefault("PODZERO_TRUST", "1")

# Ray's workers have the priority of the tests, which would otherwise starve them.
os.environ.setdefault("RAY_worker_niceness", "0")

from podzero.config import load
from podzero.launch import cli
from podzero.runtime.monitoring.view import TerminalView

# By default Hypothesis fails a test that is slow, as on a busy machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

QUICK_COMPILE = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    # A program is compiled in one part instead of 32: the processes of the tests share the cores already.
    "--xla_cpu_parallel_codegen_split_count=1"
)

TINY = (
    "network.channels=4",
    "network.blocks=1",
    "search.simulations=4",
    "actors.games=16",
    "actors.cpus=1",
    "replay.min_size=64",
    "replay.capacity=2000",
    "replay.samples_per_insert=8",
    "replay.tolerance=128",
    "learner.batch_size=16",
    "learner.steps_per_dispatch=4",
    "learner.publish_every=8",
    "evaluation.every_minutes=60",
    "evaluation.final_minutes=0",
    "stop.minutes=4",
)


COMPILATION = "/jax/core/compile/backend_compile_duration"
"""JAX's name for the event that a program is compiled, or read from the cache of compiled programs."""
COMPILED = pytest.StashKey[list[float]]()
"""The seconds of each compilation."""
MOST_COMPILED = 5_700
"""The largest number of programs that a run of all fast tests may compile. Four fifths of the tests' time is XLA's:
before you raise it, look for a smaller program, or one that several tests share."""

TOGETHER = tuple(
    f"tests/{folder}/" for folder in ("envs", "evaluation", "inference", "learner", "networks", "replay", "search")
)
"""Folders whose files share compiled programs, or a process that has imported TensorFlow."""


def pytest_configure(config):
    """Compiles fast instead of for speed: a tenth to a third less CPU time. The slow tests train for minutes.

    At Python's threshold of 2,000 up to a sixth of the time is the search for cycles among what JAX traces. The oldest
    programs of earlier runs are deleted when all exceed 2 GiB.
    """
    gc.set_threshold(50_000, 20)
    sys.dont_write_bytecode = False
    if config.option.markexpr == "not slow":
        os.environ.setdefault("XLA_FLAGS", QUICK_COMPILE)
    if not hasattr(config, "workerinput"):
        delete_oldest(user_cache() / "tests", above=2**31)


def delete_oldest(folder, above):
    """Halves a folder of more than `above` bytes."""
    with suppress(FileNotFoundError):  # another run of the tests does the same
        files = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in folder.rglob("*-cache"))
        total = sum(size for _, size, _ in files)
        for _, size, path in files if total > above else []:
            if total > above / 2:
                path.unlink()
                total -= size


def pytest_collection_finish(session):
    """Counts the programs that this process compiles or reads from the cache."""
    gc.freeze()  # modules and collected tests are no garbage
    if (jax := sys.modules.get("jax")) is not None:
        compiled = session.config.stash.setdefault(COMPILED, [])
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, duration, **_: compiled.append(duration) if event == COMPILATION else None
        )


def pytest_sessionfinish(session):
    """Sends a worker's count to the controller, where too large a sum fails a run of all tests."""
    config, compiled = session.config, session.config.stash.get(COMPILED, [])
    if hasattr(config, "workeroutput"):
        config.workeroutput["compiled"] = compiled
    elif config.args_source is config.ArgsSource.TESTPATHS and len(compiled) > MOST_COMPILED and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_testnodedown(node):
    """Adds the count of a worker that ends."""
    node.config.stash.setdefault(COMPILED, []).extend(getattr(node, "workeroutput", {}).get("compiled", []))


def pytest_terminal_summary(terminalreporter, config):
    """Prints how many programs were compiled: most of what the tests cost."""
    if compiled := config.stash.get(COMPILED, []):
        terminalreporter.write_line(
            f"{len(compiled):,} programs compiled or read (at most {MOST_COMPILED:,}), {sum(compiled):,.0f} s"
        )


class ByFile(LoadFileScheduling):
    """A file is tested by one process, and some folders are."""

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def pytest_xdist_make_scheduler(config, log):
    """In a run of all tests a second process does not make again what the files of a folder share."""
    whole = config.args_source is config.ArgsSource.TESTPATHS
    return ByFile(config, log) if whole and config.option.dist == "loadfile" else None


def pytest_xdist_auto_num_workers():
    """One process more than cores: the tests of Ray and Reverb wait for much of their time.

    With one more still, two cores take 301 s instead of 339 s, but 563 s instead of 500 s where nothing was compiled.
    """
    return (os.cpu_count() or 1) + 1


@pytest.fixture(autouse=True, scope="module")
def _few_compiled_programs_in_memory():
    """Without it a process of the tests holds 6 GiB of programs at the end; those on disk are loaded quickly."""
    yield
    if "jax" in sys.modules and psutil.Process().memory_info().rss > 1.5 * 2**30:
        sys.modules["jax"].clear_caches()


def pytest_collection_modifyitems(items):
    """Limits slow tests to 20 minutes, where they have no limit of their own."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1200))


class Watcher(TerminalView):
    """A view that keeps what it was shown, and may act on it."""

    def __init__(self, act=None):
        super().__init__()
        self.statuses = []
        self.lines = []
        self._act = act

    def show(self, status):
        self.statuses.append(status)
        if self._act is not None and self._act(status):
            self._act = None

    def log(self, level, text):
        self.lines.append(text)


def processes(name):
    """Processes below this one whose title holds `name`."""
    children = psutil.Process().children(recursive=True)
    found = []
    for child in children:
        with suppress(psutil.NoSuchProcess):  # also of one that ends while it is looked at
            if any(name in part for part in child.cmdline()):
                found.append(child)
    return found


def outward_addresses():
    """Addresses of this machine other than loopback."""
    found = [address for interface in psutil.net_if_addrs().values() for address in interface]
    names = [address.address for address in found if address.family in (socket.AF_INET, socket.AF_INET6)]
    return [name for name in names if not ipaddress.ip_address(name.partition("%")[0]).is_loopback]


def answers(address, port):
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True


def listening_ports(processes):
    """The ports at which processes listen, each with the outward addresses that answer there."""
    ports = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            sockets = process.net_connections("tcp")
            ports |= {one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN}
    return {port: [address for address in outward_addresses() if answers(address, port)] for port in ports}


@pytest.fixture(scope="session")
def listening():
    """Lists the ports at which processes listen, each with the addresses where other machines would reach it."""
    return listening_ports


@pytest.fixture(scope="session")
def outward():
    """An IPv4 address of this machine by which others reach it."""
    for address in outward_addresses():
        if ":" not in address:
            return address
    pytest.skip("this machine has no address but loopback")


@pytest.fixture(scope="session")
def tiny():
    """Loads the smallest experiment that goes through the whole loop, with overrides."""
    return lambda *overrides: load("tic_tac_toe", [*TINY, *overrides])


@pytest.fixture
def command(monkeypatch, capfd):
    """Runs `podzero` in this process; returns exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["podzero", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.fixture
def made_here(monkeypatch):
    """`podzero train` makes an experiment's parts in this process: one of their own imports JAX for 1 to 2 s."""
    monkeypatch.setattr(
        "podzero.launch.train.ProcessPoolExecutor", lambda workers, mp_context: ThreadPoolExecutor(workers)
    )


@pytest.fixture
def three_players(tmp_path):
    """An experiment with a game for three players."""
    game, file = Path(__file__).parents[1] / "configs" / "own_three_players.py", tmp_path / "three.yaml"
    file.write_text(f"env: {{name: '{game.resolve()}:ThreeInARow'}}\n")
    return file


@pytest.fixture(scope="session")
def watch():
    """Makes views that keep what they are shown."""
    return Watcher


@pytest.fixture(scope="session")
def running():
    """Lists the processes below this one by a part of their title."""
    return processes


@pytest.fixture(scope="module")
def ray_cluster():
    """A Ray cluster of one node with two CPUs, for the tests of one file: a process can be in one cluster at a time."""
    from podzero.runtime.cluster.ray_cluster import connect

    with connect(None, cpus=2) as cluster:
        yield cluster
