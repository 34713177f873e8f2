"""What small real runs do when processes stop, signals come at any moment, and the machine runs out of something.

uv run --group dev python benchmarks/faults.py hangs --seconds 600 > hangs.json
uv run --group dev python benchmarks/faults.py stops --repetitions 60 > stops.json
uv run --group dev python benchmarks/faults.py limits > limits.json

`limits` needs root: it mounts file systems, and makes control groups and network namespaces. Each run is
`podzero train tic_tac_toe`, as small as it gets, below --workdir.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from podzero.files.storage import LEARNER_FOLDER, LEARNER_MANIFEST, SHARD_MANIFEST, altered, unsealed
from podzero.files.workdir import Workdir
from podzero.runtime.checkpoints import Checkpoint, newest_checkpoint
from podzero.runtime.monitoring.status import RunStatus
from podzero.tools.bench.child_run import ChildRun, lives

SMALL = (
    "network.channels=4", "network.blocks=1", "search.simulations=4", "actors.games=16", "replay.min_size=64",
    "replay.capacity=2000", "replay.samples_per_insert=8", "replay.tolerance=128", "learner.batch_size=16",
    "learner.steps_per_dispatch=4", "learner.publish_every=8", "evaluation.final_minutes=0", "evaluation.games=2",
    "actors.count=1", "stop.minutes=600",
)  # fmt: skip
"""The smallest experiment that goes through the whole loop."""
OFTEN = ("checkpoint.learner_minutes=0.05", "checkpoint.every_minutes=0.15")
LONG_S = 900.0
"""What has not happened by then does not happen."""
POLL_S = 0.5
STARTS = 5
"""Most attempts to start a run: on a busy machine Ray or Reverb may not start in time."""
GROUPS = (("actor", "evaluator", "reanalyser"), ("replay",), ("server",), ("learner",))
"""The kinds of processes that are stopped, each group at once: of those in one, none waits for another."""
WORKERS = {"server": "replay"}
"""What the status calls a worker whose kind is called otherwise."""
MOMENTS = ("start", "fill", "train", "save", "learner restarts", "actor restarts")
FULL_MIB = 64

Json = dict[str, Any]


def main() -> None:
    """Prints the result of one of the studies as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=["hangs", "stops", "limits"])
    parser.add_argument("--workdir", type=Path, default=Path("runs/faults"), help="where the runs are")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long a process stands still")
    parser.add_argument("--repetitions", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="of `limits`, these; of `stops`, these moments")
    given = parser.parse_args()
    match given.study:
        case "hangs":
            result = hangs(given.workdir / "hangs", given.seconds)
        case "stops":
            result = stops(given.workdir, given.repetitions, given.seed, given.only or MOMENTS)
        case _:
            result = {name: LIMITS[name](given.workdir / name) for name in given.only or LIMITS}
    json.dump({"study": given.study, "seed": given.seed, "result": result}, sys.stdout, indent=1)


def said(text: str) -> None:
    """Tells how far the study is."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def wait_for(run: ChildRun, what: Callable[[RunStatus], bool], limit_s: float = LONG_S, poll_s: float = POLL_S) -> bool:
    """Waits until the status is so; whether it is within the limit, and before the run ends."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and run.exit_code is None:
        run.processes()
        if (status := run.status()) is not None and what(status):
            return True
        time.sleep(poll_s)
    return False


@contextmanager
def prefixed(prefix: Sequence[str], workdir: Path, *overrides: str, console: Path | None = None) -> Iterator[ChildRun]:
    """A run whose command is given to another one; `console` is for what it prints."""
    run = ChildRun("tic_tac_toe", (*SMALL, *OFTEN, *overrides), workdir)
    run.command, run.console = [*prefix, *run.command], console or run.console
    try:
        run.start()
        yield run
    finally:
        run.close()


@contextmanager
def trained(
    workdir: Path, *overrides: str, prefix: Sequence[str] = (), console: Path | None = None
) -> Iterator[ChildRun]:
    """A run that trains and has a checkpoint, in as many attempts as it takes."""
    for attempt in range(1, STARTS + 1):
        with prefixed(prefix, workdir, *overrides, console=console) as run:
            if wait_for(run, lambda status: status.step > 0 and status.checkpoint_step is not None, 2 * LONG_S):
                yield run
                return
        said(f"attempt {attempt}: the run does not train, see {run.console}")
        shutil.rmtree(workdir, ignore_errors=True)
    raise SystemExit("no run has trained")


