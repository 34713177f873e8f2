from podzero.replay.tables import Limits, TableSettings, TableUsers

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
