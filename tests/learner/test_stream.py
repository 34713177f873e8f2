"""A learner that is killed halfway and restarts from its checkpoint learns, bit by bit, what it would have learned."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("learn_from_stream.py")


@pytest.fixture(params=[1, 8])
def start(request):
    """Starts a learner on one device or on eight emulated ones."""
    flags = f"--xla_force_host_platform_device_count={request.param} {os.environ.get('XLA_FLAGS', '')}"

    def run(**arguments):
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"XLA_FLAGS": flags},
        )

    return run, request.param


def end(process):
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_2000_steps_straight_equal_1000_a_kill_and_1000(start, make_dispatch, tmp_path):
    run, devices = start
    stream, folder = str(tmp_path / "stream.npy"), tmp_path / "checkpoint"
    np.save(stream, np.stack([make_dispatch(4, 16, seed).rows for seed in range(500)]))
    straight = end(run(stream=stream, steps=2000))
    killed = run(stream=stream, steps=2000, save_at=1000, folder=str(folder))
    assert json.loads(killed.stdout.readline()) == {"saved": 1000}
    killed.kill()
    assert killed.wait(60) < 0
    resumed = end(run(stream=stream, first=1000, steps=2000, restore_from=str(folder)))
    assert straight["step"] == resumed["step"] == 2000
    assert straight["devices"] == devices
    assert {name.split(".")[0] for name in straight["leaves"]} >= {"params", "ema", "opt_state", "key", "step"}
    assert resumed["leaves"] == straight["leaves"]
