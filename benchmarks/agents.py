"""What ten thousand actors on 313 nodes cost their driver: its loop, and the files of metrics.

uv run --group dev python benchmarks/agents.py
uv run --group dev python benchmarks/agents.py --actors 1000 --nodes 32

Driver, supervisor, monitor and metrics are those of a run. Nodes, agents and processes are stand-ins: a few Ray actors
on this machine answer in their place with what that many actors would report, so that each call of the driver is a real
one. What Ray itself does for that many nodes is not measured. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from podzero.config import Experiment, load
from podzero.files.workdir import Workdir
from podzero.runtime import supervisor as supervisor_module
from podzero.runtime.cluster.placement import Node
from podzero.runtime.cluster.preflight import PreflightCheck, versions
from podzero.runtime.cluster.ray_cluster import MOST_REQUESTS, Bundle, PlacementGroup, connect
from podzero.runtime.cluster.remote import RemoteActor
from podzero.runtime.monitoring.metrics import RESOLUTION, MetricsLog, move_lost_lines
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.runtime.run import TICK_S, Run
from podzero.runtime.saving import Saver
from podzero.runtime.stopping import StopRequest, StopSignals
from podzero.runtime.supervisor import Supervisor

WEEK_S = 7 * 86_400.0
REPORT_EVERY_S = 2.0
STAND_INS = 4
"""Ray actors that stand for all agents and processes."""
KINDS = ("actor", "reanalyser", "inference", "replay", "learner", "driver", "evaluator")
"""Kinds with a line of metrics. All are taken to have as many metrics as an actor."""


def main() -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=313)
    parser.add_argument("--seconds", type=float, default=120.0, help="time of the driver's loop")
    parser.add_argument("--only", choices=("metrics", "loop"), help="leave out the other measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "actors": options.actors,
            "nodes": options.nodes,
            "most_placement_groups": MOST_REQUESTS,
            **({} if options.only == "loop" else metrics_of_a_week(Path(folder) / "metrics", options.actors)),
            **(
                {}
                if options.only == "metrics"
                else driver_loop(Path(folder) / "run", options.actors, options.nodes, options.seconds)
            ),
            "load_average": os.getloadavg()[0],
            "cpus": os.cpu_count(),
            "processor": platform.processor(),
        }
    print(json.dumps(found, indent=2))


def report(counts: float = 1.0) -> dict[str, float]:
    """The metrics of an actor's report."""
    counted = ("moves", "evaluations", "games", "samples", "failed_episodes")
    written = ("made", "confirmed", "in_flight", "refused/shape")
    stages = ("search", "write", "assemble", "parameters", "other")
    measured = ("version", "plies_per_game", "abs_root_value", "depth", "score_random")
    return (
        {f"count/{name}": counts for name in counted}
        | {f"count/samples/{name}": counts * (name in ("made", "confirmed")) for name in written}
        | {f"time/{name}": 0.2 for name in stages}
        | {f"selfplay/{name}": 123.456789 for name in measured}
    )


def metrics_of_a_week(root: Path, actors: int) -> dict[str, Any]:
    """The files of a week, and the seconds in which a recovery rewrites them."""
    sizes = []
    for workers in (2, actors):  # a line with this many, and what a week has of them
        workdir = Workdir(root / str(workers))
        log = MetricsLog(workdir)
        for round_s in range(3):
            for worker in range(workers):
                log.add(f"actor-{worker}", report(), 1, REPORT_EVERY_S * round_s)
        log.close(1)
        files = [workdir.metrics_file, *workdir.tensorboard.rglob("events*")]
        lines = len(workdir.metrics_file.read_text(encoding="utf-8").splitlines())
        sizes.append(sum(file.stat().st_size for file in files) / lines)
    workdir, elapsed_s, rounds = Workdir(root / "week"), 0.0, 0
    log = MetricsLog(workdir)
    while elapsed_s < WEEK_S:
        for kind in KINDS:
            for worker in range(2):
                log.add(f"{kind}-{worker}", report(), rounds, elapsed_s)
        rounds += 1
        elapsed_s += max(REPORT_EVERY_S, RESOLUTION * elapsed_s)
    log.close(rounds)
    files = [workdir.metrics_file, *workdir.tensorboard.rglob("events*")]
    written = sum(file.stat().st_size for file in files)
    began = time.monotonic()
    move_lost_lines(workdir, rounds - 100)
    return {
        "metrics_gb_a_week": round(written * sizes[1] / sizes[0] / 1e9, 3),
        "metrics_files": len(files),
        "recovery_file_s": round(time.monotonic() - began, 2),
    }


