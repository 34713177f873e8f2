"""`podzero compile` with the real TPU compiler, in processes of their own: it must be set up before jax is used."""

import json
import math
import subprocess
import sys

import pytest

from podzero.core.chips import find_slice
from podzero.core.errors import ConfigError
from podzero.tools.compile import programs
from podzero.tools.compile.compiled import TAKES, bytes_that_do_not_fit
from podzero.tools.compile.programs import DEPTH

pytestmark = pytest.mark.timeout(600)

SIMULATIONS = 8
EVALUATIONS = SIMULATIONS + 1
SMALL = ("network.channels=8", "network.blocks=1", "learner.steps_per_dispatch=8")


def compiled(*arguments):
    """The object that `podzero compile ... --json` prints, and the exit code; other work may slow it down a lot."""
    script = "import sys; sys.argv = ['podzero', 'compile', *sys.argv[1:]]; from podzero.launch.cli import main; main()"
    command = [sys.executable, "-c", script, *arguments, "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=580)
    assert done.stdout.count("\n") == 1, done.stderr
    return json.loads(done.stdout), done.returncode


@pytest.fixture(scope="module")
def report():
    """With a setting for CPUs, which a TPU ignores."""
    small = (*SMALL, f"search.simulations={SIMULATIONS}")
    settings = (*small, "learner.cpu_convolutions=openvino")
    found, code = compiled("tic_tac_toe", *settings, "actors.moves_per_dispatch=3", "--topology", "v5e:2x2")
    assert code == 0
    return {program["name"]: program for program in found["programs"]} | {"self-play": found}


@pytest.fixture(scope="module")
def playing(report):
    return report.pop("self-play")


def test_self_play_on_a_chip_is_compared_with_the_bare_network(report, playing):
    """Evaluations are those of 3 moves of 128 games, each of the root and of the simulations."""
    device, evaluation = report["device"], report["evaluation"]
    seconds = device["estimated_seconds"] + TAKES * report["take"]["estimated_seconds"]
    evaluations = 3 * 128 * EVALUATIONS / seconds
    assert playing["evaluations_per_s"] == pytest.approx(evaluations)
    assert playing["moves_per_s"] == pytest.approx(evaluations / EVALUATIONS)
    assert playing["ratio"] == pytest.approx(evaluations / (128 / evaluation["estimated_seconds"]))
    assert 0 < playing["ratio"] < 1
    assert playing["depth"] == DEPTH["gumbel"]
    assert playing["bytes_per_simulation"] == pytest.approx(device["traffic"]["hbm"] / (3 * 128 * SIMULATIONS))
    assert device["collectives"] == []


def test_the_samples_that_leave_a_chip_are_counted_in_bytes_for_its_host(report, playing):
    take = report["take"]
    assert take["batch"] == 3 * 128
    assert playing["bytes_per_move"] == take["to_hosts"] / take["batch"] > 0
    assert playing["host_bytes_per_s"] == pytest.approx(4 * playing["moves_per_s"] * playing["bytes_per_move"])
    learner = report["learner"]
    assert learner["from_hosts"] > learner["trip_count"] * learner["batch"]
    assert learner["to_hosts"] == report["evaluation"]["to_hosts"] == report["device"]["from_hosts"] == 0


def test_what_the_compiler_does_not_estimate_is_named(report):
    """Gathers are never estimated, and a network copies weights to faster memory while it computes."""
    assert report["device"]["without_estimate"]["gather"] > 0
    assert set(report["evaluation"]["without_estimate"]) == {"copy"}


def test_what_the_learner_asks_for_follows_from_the_rates_of_the_programs(report, playing):
    """A step on 512 samples, each learned from four times; a move is as many evaluations as in self-play."""
    asked, learner, server = playing["feeding"], report["learner"], report["server"]
    seconds = learner["estimated_seconds"] + learner["seconds"]["links"]
    assert asked["moves_per_s"] == pytest.approx(learner["trip_count"] * learner["batch"] / seconds / 4)
    assert asked["evaluations_per_s"] == pytest.approx(EVALUATIONS * asked["moves_per_s"])
    assert asked["device_chips"] == math.ceil(asked["evaluations_per_s"] / playing["evaluations_per_s"])
    served = server["batch"] / server["estimated_seconds"]
    assert asked["server_chips"] == math.ceil(asked["evaluations_per_s"] / served)
    assert asked["server_cores"] == math.ceil(asked["moves_per_s"] / asked["core_moves_per_s"])


def test_all_programs_of_a_slice_are_judged(report, playing):
    assert list(report) == ["learner", "evaluation", "selfplay", "device", "take", "server"]
    for program in report.values():
        assert program["fits"]
        assert 0 < program["bytes_per_chip"] < program["hbm_per_chip"] == 16 * 2**30
        assert (program["flops_per_chip"] > 0) == (program["share_of_peak"] > 0) == (program["name"] != "take")
        assert program["traffic"]["hbm"] > 0
        assert program["share_of_peak"] <= 1
        assert program["host_transfers"] == 0


def test_the_learner_communicates_gradients_and_nothing_else(report):
    """Data parallel: one reduction of at most the parameters' bytes a step, and the sums of the figures."""
    learner = report["learner"]
    assert learner["unknown_loops"] == 0
    assert {(c["kind"], c["group"]) for c in learner["collectives"]} == {("all-reduce", 4)}
    assert (learner["trip_count"], learner["parameter_bytes"]) == (8, 4 * 7_602)
    (reduction,) = learner["collectives"]
    assert reduction["bytes"] / learner["trip_count"] <= 1.1 * learner["parameter_bytes"]


def test_what_one_chip_runs_alone_does_not_communicate(report):
    assert report["evaluation"]["collectives"] == report["selfplay"]["collectives"] == []
    assert report["selfplay"]["flops_per_chip"] > SIMULATIONS * report["evaluation"]["flops_per_chip"]


def test_the_compiler_estimates_more_than_the_peaks_allow(report):
    for program in report.values():
        assert program["estimated_seconds"] > program["seconds"]["compute"]


def test_new_games_are_counted_as_often_as_games_end(report):
    """The longest game of tic-tac-toe has nine plies."""
    assert report["device"]["plies"] == report["selfplay"]["plies"] == 4.5
    assert report["device"]["unknown_loops"] == 0


@pytest.mark.slow
def test_prioritized_replay_needs_one_more_number_from_each_step_in_one_reduction(report):
    """The largest importance weight of each of the 8 batches of a dispatch."""
    prioritized = ("replay.sampler=prioritized", "replay.samples_per_item=1")
    found, code = compiled("tic_tac_toe", *SMALL, *prioritized, "--topology", "v5e:2x2", "--program", "learner")
    assert code == 0
    (uniform,), (weighted,) = report["learner"]["collectives"], found["programs"][0]["collectives"]
    assert (weighted["kind"], weighted["group"]) == ("all-reduce", 4)
    assert weighted["times"] == uniform["times"] + 1
    assert weighted["bytes"] == uniform["bytes"] + 8 * 4


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v4-16", "v5p-16", "v6e-16", "tpu7x-16"])
def test_every_generation_compiles_a_run(topology):
    found, code = compiled("tic_tac_toe", "network.channels=8", "network.blocks=1", "--topology", topology)
    assert code == 0
    assert all(program["fits"] and program["estimated_cycles"] > 0 for program in found["programs"])
    assert {c["kind"] for c in found["programs"][0]["collectives"]} == {"all-reduce"}


@pytest.mark.slow
def test_on_a_whole_pod_gradients_are_all_that_is_sent_and_a_chip_keeps_its_speed():
    """The batch grows with the chips; 2 all-reduces a step, of 52% of the parameters' bytes."""
    found, code = compiled("connect_four", "--scaling", "v5e-4,v5e-256", "--per-chip", "512")
    assert code == 0
    for where in found["slices"]:
        assert {(c["kind"], c["group"]) for c in where["collectives"]} == {("all-reduce", where["chips"])}
        assert sum(c["bytes"] for c in where["collectives"]) <= 1.1 * found["parameter_bytes"]
    small, large = found["slices"]
    assert large["chips"] == 256
    without_hops = [where["step"]["computing"] + where["step"]["links"] for where in (small, large)]
    assert without_hops[0] / without_hops[1] >= 0.95
    assert 0.85 <= large["efficiency"] < without_hops[0] / without_hops[1]


@pytest.mark.slow
@pytest.mark.parametrize("slices", [2, 4])
def test_slices_exchange_sums_of_gradients_alone_each_chip_its_part(slices):
    """Parameters are sharded within a slice, so that each of its four chips sends a quarter, padded to whole tiles."""
    more = (f"cluster.slices={slices}", f"replay.shards={slices}", "replay.min_size=8192", "learner.mesh.fsdp=true")
    small = ("network.channels=64", "network.blocks=2", "learner.steps_per_dispatch=4", "--program", "learner")
    found, code = compiled("tic_tac_toe", "cluster.slice=v5e-4", *more, *small)
    assert code == 0
    assert (found["slices"], found["chips"], found["hosts"]) == (slices, 4 * slices, slices)
    (learner,) = found["programs"]
    between = [row for row in learner["collectives"] if row["kind"].endswith(" between slices")]
    assert [(row["kind"], row["group"]) for row in between] == [("all-reduce between slices", slices)]
    assert {row["group"] for row in learner["collectives"] if row not in between} == {4}
    assert learner["host_transfers"] == 0
    each_step = between[0]["bytes"] / learner["trip_count"]
    assert learner["parameter_bytes"] / 2 / 4 <= each_step <= 2 * learner["parameter_bytes"] / 4


@pytest.mark.slow
def test_a_program_that_does_not_fit_says_what_it_needs_and_what_would_help():
    large = ("learner.batch_size=262144", "replay.min_size=400000", "replay.capacity=500000")
    found, code = compiled("go_9x9", *large, "--topology", "v5e-1", "--program", "learner")
    learner = found["programs"][0]
    assert code == 1
    assert not learner["fits"]
    assert learner["bytes_per_chip"] > learner["hbm_per_chip"]
    assert "network.remat=true" in learner["advice"]
    assert "fsdp" not in learner["advice"]  # there is only one chip


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_billion_parameters_fit_a_slice_of_16_by_sharding_alone():
    network = "network={name: transformer, width: 4096, layers: 5, heads: 32}"
    asked = ("--topology", "v5e-16", "--program", "learner")
    whole, refused = compiled("go_9x9", network, *asked)
    split, fits = compiled("go_9x9", network, "learner.mesh.fsdp=true", *asked)
    assert (refused, fits) == (1, 0)
    assert split["programs"][0]["parameter_bytes"] >= 4 * 1e9
    assert not whole["programs"][0]["fits"]
    assert "learner.mesh.fsdp=true" in whole["programs"][0]["advice"]
    assert split["programs"][0]["fits"]


@pytest.mark.slow
def test_two_compilers_run_side_by_side():
    script = "from podzero.launch.cli import main; main()"
    command = [sys.executable, "-c", script, "compile", "tic_tac_toe", "--program", "evaluation", "--json"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate(timeout=200)[0].count(b"\n") for process in both] == [1, 1]


def test_the_compiler_s_refusal_is_understood():
    message = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 30.25G of 15.75G hbm. Exceeded by 14.5G."
    assert bytes_that_do_not_fit(message) == 30.25 * 2**30
    message = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (48.39G) exceeds available HBM (15.75G). HLO module: jit_scan."
    )
    assert bytes_that_do_not_fit(message) == 48.39 * 2**30
    assert bytes_that_do_not_fit("INTERNAL: something else") is None


def test_without_libtpu_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="uv sync --inexact --extra tpu"):
        programs.devices_of(find_slice("v5e-16"))


def test_the_compiler_knows_every_slice_by_its_size():
    script = (
        "from podzero.core.chips import slices\n"
        "from podzero.tools.compile.programs import devices_of\n"
        "for known in slices():\n"
        "    assert len(devices_of(known)) == known.devices, known.topology\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=200)
