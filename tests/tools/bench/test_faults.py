"""Schedules of faults, and how the stages soak and chaos see that a run has recovered."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from podzero.files.workdir import Workdir
from podzero.runtime.monitoring.status import RunStatus
from podzero.tools.bench import chaos, cli, faults
from podzero.tools.bench.child_run import ChildRun, Signals, lives, machine_in_words
from podzero.tools.bench.faults import Disturber, Fault, schedule, summary
from podzero.tools.bench.measuring import BenchError


def times_of(found):
    return [(fault.at_s, fault.kind, fault.stop_s) for fault in found]


def test_a_schedule_follows_from_its_seed_and_spreads_the_faults_of_a_kind():
    made, again, other = (schedule(chaos.KILLS, chaos.STOPS, 7200.0, seed) for seed in (3, 3, 4))
    assert times_of(made) == times_of(again) != times_of(other)
    assert [fault.at_s for fault in made] == sorted(fault.at_s for fault in made)
    learners = [fault.at_s for fault in made if fault.kind == "learner" and not fault.stop_s]
    assert [int(at_s // 360) for at_s in learners] == list(range(20))
    stops = {fault.kind: fault.stop_s for fault in made if fault.stop_s}
    assert stops.keys() == chaos.STOPS.keys()
    assert all(stops[kind] <= longest for kind, (_, longest) in chaos.STOPS.items())


def test_the_schedule_kills_as_many_as_the_page_promises():
    assert (chaos.KILLS["actor"], chaos.KILLS["replay"], chaos.KILLS["learner"]) == (100, 20, 20)
    assert min(chaos.KILLS.values()) > 0
    assert chaos.QUICK.keys() < chaos.KILLS.keys()


def recovered(kind, seconds):
    return Fault(0.0, kind, process=object(), recovered_s=seconds)


def test_recovery_is_told_by_kind_with_median_and_percentile():
    found = summary([*(recovered("actor", float(s)) for s in range(1, 21)), recovered("learner", None)])
    assert found["actor"] == {"count": 20, "survived": 20, "median_s": 10.5, "p95_s": 19.0, "longest_s": 20.0}
    assert found["learner"] == {"count": 1, "survived": 0}


@pytest.fixture
def child():
    """A process that sleeps."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield psutil.Process(process.pid)
        process.kill()


def wait_for(state):
    deadline = time.monotonic() + 30
    while not state():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Run:
    """A run of one process of each kind that it is given, in a working directory."""

    def __init__(self, workdir, processes):
        self.workdir, self.found, self.exit_code, self.step = workdir, processes, None, 5
        self.driver = SimpleNamespace(pid=1)

    def processes(self):
        return {kind: [process] for kind, process in self.found.items() if lives(process)}

    def status(self):
        return RunStatus("x", "training", 1.0, step=self.step)

    def logs(self, text, after_s=1):
        with self.workdir.log_file.open("a") as file:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() + after_s))
            file.write(f"{stamp},000 INFO {text}\n")

    def reports(self, worker, after_s=0.0, **metrics):
        line = {"t": time.time() + after_s, "step": self.step, "worker": worker, "metrics": metrics}
        with self.workdir.metrics_file.open("a") as file:
            file.write(json.dumps(line) + "\n")


@pytest.fixture
def disturbed(tmp_path, tiny, child):
    """A run, a function that lets faults happen to it, and its process."""
    run, made = Run(Workdir(tmp_path), {}), []

    def disturb(*faults):
        made.append(Disturber(run, tiny(), faults, seed=0))
        run.reports("learner", **{"learner/loss": 1.0})
        made[-1].advance()
        return made[-1]

    yield run, disturb, child
    for disturber in made:
        disturber.close()


def test_a_killed_worker_has_recovered_once_a_new_one_is_built_and_all_of_its_kind_report_work(disturbed):
    run, disturb, child = disturbed
    run.found = {"actor": child}
    run.logs("actor-0: built in 3.2 s", after_s=-9)
    run.logs("actor-1: built in 3.2 s", after_s=-9)
    disturber = disturb(fault := Fault(0.0, "actor"))
    disturber.advance()
    child.wait(10)
    run.reports("actor", **{"count/moves": 3.0})  # of the other actor
    disturber.advance()
    assert disturber.waiting == [fault]
    run.logs("actor-0: built in 3.2 s")
    run.reports("actor", 2.0, **{"count/moves": 3.0})
    disturber.advance()
    assert not disturber.over
    run.reports("actor", 3.0, **{"count/moves": 4.0, "selfplay/version_min": 8.0})
    disturber.advance()
    assert disturber.over
    assert fault.survived
    assert fault.worker == "actor-0"
    assert fault.recovered_s > 2.0