class StandIn:
    """A Ray actor that stands for agents and processes; `whose` is the name of the one that is called."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, float]] = {}
        self._steps = 0

    async def run(self, whose: str) -> None:
        """Works forever."""
        del whose
        await asyncio.Event().wait()

    async def ready(self, whose: str) -> None:
        """Is built."""

    async def snapshot(self, whose: str) -> int:
        """Has no parameters to write."""
        del whose
        return -1

    async def advance(self, whose: str, share: float) -> None:
        """Takes the share of the run."""

    async def add(self, whose: str, names: Sequence[str]) -> None:
        """Drains these processes of a node from now on; they did not start at the same moment."""
        now = time.monotonic()
        for name in names:
            self._held.setdefault(whose, {}).setdefault(name, now - REPORT_EVERY_S * (hash(name) % 64) / 64)

    async def drain(self, whose: str) -> list[MetricsReport]:
        """What an agent, or a process, has to say."""
        now, at = time.monotonic(), time.time()
        if whose in ("learner", "replay-0"):
            self._steps += whose == "learner"
            return [
                MetricsReport(
                    at, whose, report() | ({"learner/step": float(self._steps)} if whose == "learner" else {})
                )
            ]
        reports = []
        held = self._held.get(whose, {})
        for name, reported_at in held.items():
            reports.append(MetricsReport(at, name, {}))
            reports.append(MetricsReport(at, name, {"count/samples/made": 4.0, "count/samples/confirmed": 4.0}))
            if now - reported_at >= REPORT_EVERY_S:
                held[name] = now
                reports.append(MetricsReport(at, name, report()))
        return reports


class StandInProcess(RemoteActor):
    """A process, or an agent, whose calls go to a `StandIn`."""

    def begin(self, method: str, *args: object) -> Any:
        """Starts a method."""
        if method == "add":  # the handles of all processes are those of the same few actors
            args = (list(args[0]),)  # type: ignore[call-overload]
        return super().begin(method, self.name, *args)

    def kill(self, restart: bool = False) -> None:
        """Leaves the stand-in to the others."""


def _answered(method: str, *args: object) -> Any:
    """A call of a preflight check, which has answered."""
    del args
    answer = {"versions": versions(), "end_stale_processes": [], "reserve_port": 1}[method]
    return SimpleNamespace(done=True, result=lambda timeout_s: answer)


CHECK = SimpleNamespace(begin=_answered, ask=lambda method: _answered(method).result(0.0), kill=lambda: None)
"""A preflight check whose node is in order."""


class StandInCluster:
    """A joined cluster of nodes with 32 CPUs, without processes."""

    joined = True

    def __init__(self, nodes: int, stand_ins: list[Any]) -> None:
        self._nodes = [
            Node(f"{index:032x}", f"10.0.{index // 256}.{index % 256}", 32.0, {"CPU": 32.0}, {})
            for index in range(nodes)
        ]
        self._stand_ins = stand_ins
        self._started = 0
        self.requests = 0

    def nodes(self) -> list[Node]:
        """All nodes."""
        return list(self._nodes)

    def _process(self, name: str, node: str) -> StandInProcess:
        self._started += 1
        return StandInProcess(name, self._stand_ins[self._started % len(self._stand_ins)], node)

    def spawn(self, host: type, name: str, process: object = None, *, node: Node, **options: object) -> Any:
        """Starts a process."""
        del process, options
        if host is PreflightCheck:
            return CHECK
        return self._process(name, node.id)

    def reserve(self, nodes: Sequence[Node], resources: Mapping[str, float], timeout_s: float) -> PlacementGroup:
        """Reserves nothing."""
        del timeout_s
        return PlacementGroup(None, [Bundle(node, resources, None) for node in nodes])

    def start_agent(self, node: str, directory: object, store: object) -> StandInProcess:
        """Starts the agent of a node."""
        del directory, store
        return self._process(f"the agent of {node}", node)

    def request_capacity(self, cpus: object, beyond: object) -> None:
        """Notes a request."""
        self.requests += bool(cpus)


def driver_loop(root: Path, actors: int, nodes: int, seconds: float) -> dict[str, Any]:
    """The seconds of a round of the driver's loop, its pause of `TICK_S` included, and those of a start."""
    import ray

    experiment = load("tic_tac_toe", [
        f"actors.count={actors}", "actors.cpus=1", f"actors.min_count={actors}", "replay.cpus=0", "stop.minutes=600",
        "checkpoint.every_minutes=600", "checkpoint.learner_minutes=600",
    ])  # fmt: skip
    with (
        connect(None, 1),
        mock.patch.multiple(supervisor_module, start_lasting=mock.Mock(), start_param_store=mock.Mock()),
    ):
        options = {"num_cpus": 0, "max_concurrency": 100_000}
        stand_ins = [ray.remote(StandIn).options(**options).remote() for _ in range(STAND_INS)]
        stood_in = StandInCluster(nodes, stand_ins)
        with mock.patch.object(supervisor_module, "start_agent", stood_in.start_agent):
            return _loop(experiment, root, stood_in, seconds) | {"calls_a_round": nodes + 3}


