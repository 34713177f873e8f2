"""The tables of a shard, for hand-made experiments."""

import pytest

from podzero.config import parse
from podzero.replay import REANALYSED, SAMPLES, STATES, tables_of
from podzero.replay.tables import UNBOUNDED, TableSettings
from podzero.types import EnvSpec

SPEC = EnvSpec("line", (3,), "float32", 4, state_bytes=5)


def windowed(**sections):
    tree = {
        "name": "t",
        "env": {"name": "gymnasium", "id": "CartPole-v1"},
        "network": {"name": "muzero_mlp"},
        "muzero": {"unroll_steps": 2, "td_steps": 3, **sections.pop("muzero", {})},
        **sections,
    }
    return parse(tree, "test")


def test_without_reanalyse_there_is_one_table(make_experiment):
    assert list(tables_of(make_experiment(), SPEC)) == [SAMPLES]


def test_shards_divide_sizes_and_tolerance(make_experiment):
    tables = tables_of(make_experiment(shards=3, capacity=100, min_size=10, tolerance=15), SPEC)
    assert tables[SAMPLES].settings == TableSettings(
        capacity=34,
        min_size=4,
        samples_per_insert=2.0,
        min_diff=3.0,
        max_diff=13.0,
        priority_exponent=None,
        samples_per_item=1,
    )


def test_sizes_are_whole_items(make_experiment):
    settings = tables_of(make_experiment(shards=3, capacity=100, min_size=40, tolerance=60, samples_per_item=8), SPEC)[
        SAMPLES
    ].settings
    assert (settings.capacity, settings.min_size, settings.samples_per_item) == (40, 16, 8)


@pytest.mark.parametrize(("sampler", "exponent"), [("uniform", None), ("prioritized", 0.5)])
def test_only_tables_that_the_learner_reads_are_prioritized(make_experiment, sampler, exponent):
    experiment = make_experiment(sampler=sampler, priority_exponent=0.5, reanalyse={"share": 0.5, "games": 4})
    found = {name: table.settings.priority_exponent for name, table in tables_of(experiment, SPEC).items()}
    assert found == {SAMPLES: exponent, STATES: None, REANALYSED: exponent}


def test_reanalysed_samples_have_their_part_of_the_tolerance_and_states_never_block_writes(make_experiment):
    """One sample of each batch of 4 is reanalysed: a quarter of the tolerance of 40 is 10, of which each shard has 5.
    10 samples are 5 inserts, 3 a shard, so the center of the range is 6."""
    experiment = make_experiment(
        shards=2, min_size=50, tolerance=40, reanalyse={"share": 0.25, "games": 4, "capacity": 300}
    )
    tables = tables_of(experiment, SPEC)
    assert tables[REANALYSED].settings == TableSettings(
        capacity=150,
        min_size=3,
        samples_per_insert=2.0,
        min_diff=1.0,
        max_diff=11.0,
        priority_exponent=None,
        samples_per_item=1,
    )
    assert tables[STATES].settings == TableSettings(
        capacity=500, min_size=13, samples_per_insert=1.0, min_diff=-UNBOUNDED, max_diff=UNBOUNDED,
        priority_exponent=None, samples_per_item=1,
    )  # fmt: skip


def test_samples_and_reanalysed_samples_have_one_layout(make_experiment):
    tables = tables_of(make_experiment(reanalyse={"share": 0.5, "games": 4}), SPEC)
    assert tables[REANALYSED].signature.layout == tables[SAMPLES].signature.layout
    assert tables[STATES].signature.layout == (
        "line state:uint8[5] outcome:float32[] lambda_return:float32[] truncated:bool[] version:int32[] "
        "samples_per_item:1"
    )


@pytest.mark.parametrize(("consistency", "learned"), [(0.0, 1), (2.0, 3)])
def test_only_stored_windows_hold_every_observation(consistency, learned):
    spec = EnvSpec("cart", (4,), "float32", 2, players=1)
    experiment = windowed(
        muzero={"consistency_weight": consistency}, reanalyse={"share": 0.5}, replay={"samples_per_item": 1}
    )
    tables = tables_of(experiment, spec)
    for name, observations in {SAMPLES: learned, REANALYSED: learned, STATES: 2 + 3 + 1}.items():
        assert f" observation:float32[{observations},4] " in tables[name].signature.layout
