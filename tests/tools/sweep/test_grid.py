"""The runs of a sweep, and arguments that cannot be used."""

import pytest

from podzero.core.errors import ConfigError
from podzero.tools.sweep.folder import MAX_RUNS, plan, read_grid

RATE = "learner.optimizer.learning_rate"


def runs(*arguments, samples=None):
    return plan("tic_tac_toe", read_grid(arguments), samples)


def test_all_combinations_are_run_with_one_seed_after_the_other():
    found = runs(f"{RATE}=1e-3,3e-3", "seed=0..1", "actors.games=64")
    assert [run.name for run in found] == [
        "learning_rate1e-3-seed0",
        "learning_rate3e-3-seed0",
        "learning_rate1e-3-seed1",
        "learning_rate3e-3-seed1",
    ]
    assert [run.experiment.learner.optimizer.learning_rate for run in found] == [1e-3, 3e-3, 1e-3, 3e-3]
    assert [run.seed for run in found] == ["0", "0", "1", "1"]
    assert found[1].combination == {RATE: "3e-3"}
    assert all(run.experiment.actors.games == 64 for run in found)


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("seed=0..3", ["0", "1", "2", "3"]),
        ("seed=-1..0,7", ["-1", "0", "7"]),
        ("learner.ema=0.9, 0.99", ["0.9", "0.99"]),
        ("evaluation.opponents=[random],[random, solver]", ['["random"]', '["random", "solver"]']),
        ("init_from=zoo:tic_tac_toe,null", ["zoo:tic_tac_toe", "null"]),
        ("name='1','2'", ['"1"', '"2"']),
    ],
)
def test_values_are_written_as_in_an_override(argument, values):
    assert read_grid([argument]).swept == {argument.partition("=")[0]: values}


def test_names_are_those_of_directories_and_differ():
    found = runs("evaluation.opponents=[random],[random, solver]", "evaluation.games=2,4", "actors.games=8,16")
    names = [run.name for run in found]
    assert len(set(names)) == 8
    assert names[0] == "opponents-1-evaluation.games2-actors.games8"


def test_a_random_part_of_the_combinations_has_all_seeds_and_is_always_the_same():
    arguments = ("search.simulations=2..9", "actors.games=8,16", "seed=0..1")
    found = runs(*arguments, samples=3)
    assert len(found) == 6
    assert len({tuple(run.combination.items()) for run in found}) == 3
    assert found == runs(*arguments, samples=3)
    assert len(runs(*arguments, samples=99)) == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search.q_scal=tree,bounds"], "did you mean 'q_scale'"),
        (["seed=0,x"], "integer"),
        (["learner.optimizer.learning_rate=1e-3,fast"], "number"),
        (["seed=4..0"], "empty"),
        (["seed="], "at least one value"),
        (["seed=1,,2"], "YAML"),
        (["seed=0..1", "seed=2"], "twice"),
        (["seed=1,1"], "same settings"),
        (["learner.optimizer.learning_rate=1e-3,0.001"], "same settings"),
        (["seed"], "expected"),
        ([f"seed=0..{MAX_RUNS}"], "more than"),
        (["seed=0..99", "actors.games=1..99"], "9,900 runs"),
    ],
)
def test_what_cannot_be_run_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        runs(*arguments)
