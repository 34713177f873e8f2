"""The share of its time that a learner waits, in numbers computed by hand."""

import pytest

from podzero.config import FOR_SLICES, builtin_configs, load
from podzero.tools.compile import slices, waiting

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
    assert found.absolute, "run `podzero compile --table`"
    assert found.waiting == 0.0
    assert 0 < found.moves_per_s < min(found.asked, found.made)


def test_stored_figures_hold_for_another_replay_ratio_and_for_no_other_program():
    known = slices.known_rates(load("slices/go_9x9_v5e_16"))
    assert slices.known_rates(load("slices/go_9x9_v5e_16", ["replay.samples_per_insert=8", "name=again"])) == known
    for change in ("search.simulations=128", "learner.batch_size=2048", "actors.games=2048", "network.channels=64"):
        assert slices.known_rates(load("slices/go_9x9_v5e_16", [change])) is None
