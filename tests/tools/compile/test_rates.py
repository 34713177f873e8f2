"""Scaling efficiency by arithmetic that was done by hand."""

import pytest

from podzero.config import load
from podzero.core.chips import find_slice
from podzero.core.errors import ConfigError
from podzero.tools.compile import command
from podzero.tools.compile.compiled import CompiledProgram, scaling_of, step_time
from podzero.tools.compile.cost import Collective, Cost
from podzero.tools.compile.programs import Program


def learner(slice_name="v5e-256", collectives=(), cycles=3e6, trip_count=2):
    """A dispatch of 2 steps: 3 million cycles, 197 GFLOP and 1.638 GB over v5e's 1.5 GHz, 197 TFLOP/s and 819 GB/s."""
    cost = Cost(flops=197e9, cycles=cycles, collectives=list(collectives))
    cost.traffic[0] = int(1.638e9)
    program = Program("learner", "2 steps", "a smaller network", None, 512, trip_count, 400_000)
    return CompiledProgram(program, find_slice(slice_name), 1e6, cost)


def test_a_step_is_taken_apart():
    # Two all-reduces in the dispatch of two steps. A ring of 256 sends 2 * 255/256 of the bytes, at 200 GB/s one way;
    # on 16 x 16, whose sides are rings, each direction of the sum takes 8 + 8 hops.
    found = step_time(learner(collectives=[Collective("all-reduce", 256, 512_000, 2)]))
    assert found.computing == pytest.approx(1e-3)
    assert found.links == pytest.approx(2 * 255 / 256 * 512_000 / 200e9)
    assert found.hops == pytest.approx(32e-6)


def test_a_gather_goes_one_way_and_a_single_chip_nowhere():
    gather = [Collective("all-gather", 16, 160_000, 2)]
    assert step_time(learner("v5e-16", gather)).hops == pytest.approx(6e-6)
    assert step_time(learner("v5e-16", gather)).links == pytest.approx(15 / 16 * 160_000 / 200e9)
    alone = step_time(learner("v5e-1", [Collective("all-reduce", 1, 160_000, 2)]))
    assert (alone.links, alone.hops) == (0, 0)


def test_what_does_not_fit_is_not_compared():
    with pytest.raises(ConfigError, match=r"2 steps .*v5e-256; .*smaller network"):
        step_time(learner()._replace(cost=None))


@pytest.mark.parametrize(("per_chip", "sizes"), [(None, [1024, 65_536]), (512, [2048, 131_072])])
def test_the_batch_grows_with_the_chips(monkeypatch, per_chip, sizes):
    """Without `per_chip`, from the experiment's own on the first slice."""
    compiled = []
    monkeypatch.setattr(command, "devices_of", lambda where, slices: [])
    monkeypatch.setattr(command, "programs_of", lambda experiment, devices, names: [experiment])
    monkeypatch.setattr(command, "compile_program", lambda experiment, where: compiled.append(experiment))
    monkeypatch.setattr(command, "scaling_of", lambda programs, each: {"per_chip": each})
    experiment = load("connect_four", ["learner.batch_size=1024"])
    found = command.compile_for_slices(experiment, ["v5e-4", "v5e-256"], per_chip)
    assert found.scaling == {"per_chip": per_chip or 256}
    assert [grown.learner.batch_size for grown in compiled] == sizes
    assert all(grown.network == experiment.network for grown in compiled)


def test_a_report_holds_each_slice_against_the_first():
    reduction = Collective("all-reduce", 256, 512_000, 2)
    found = scaling_of([learner("v5e-4", cycles=2.7e6), learner(collectives=[reduction])], per_chip=512)
    first, second = found["slices"]
    assert (found["per_chip"], found["parameter_bytes"]) == (512, 400_000)
    assert first["efficiency"] == 1.0
    assert second["efficiency"] == pytest.approx(900e-6 / (1e-3 + 5.1e-6 + 32e-6))
    assert second["collectives"] == [
        {"kind": "all-reduce", "group": 256, "times": 1, "bytes": 512_000, "sent": 2 * 255 / 256 * 512_000}
    ]
