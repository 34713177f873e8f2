"""Whatever the files of a working directory hold, its readers give podzero's own errors, or what they can read."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import damaged, mutated
from rich.console import Console, Group
from run_files import evaluation, lines_of

from podzero.core.errors import PodzeroError
from podzero.evaluation.games import PlayedGame, game_to_tree, stored_games
from podzero.files.players import zoo_workdir
from podzero.files.storage import sealed
from podzero.files.workdir import Workdir, step_folder
from podzero.launch.runs import find_runs
from podzero.networks.snapshots import load_snapshot
from podzero.runtime.checkpoints import checkpoints, seen_checkpoints
from podzero.runtime.monitoring.ledger import Books
from podzero.runtime.monitoring.log_file import read_log
from podzero.runtime.monitoring.status import RunStatus, read_status, write_status
from podzero.runtime.monitoring.view import status_panel
from podzero.tools.report.comparison import compare
from podzero.tools.report.info import agent_info, agent_rows
from podzero.tools.report.page import make_report
from podzero.tools.report.record import RunReader, read_runs


def show(workdir):
    found = read_status(workdir)
    Console(file=io.StringIO()).print(Group(status_panel(found.status), found.summary))
    json.loads(found.to_json())


def report(workdir):
    make_report(RunReader(workdir).read())


def info(workdir):
    agent_rows(agent_info(str(workdir.root)))


READERS = {
    "experiment.yaml": (Workdir.experiment, show, info),
    "status.json": (show, report, info, lambda workdir: find_runs(workdir.root.parent)),
    "metrics.jsonl": (report, info, lambda workdir: compare(read_runs([str(workdir.root), "zoo:tic_tac_toe"]))),
    "hardware.json": (report, info),
    "inherited.json": (report, Workdir.inheritance),
    "changes.jsonl": (report, Workdir.changes),
    "train.log": (report, lambda workdir: list(read_log(workdir.log_file, lambda: False))),
    "games/000000020.jsonl": (lambda workdir: stored_games(workdir.root),),
    "checkpoints/000000060/run.json": (report, checkpoints, seen_checkpoints),
    "snapshots/000001016/manifest.json": (lambda workdir: load_snapshot(workdir.snapshots),),
    "snapshots/000001016/params.msgpack": (lambda workdir: load_snapshot(workdir.snapshots, 1016),),
}
"""Who reads each file."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The working directory of a run with each of these files."""
    workdir = Workdir(tmp_path_factory.mktemp("runs") / "whole")
    shutil.copytree(zoo_workdir("tic_tac_toe").root, workdir.root)
    numbers = {"hours": 3.0, "rating": 1.0, "mean_return": 1.0, "checkpoint_step": 60, "checkpoint_age_s": 2.0}
    named = {
        "failing": {"actor-0": "x"},
        "silent": {"actor-1": 3.0},
        "scores": {"random": 0.5},
        "paid_s": {"train": 3.0},
    }
    nested = {"shares": {"actor": {"search": 0.5}}, "ledger": {"samples": Books("samples", 1, 0.0, {}).ledger(3, 1.0)}}
    write_status(workdir, RunStatus("tic_tac_toe", "training", 600.0, step=60, games=600, **numbers, **named, **nested))
    ladder = {"results": [{"first": "@20", "second": "random", "wins": 4, "draws": 0, "losses": 0}], "ratings": {}}
    replay = {"step": 60, "folder": "replay", "shards": [[3, "aa"]]}
    checkpoint = step_folder(workdir.checkpoints, 60)
    workdir.games.mkdir()
    checkpoint.mkdir(parents=True)
    (checkpoint / "run.json").write_text(
        sealed({"counters": {"games": 3.0}, "ladder": ladder, "learner": "ab", "replay": replay})
    )
    workdir.metrics_file.write_bytes(b"\n".join([*lines_of(60), evaluation(21, 20, elo=3.0, keeps_value=0.5), b""]))
    nodes = [{"host": "here", "cpus": 2.0, "memory_gib": 8.0, "accelerators": {"H100": 1}}]
    workdir.hardware_file.write_text(json.dumps({"driver": {"processor": "a CPU", "podzero": "0.1"}, "nodes": nodes}))
    workdir.inherited_file.write_text(json.dumps({"lineage": "a extends b", "settings": {"seed": "b"}}))
    change = {"t": 1.7e9, "step": 3, "setting": "seed", "old": 1, "new": 2}
    workdir.changes_file.write_text(json.dumps(change) + "\n")
    game = PlayedGame("@20", "random", (4, 0, 2, 1, 6), 1.0, 0, "5fec", "over")
    (workdir.games / "000000020.jsonl").write_text(json.dumps(game_to_tree(game)) + "\n")
    workdir.log_file.write_text("2026-01-01 10:00:00,001 WARNING careful\n")
    return workdir


def content_of(draw, good):
    """Damaged bytes, or a mutated object, with its own digest if it had one."""
    lines = good.splitlines()
    if not good.startswith(b"{") or draw(st.integers(0, 3)) == 0:
        return draw(damaged(good))
    tree = json.loads(good if good.startswith(b"{\n") else lines[0])
    own = tree.pop("sha256", None)
    found = draw(mutated(tree))
    text = json.dumps(found) if own is None else sealed(found)
    return text.encode() if good.startswith(b"{\n") else b"\n".join([text.encode(), *lines[1:], b""])


def check(run, data):
    for name, readers in READERS.items():
        whole = (run.root / name).read_bytes()
        try:
            (run.root / name).write_bytes(content_of(data.draw, whole))
            for read in readers:
                with suppress(PodzeroError):
                    read(run)
        finally:
            (run.root / name).write_bytes(whole)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_files_end_in_no_other_error(run, data):
    check(run, data)


@pytest.mark.slow
@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_thousands_of_damaged_files_do_not(run, data):
    check(run, data)