def goes_on(run: ChildRun, steps: int = 40) -> bool:
    """Whether the run makes so many steps more."""
    step = status.step if (status := run.status()) else 0
    return wait_for(run, lambda status: status.phase == "training" and status.step >= step + steps)


# Processes that stand still


def hangs(workdir: Path, seconds: float) -> Json:
    """Stops one process of each kind with SIGSTOP, and lets it go on after so many seconds, unless it was replaced.

    Returns for each: seconds until the status named it; whether it came back, or when it was replaced; restarts.
    """
    more = ("reanalyse.share=0.5", "reanalyse.count=1", "evaluation.every_minutes=0.1", "actors.count=2")
    found: Json = {}
    with trained(workdir, *more) as run:
        for kinds in GROUPS:
            ready = wait_for(run, partial(_has, run, kinds))
            if not (ready and goes_on(run)):
                raise SystemExit(f"the run does not train: see {run.console}")
            found |= _stop_for(run, kinds, seconds)
        trains = goes_on(run)
        return {"seconds": seconds, "processes": found, "trains at the end": trains, "exit code": run.stop()}


def _has(run: ChildRun, kinds: Sequence[str], _: RunStatus) -> bool:
    """Whether there is a process of each kind, and the evaluator, which starts last, has been built."""
    built = any("evaluator: built" in line for line in _console_lines(run))
    return built and all(run.processes().get(kind) for kind in kinds)


def _stop_for(run: ChildRun, kinds: Sequence[str], seconds: float) -> Json:
    victims = {kind: run.processes()[kind][0] for kind in kinds}
    found: dict[str, Json] = {kind: {"named_s": None, "replaced_s": None} for kind in kinds}
    restarts, began = _restarts(run), time.monotonic()
    for victim in victims.values():
        victim.send_signal(signal.SIGSTOP)
    said(f"stopped: {', '.join(kinds)}")
    while True:
        passed, status = time.monotonic() - began, run.status()
        for kind, victim in victims.items():
            named = status is not None and any(name.startswith(WORKERS.get(kind, kind)) for name in status.silent)
            if named and found[kind]["named_s"] is None:
                found[kind]["named_s"] = round(passed, 1)
                said(f"{kind} was named after {passed:.0f} s")
            if not lives(victim) and found[kind]["replaced_s"] is None:
                found[kind]["replaced_s"] = round(passed, 1)
                said(f"{kind} was replaced after {passed:.0f} s")
        if passed >= seconds or all(found[kind]["replaced_s"] for kind in kinds):
            break
        time.sleep(POLL_S)
    for victim in victims.values():
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGCONT)
    back = {kind for kind, victim in victims.items() if lives(victim)}
    trains = goes_on(run)
    for kind, victim in victims.items():
        found[kind] |= {"came_back": kind in back, "stays": kind in back and lives(victim), "trains": trains}
    said(f"goes on: {trains}")
    return found | {f"while {', '.join(kinds)} stood still": {"restarts": _restarts(run) - restarts}}


def _restarts(run: ChildRun) -> int:
    status = run.status()
    return status.restarts if status else 0


# SIGTERM


def stops(workdir: Path, repetitions: int, seed: int, moments: Sequence[str]) -> Json:
    """Sends SIGTERM to runs at random moments of each kind in turn.

    Returns for each: seconds until the driver and until all processes had ended, the exit code, the checkpoint.
    """
    rng, found = random.Random(seed), list[Json]()
    for number in range(STARTS * repetitions):
        moment = moments[len(found) % len(moments)]
        with prefixed((), workdir / f"stop-{number}") as run:
            _await_moment(run, moment, rng)
            if run.exit_code is None:
                found.append({"moment": moment} | _stopped(run))
                said(f"{len(found)} of {repetitions}: {found[-1]}")
            else:
                said(f"the run has ended by itself with {run.exit_code}: see {run.console}")
        shutil.rmtree(workdir / f"stop-{number}", ignore_errors=True)
        if len(found) == repetitions:
            break
    times = sorted(stop["driver_s"] for stop in found)
    rank = math.ceil(0.95 * len(times)) - 1
    return {
        "stops": found,
        "median_s": statistics.median(times),
        "p95_s": times[rank],
        "longest_s": times[-1],
        "complete": sum(stop["complete"] for stop in found),
        "left": sum(len(stop["left"]) for stop in found),
    }


