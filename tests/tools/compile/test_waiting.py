"""The share of its time that a learner waits, in numbers computed by hand, and the stored figures behind it."""

import pytest

from podzero.config import FOR_SLICES, builtin_configs, load
from podzero.core.chips import find_slice
from podzero.launch import cli
from podzero.tools.compile import waiting
from podzero.tools.compile.programs import of_one_device

V5E_16 = ("cluster.slice=v5e-16", "replay.shards=4")
FOR_A_SLICE = [name for name in builtin_configs() if name.startswith(FOR_SLICES)]


def rates(name, *overrides):
    return waiting.rates(load(name, overrides))


def test_chips_that_play_in_turns_with_training_have_no_time_to_wait():
    """300 moves/s asked for, 100 made: a quarter of the time trains, and 75 moves/s are made and learned from."""
    found = waiting.Rates(asked=300.0, made=100.0, in_turns=True, source="", absolute=True)
    assert found.training == 0.25
    assert found.waiting == 0.0
    assert found.moves_per_s == 75.0


def test_chips_that_only_train_wait_for_what_is_not_made():
    found = waiting.Rates(asked=300.0, made=60.0, in_turns=False, source="", absolute=True)
    assert found.waiting == pytest.approx(0.8)
    assert found.moves_per_s == pytest.approx(60.0)
    assert waiting.Rates(300.0, 600.0, False, "", True).waiting == 0.0


def test_a_hundred_cores_keep_a_slice_of_sixteen_chips_waiting():
    """16 chips of 197 TFLOP/s train at a fifth on samples of three evaluations, each four times; a core does 65 GFLOP/s
    in moves of 65 evaluations: 100 of 52,533."""
    found = rates("go_9x9", *V5E_16, "actors.count=100")
    assert found.made / found.asked == pytest.approx((100 * 65e9 / 65) / (0.2 * 16 * 197e12 / 3 / 4))
    assert found.waiting > 0.998
    assert not found.absolute
    assert "100 CPU cores" in found.source


def test_two_slices_ask_for_twice_the_moves_and_have_no_stored_figures():
    once, two = rates("go_9x9", *V5E_16), rates("go_9x9", V5E_16[0], "cluster.slices=2", "replay.shards=8")
    assert two.asked == pytest.approx(2 * once.asked)
    name, eight = "slices/go_9x9_v5e_16", "replay.shards=8"
    assert rates(name).absolute
    assert not rates(name, eight, "cluster.slices=2").absolute


def test_twice_the_cores_make_twice_the_moves_and_reuse_halves_what_is_asked_for():
    once = rates("go_9x9", *V5E_16, "actors.count=100")
    assert rates("go_9x9", *V5E_16, "actors.count=100", "actors.cpus=2").made == pytest.approx(2 * once.made)
    assert rates("go_9x9", *V5E_16, "replay.samples_per_insert=8").asked == pytest.approx(once.asked / 2)


def test_chips_of_other_hosts_and_of_servers_count_as_chips():
    played = rates("go_9x9", *V5E_16, "actors.inference=device", "actors.count=2", "actors.resources={TPU: 4}")
    served = rates("go_9x9", *V5E_16, "actors.inference=server", "server.count=2", "server.resources={TPU: 4}")
    assert played.made == served.made == pytest.approx(0.3 * 8 * 197e12 / 65)
    assert not played.in_turns
    beside = rates("go_9x9", *V5E_16, "actors.inference=server", "server.beside_learner=true")
    assert beside.in_turns
    assert beside.made == pytest.approx(2 * played.made)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("go_9x9", ()),  # no slice
        ("cartpole", V5E_16),  # learns a model
        ("go_9x9", (*V5E_16, "actors.inference=device", "actors.resources={GPU: 1}")),
    ],
)
def test_what_is_not_known_is_not_guessed(name, overrides):
    assert rates(name, *overrides) is None


def test_the_estimate_of_a_slice_that_plays_is_near_the_compilers_figures():
    compiled = rates("slices/go_9x9_v5e_16")
    estimated = rates("slices/go_9x9_v5e_16", "actors.games=512")
    assert (compiled.absolute, estimated.absolute) == (True, False)
    assert 0.5 < estimated.training / compiled.training < 2.0


@pytest.mark.parametrize("name", FOR_A_SLICE)
def test_every_experiment_for_slices_has_stored_figures_and_keeps_its_chips_busy(name):
    found = rates(name)
    assert found.absolute, "run benchmarks/compile_table.py"
    assert found.waiting == 0.0
    assert 0 < found.moves_per_s < min(found.asked, found.made)


def test_stored_figures_hold_for_another_replay_ratio_and_for_no_other_program():
    known = waiting.known_rates(load("slices/go_9x9_v5e_16"))
    assert waiting.known_rates(load("slices/go_9x9_v5e_16", ["replay.samples_per_insert=8", "name=again"])) == known
    for change in ("search.simulations=128", "learner.batch_size=2048", "actors.games=2048", "network.channels=64"):
        assert waiting.known_rates(load("slices/go_9x9_v5e_16", [change])) is None


@pytest.mark.parametrize(
    ("name", "overrides", "where", "games"),
    [
        ("slices/go_9x9_v5e_16", (), "v5e-16", 256),  # 1,024 of a host of four chips
        ("slices/go_9x9_v5e_8", (), "v5e-8", 256),  # 2,048 of a host of eight chips
        ("go_9x9", ("actors.inference=device", "actors.games=256"), "v5e-1", 256),
        ("go_9x9", ("actors.inference=device", "actors.resources={TPU: 2}"), "v5e-16", 32),
        ("go_9x9", ("actors.inference=device", "actors.games=256"), "tpu7x-16", 32),  # eight cores, each a device
        ("go_9x9", (), "v5e-16", 64),  # CPU actors: as many on a chip as they have
    ],
)
def test_a_device_plays_its_part_of_the_games_of_its_process(name, overrides, where, games):
    assert of_one_device(load(name, overrides), find_slice(where)).actors.games == games


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["slices/go_9x9_v4_32"], "v4-32"),
        (["slices/go_9x9_v4_32", "--topology", "v5e-4"], "v5e-4"),
        (["go_9x9"], "v5e-16"),
    ],
)
def test_an_experiment_is_compiled_for_its_slice_unless_another_is_named(monkeypatch, arguments, where):
    class Asked(Exception):
        pass

    def judge(experiment, topology, program, depth):
        raise Asked(topology)

    monkeypatch.setattr("podzero.tools.compile.command.compile_for_slice", judge)
    monkeypatch.setattr("sys.argv", ["podzero", "compile", *arguments])
    with pytest.raises(Asked, match=where):
        cli.main()


@pytest.mark.parametrize("option", ["--table", "--again"])
def test_the_removed_table_names_its_script(monkeypatch, capsys, option):
    monkeypatch.setattr("sys.argv", ["podzero", "compile", option])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert "benchmarks/compile_table.py" in capsys.readouterr().err