def test_a_stopped_process_goes_on_after_its_time_and_is_to_be_left_alone(disturbed, monkeypatch):
    run, disturb, child = disturbed
    run.found = {"learner": child}
    disturber = disturb(fault := Fault(0.0, "learner", stop_s=30.0))
    disturber.advance()
    wait_for(lambda: child.status() == psutil.STATUS_STOPPED)
    now = time.time()
    monkeypatch.setattr(faults.time, "time", lambda: now + 31.0)
    disturber.advance()
    wait_for(lambda: child.status() != psutil.STATUS_STOPPED)
    run.reports("learner", 1.0, **{"learner/loss": 1.0})
    disturber.advance()
    assert fault.survived
    assert fault.recovered_s == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize(("driver", "survived"), [(1, False), (2, True)])
def test_what_is_replaced_although_it_came_back_has_not_survived_unless_its_driver_ended(
    disturbed, monkeypatch, driver, survived
):
    run, disturb, child = disturbed
    run.found = {"learner": child}
    disturber = disturb(fault := Fault(0.0, "learner", stop_s=30.0))
    disturber.advance()
    child.kill()
    child.wait(10)
    now = time.time()
    monkeypatch.setattr(faults.time, "time", lambda: now + 31.0)
    run.driver.pid = driver
    run.reports("learner", 1.0, **{"learner/loss": 1.0})
    disturber.advance()
    disturber.advance()
    assert fault.recovered_s is not None
    assert fault.survived == survived


def test_two_faults_of_one_kind_do_not_overlap_and_a_shard_is_of_one_kind_with_its_server(disturbed):
    run, disturb, child = disturbed
    run.found = {"replay": child, "server": child}
    disturber = disturb(Fault(0.0, "replay"), Fault(0.0, "server"), Fault(0.0, "replay"))
    disturber.advance()
    assert (len(disturber.waiting), len(disturber.undone)) == (1, 2)


def test_signals_survive_that_the_metrics_of_lost_steps_are_moved_away(tmp_path, tiny):
    run = Run(Workdir(tmp_path), {})
    signals = Signals(tiny(), run.workdir)
    run.reports("learner", **{"learner/loss": 1.0})
    run.reports("actor", 0.1, **{"selfplay/version": 6.0, "selfplay/version_max": 7.0, "count/moves": 1.0})
    signals.read()
    kept = run.workdir.metrics_file.read_text().splitlines()[0]
    (tmp_path / "new").write_text(kept + "\n")
    (tmp_path / "new").rename(run.workdir.metrics_file)
    run.reports("learner", 1.0, **{"learner/loss": 1.0})
    signals.read()
    assert len(signals.worked["learner"]) == 2
    assert [version for _, version in signals.versions] == [7.0]


def test_a_directory_that_exists_is_refused(tmp_path):
    with pytest.raises(BenchError, match="--workdir"):
        ChildRun("tic_tac_toe", [], tmp_path)


def test_sigterm_ends_the_run_of_a_bench_too(tmp_path):
    code = (
        "import time; from contextlib import closing; from pathlib import Path\n"
        "from podzero.tools.bench.child_run import ChildRun\n"
        f"with closing(ChildRun('tic_tac_toe', [], Path({str(tmp_path / 'run')!r}))) as run:\n"
        "    run.command = ['sleep', '600']\n"
        "    run.start()\n"
        "    print(run.driver.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as bench:
        driver = psutil.Process(int(bench.stdout.readline()))
        bench.terminate()
        assert bench.wait(60) != 0
    assert not lives(driver)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("learner", "--minutes", "1"), "--minutes"),
        (("chaos", "--kill-every", "1"), "--kill-every"),
        (("soak", "--quick"), "--quick"),
    ],
)
def test_options_of_other_stages_are_refused(command, arguments, named):
    code, _, error = command("bench", *arguments)
    assert code == 2
    assert named in error


def test_a_record_for_the_results_names_command_hardware_and_note_but_no_folder(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["podzero", "bench", "soak", "--workdir", "/x", "--note", "a b", "--json"])
    found = cli._record({"goodput": 1.0}, "a b")
    assert (found["command"], found["note"]) == ("podzero bench soak --json", "a b")
    assert found["result"] == {"goodput": 1.0}
    assert found["hardware"]
    assert found["date"]


@pytest.mark.parametrize(
    ("family", "model", "name", "generation"),
    [
        (25, 1, "AMD EPYC", " (Zen 3)"),
        (25, 17, "AMD EPYC", " (Zen 4)"),
        (26, 2, "AMD EPYC", " (Zen 5)"),
        (25, 17, "AMD EPYC (Zen 4)", ""),
        (6, 143, "Intel Xeon", ""),
    ],
)
def test_results_name_the_generation_of_a_processor(tmp_path, family, model, name, generation):
    file = tmp_path / "cpuinfo"
    file.write_text(f"cpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: {name}\n")
    assert machine_in_words(file) == f"{os.cpu_count()} cores of an {name}{generation}, no accelerator"
    assert " an unknown processor, " in machine_in_words(tmp_path / "missing")
