"""Ids of samples: no two samples of a run have the same."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from podzero.replay.writer import NUMBERS, SampleIds


@given(
    pieces=st.dictionaries(
        st.tuples(st.sampled_from(["run", "other"]), st.sampled_from(["actor-0", "actor-1"]), st.integers(0, 3)),
        st.lists(st.integers(1, 70), min_size=1, max_size=4),
        min_size=1,
    ),
    samples_per_item=st.sampled_from([1, 2, 8]),
)
def test_ids_never_repeat_across_writers_attempts_and_runs(pieces, samples_per_item):
    """An item of n samples stands for n numbers."""
    found = []
    for writer, counts in pieces.items():
        ids = SampleIds("/".join(map(str, writer)))
        keys = list(chain.from_iterable(ids.take(count, samples_per_item) for count in counts))
        assert len({key // NUMBERS for key in keys}) == 1
        found += [key // NUMBERS * NUMBERS + (key + n) % NUMBERS for key in keys for n in range(samples_per_item)]
    assert len(found) == len(set(found)) == samples_per_item * sum(chain.from_iterable(pieces.values()))
    assert all(0 <= key < 2**64 for key in found)


def test_a_writer_that_has_used_all_numbers_takes_other_upper_bits():
    ids = SampleIds("actor-0")
    before = ids.take(4, 2)
    ids._next = NUMBERS - 4
    last, after = ids.take(2, 2), ids.take(3, 2)
    assert {key // NUMBERS for key in before + last} != {key // NUMBERS for key in after}
    assert len(set(before + last + after)) == 9


def test_the_same_writer_and_attempt_have_the_same_ids():
    assert SampleIds("run/actor-0/3").take(3, 4) == SampleIds("run/actor-0/3").take(3, 4)