def _loop(experiment: Experiment, root: Path, cluster: StandInCluster, seconds: float) -> dict[str, Any]:
    workdir = Workdir(root)
    workdir.open(experiment)
    supervisor = Supervisor(cluster, experiment, workdir, StopRequest(), cluster.nodes()[0].id)  # type: ignore[arg-type]
    began = time.monotonic()
    supervisor.start(None)
    start_s = time.monotonic() - began
    rounds: list[tuple[float, bool]] = []
    listen = supervisor.listen

    def timed() -> Any:
        rounds.append((time.monotonic(), supervisor._groups["actor"].complete))
        return listen()

    supervisor.listen = timed  # type: ignore[method-assign]
    saver = Saver(experiment, workdir)
    statuses: list[Any] = []
    view = SimpleNamespace(show=statuses.append)
    run = Run(experiment, workdir, supervisor, view, saver)  # type: ignore[arg-type]
    run.begin(None)
    signals = StopSignals()
    threading.Timer(seconds, signals.event.set).start()
    cpu = time.process_time()
    with mock.patch.object(Run, "_stop"):
        run.until_end(signals)
    cpu = time.process_time() - cpu
    run.close()
    saver.close()
    starting, all_there = list[float](), list[float]()
    for (earlier, complete), (later, _) in pairwise(rounds):
        (all_there if complete else starting).append(later - earlier)
    if not all_there:
        raise SystemExit(f"after {seconds:g} s not all actors were there: give more --seconds")
    all_there.sort()
    return {
        "start_s": round(start_s, 2),
        "pause_s": TICK_S,
        "rounds_while_starting": len(starting),
        "longest_round_while_starting_s": round(max(starting, default=0.0), 3),
        "rounds": len(all_there),
        "round_s_median": round(all_there[len(all_there) // 2], 3),
        "round_s_p99": round(all_there[math.ceil(0.99 * len(all_there)) - 1], 3),
        "cpu_share": round(cpu / seconds, 2),
        "moves_counted": statuses[-2].moves,
        "restarts": statuses[-2].restarts,
    }


if __name__ == "__main__":
    main()
