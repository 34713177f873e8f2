"""The tables of a shard for hand-made experiments, and the messages about their limiters."""

import pytest

from podzero.config import parse
from podzero.core.types import EnvSpec
from podzero.replay.shard import REANALYSED, SAMPLES, STATES, UNBOUNDED, Limits, TableSettings, TableUsers, tables_of

SPEC = EnvSpec("line", (3,), "float32", 4, state_bytes=8)


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
    experiment = make_experiment(sampler=sampler, priority_exponent=0.5, reanalyse={"share": 0.5})
    found = {name: table.settings.priority_exponent for name, table in tables_of(experiment, SPEC).items()}
    assert found == {SAMPLES: exponent, STATES: None, REANALYSED: exponent}


def test_reanalysed_samples_have_their_part_of_the_tolerance_and_states_never_block_writes(make_experiment):
    """One sample of each batch of 4 is reanalysed: a quarter of the tolerance of 40 is 10, of which each shard has 5.
    10 samples are 5 inserts, 3 a shard, so the center of the range is 6."""
    experiment = make_experiment(shards=2, min_size=50, tolerance=40, reanalyse={"share": 0.25, "capacity": 300})
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
    tables = tables_of(make_experiment(reanalyse={"share": 0.5}), SPEC)
    assert tables[REANALYSED].signature.layout == tables[SAMPLES].signature.layout
    assert tables[STATES].signature.layout == (
        "line state:uint8[8] outcome:float32[] lambda_return:float32[] truncated:bits[] version:int32[] "
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


SETTINGS = TableSettings(
    capacity=100_000,
    min_size=4_096,
    samples_per_insert=4.0,
    min_diff=14_336,
    max_diff=18_432,
    priority_exponent=None,
    samples_per_item=1,
)

USERS = TableUsers("samples", "actors", "learner", "replay.min_size")


def limits(size: int, inserted: int, sampled: int) -> Limits:
    return Limits(SETTINGS, size, inserted, sampled, USERS)


def test_inserts_block_when_the_next_would_raise_the_error_above_the_range():
    # error after the next insert: (7,607 + 1) * 4 - 12,000 = 18,432, just allowed; one more is not
    assert not limits(7_607, 7_607, 12_000).insert_blocked
    assert limits(7_608, 7_608, 12_000).insert_blocked


def test_inserts_never_block_before_min_size():
    assert not limits(4_095, 40_000, 0).insert_blocked


def test_samples_block_until_the_table_holds_min_size():
    assert limits(4_095, 4_095, 0).sample_blocked
    assert not limits(4_096, 4_096, 0).sample_blocked


def test_samples_block_when_the_next_would_lower_the_error_below_the_range():
    # error after the next sample: 8,192 * 4 - 18,431 - 1 = 14,336, just allowed
    assert not limits(8_192, 8_192, 18_431).sample_blocked
    assert limits(8_192, 8_192, 18_432).sample_blocked


def test_a_blocked_insert_is_explained():
    assert limits(8_192, 8_192, 12_000).explain_insert() == (
        "replay is full enough: 8,192 samples were inserted, the learner has sampled only 12,000 of the 32,768 that "
        "samples_per_insert=4 allows, so actors wait for the learner"
    )


def test_a_blocked_sample_is_explained():
    assert "holds 100 of the 4,096" in limits(100, 100, 0).explain_sample()
    assert "sampled 18,432 samples, as many as samples_per_insert=4 allows after 8,192 inserts" in (
        limits(8_192, 8_192, 18_432).explain_sample()
    )


def test_a_limiter_that_does_not_block_is_not_blamed():
    free = limits(5_000, 5_000, 4_000)
    assert "does not block inserts" in free.explain_insert()
    assert "does not block samples" in free.explain_sample()


def test_a_whole_item_must_fit_into_the_range():
    packed = SETTINGS._replace(samples_per_item=8)
    # error after the next item: (7,600 + 8) * 4 - 12,000 = 18,432, just allowed
    assert not Limits(packed, 7_600, 7_600, 12_000, USERS).insert_blocked
    assert Limits(packed, 7_608, 7_608, 12_000, USERS).insert_blocked
    # error after the next item: 8,192 * 4 - 18,424 - 8 = 14,336, just allowed
    assert not Limits(packed, 8_192, 8_192, 18_424, USERS).sample_blocked
    assert Limits(packed, 8_192, 8_192, 18_425, USERS).sample_blocked


def test_messages_name_the_users_of_the_table():
    reanalysed = limits(100, 100, 0)._replace(
        users=TableUsers("reanalysed samples", "reanalysers", "learner", "replay.tolerance")
    )
    assert reanalysed.explain_sample() == (
        "replay holds 100 of the 4,096 reanalysed samples that the learner starts from (replay.tolerance), so the "
        "learner waits for the reanalysers"
    )