def _await_moment(run: ChildRun, moment: str, rng: random.Random) -> None:
    """Waits for a moment, at random within what it is named for."""
    match moment:
        case "start":
            _watch(run, rng.uniform(0.2, 20.0))
        case "fill":
            wait_for(run, lambda status: status.phase in ("collecting", "training"))
            _watch(run, rng.uniform(0.0, 3.0))
        case "train":
            wait_for(run, lambda status: status.step > 0)
            _watch(run, rng.uniform(0.0, 15.0))
        case "save":
            wait_for(run, lambda status: status.checkpoint_step is not None)
            unfinished = run.workdir.checkpoints
            wait_for(run, lambda status: any(unfinished.glob(".unfinished*")), poll_s=0.02)
            time.sleep(rng.uniform(0.0, 0.2))
        case _:
            wait_for(run, lambda status: status.checkpoint_step is not None)
            for process in run.processes()[moment.split(maxsplit=1)[0]]:
                process.kill()
            _watch(run, rng.uniform(0.0, 20.0))


def _watch(run: ChildRun, seconds: float) -> None:
    """Waits, and looks for processes."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        run.processes()
        time.sleep(min(POLL_S, left))


def _stopped(run: ChildRun) -> Json:
    """Ends a run with SIGTERM."""
    before, status = newest_checkpoint(run.workdir), run.status()
    step, began = status.step if status else 0, time.monotonic()
    run.driver.send_signal(signal.SIGTERM)
    while run.exit_code is None and time.monotonic() - began < LONG_S:
        run.processes()
        time.sleep(0.05)
    driver_s, code = time.monotonic() - began, run.exit_code
    left = run.left(20.0)
    saved = newest_checkpoint(run.workdir)
    needed = step > 0 or before is not None
    complete = is_complete(saved) and saved.step >= (before.step if before else 1) if saved else not needed
    return {
        "driver_s": round(driver_s, 2),
        "all_s": round(time.monotonic() - began, 2),
        "exit_code": code,
        "step_before": step,
        "checkpoint": saved.step if saved else None,
        "complete": complete,
        "left": left,
    }


def is_complete(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has replay, and all files of learner and shards have their digests."""
    checkpoint.check()
    learner = checkpoint.folder / LEARNER_FOLDER
    files = unsealed((learner / LEARNER_MANIFEST).read_text(encoding="utf-8"))["files"]
    changed = [altered(learner / "arrays", files)]
    for shard in checkpoint.shards:
        files = unsealed((shard.folder / SHARD_MANIFEST).read_text(encoding="utf-8"))["files"]
        changed.append(altered(shard.folder / "reverb", files))
    return len(changed) > 1 and not any(changed)


# What a machine may run out of


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def full_disk(workdir: Path) -> Json:
    """Fills the file system of a run, waits a minute, frees it, fills it again, and ends the run."""
    with (
        mounted(workdir.with_name("disk"), f"size={FULL_MIB}m") as disk,
        trained(disk / "run", console=workdir.with_suffix(".log")) as run,
    ):
        before, driver = newest_checkpoint(run.workdir), psutil.Process(run.driver.pid)
        memory, restarts = [driver.memory_info().rss], _restarts(run)
        filler = _fill(disk)
        _watch(run, 90.0)
        alive = run.exit_code is None
        memory.append(driver.memory_info().rss if alive else 0)
        filler.unlink()
        newer = wait_for(run, lambda _: _step(run.workdir) > (before.step if before else 0))
        found: Json = {"lives": alive, "driver_mib": [round(size / 2**20) for size in memory]}
        found |= {"checkpoint after": newer, "restarts": _restarts(run) - restarts, "said": _named(run, "space")}
        # What is complete by now is what a run that ends on a full disk keeps.
        before = newest_checkpoint(run.workdir)
        _fill(disk)
        found["stop while full"] = _stopped(run)
        kept = newest_checkpoint(run.workdir)
        return found | {"keeps": bool(kept and before and kept.step >= before.step)}


def _step(workdir: Workdir) -> int:
    found = newest_checkpoint(workdir)
    return found.step if found else -1


def _fill(disk: Path) -> Path:
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))
    return filler


def _console_lines(run: ChildRun) -> list[str]:
    """The lines of the console that are not empty."""
    return [line for line in run.console.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]


def _named(run: ChildRun, *words: str) -> list[str]:
    """The last lines of the console with one of these words, without repetitions."""
    found = [line[:300] for line in _console_lines(run) if any(word in line.lower() for word in words)]
    return list(dict.fromkeys(found))[-4:]


