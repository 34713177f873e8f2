"""podzero where Reverb does not exist, as on macOS: agents play and are judged, and training is refused by name."""

import json
import subprocess
import sys

DARWIN = """
import os, platform, sys
for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "pidfd_open"):
    delattr(os, name)
platform.system, platform.machine = lambda: "Darwin", lambda: "arm64"
from podzero.launch.main import main
main()
"""


def on_darwin(tmp_path, *arguments, said=""):
    return subprocess.run(
        [sys.executable, "-c", DARWIN, *arguments],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        text=True,
        timeout=240,
        input=said,
    )


def test_agents_play_and_are_judged(tmp_path):
    judged = on_darwin(tmp_path, "evaluate", "zoo:tic_tac_toe", "--games", "2", "--simulations", "4", "--json")
    assert judged.returncode == 0, judged.stderr
    assert json.loads(judged.stdout)["player"].startswith("zoo:tic_tac_toe")
    searched = on_darwin(tmp_path, "analyze", "zoo:tic_tac_toe", said='{"moves": ["b2"]}\n')
    assert searched.returncode == 0, searched.stderr
    assert "value" in json.loads(searched.stdout)


def test_training_says_that_replay_needs_linux(tmp_path):
    refused = on_darwin(tmp_path, "train", "tic_tac_toe")
    assert refused.returncode == 2
    assert "Linux on x86-64 alone, and this machine is Darwin on arm64" in refused.stderr
    assert not (tmp_path / "runs" / "tic_tac_toe" / "experiment.yaml").exists()


def test_the_doctor_says_so_too(tmp_path):
    found = on_darwin(tmp_path, "doctor", "--json")
    assert found.returncode == 1
    (replay,) = [check for check in json.loads(found.stdout)["checks"] if check["name"] == "replay server"]
    assert "Darwin on arm64" in json.dumps(replay)
