"""A real run of which an actor, the learner, the Reverb server, the parameter store and the driver are killed."""

import json

import pytest

from podzero.tools.bench import chaos
from podzero.tools.bench.chaos import bench_chaos

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


def test_a_run_survives_kills_of_every_part_and_its_ledger_closes(tmp_path):
    found = bench_chaos("tic_tac_toe", [], tmp_path / "run", seed=0, minutes=None, quick=True)
    told = json.dumps(found, indent=1)
    assert found["survived"], told
    assert {kind: one["count"] for kind, one in found["recovery"].items()} == chaos.QUICK
    assert found["step"] > found["step_at_last_fault"] > 0
    assert (found["ledger"], found["exit_code"], found["left_behind"]) == ("closes", 143, [])