def read_only(workdir: Path) -> Json:
    """A run in a directory that cannot be written, and one whose checkpoints cannot for a while."""
    with mounted(workdir.with_name("read-only"), "ro") as disk:
        command = [str(Path(sys.executable).with_name("podzero")), "train", "tic_tac_toe", "--workdir", f"{disk}/run"]
        began = time.monotonic()
        done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8", timeout=LONG_S)
        found: Json = {
            "at the start": [done.returncode, round(time.monotonic() - began, 1), done.stderr.strip()[-300:]]
        }
    with trained(workdir) as run:
        subprocess.run(["chattr", "+i", str(run.workdir.checkpoints)], check=True)
        try:
            fails = wait_for(run, lambda status: status.failed_saves > 0, 120.0)
        finally:
            subprocess.run(["chattr", "-i", str(run.workdir.checkpoints)], check=True)
        step = _step(run.workdir)
        newer = wait_for(run, lambda _: _step(run.workdir) > step)
        found |= {"counted": fails, "checkpoint after": newer, "said": _named(run, "permitted", "no checkpoint")}
        return found | {"stop": _stopped(run)}


def few_descriptors(workdir: Path) -> Json:
    """Runs that may open few files at once."""
    return {
        str(most): _outcome(["prlimit", f"--nofile={most}:{most}"], workdir.with_name(f"files-{most}"))
        for most in (64, 256, 1024)
    }


def little_memory(workdir: Path) -> Json:
    """Runs in a control group with little memory (version 1 of control groups)."""
    found: Json = {}
    for mib in (512, 1536, 2560):
        group = Path(f"/sys/fs/cgroup/memory/podzero-{os.getpid()}-{mib}")
        group.mkdir()
        try:
            (group / "memory.limit_in_bytes").write_text(str(mib * 2**20), encoding="utf-8")
            enter = ["sh", "-c", f'echo $$ > {group}/tasks && exec "$@"', "sh"]
            found[f"{mib} MiB"] = _outcome(enter, workdir.with_name(f"memory-{mib}"))
        finally:
            time.sleep(2.0)
            group.rmdir()
    return found


def _outcome(prefix: Sequence[str], workdir: Path) -> Json:
    """Whether a run trains under a limit, or what it says when it ends."""
    began = time.monotonic()
    with prefixed(prefix, workdir) as run:
        trains = wait_for(run, lambda status: status.checkpoint_step is not None and status.step > 40, 300.0)
        found: Json = {"trains": trains, "seconds": round(time.monotonic() - began, 1), "exit_code": run.exit_code}
        found |= {"restarts": _restarts(run), "said": _console_lines(run)[-4:]}
        return found | {"stop": _stopped(run) if run.exit_code is None else None, "left": run.left(20.0)}


def network(workdir: Path) -> Json:
    """A run in a network namespace of its own, all of whose messages are slowed down, and then cut off."""
    with trained(workdir, prefix=["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]) as run:
        found: Json = {}

        def inside(*command: str) -> None:
            subprocess.run(["nsenter", "-t", str(run.driver.pid), "-n", *command], check=True)

        for name, begin, end, seconds in (
            ("1 Mbit/s", ("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1mbit", "burst", "32kbit",
             "latency", "400ms"), ("tc", "qdisc", "del", "dev", "lo", "root"), 90.0),
            ("cut for 10 s", ("ip", "link", "set", "lo", "down"), ("ip", "link", "set", "lo", "up"), 10.0),
            ("cut for 90 s", ("ip", "link", "set", "lo", "down"), ("ip", "link", "set", "lo", "up"), 90.0),
        ):  # fmt: skip
            if run.exit_code is not None:
                break
            restarts, began = _restarts(run), time.monotonic()
            inside(*begin)
            _watch(run, seconds)
            ended = run.exit_code
            if ended is None:
                inside(*end)
            trains = ended is None and goes_on(run)
            found[name] = {
                "trains": trains,
                "seconds": round(time.monotonic() - began, 1),
                "said": _console_lines(run)[-4:],
            }
            found[name] |= {"restarts": _restarts(run) - restarts, "exit_code": run.exit_code}
            said(f"{name}: {found[name]}")
        return found | {"stop": _stopped(run) if run.exit_code is None else run.left(20.0)}


LIMITS: Mapping[str, Callable[[Path], Json]] = {
    "disk": full_disk,
    "read-only": read_only,
    "descriptors": few_descriptors,
    "memory": little_memory,
    "network": network,
}


if __name__ == "__main__":
    main()
