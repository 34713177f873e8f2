from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from podzero.actors.assembly import SampleShuffler
from podzero.types import Sample

LENGTHS = st.lists(st.lists(st.integers(1, 12), max_size=4), max_size=12)
"""Lengths of the games that end between two calls of `take`."""


def game(number, plies):
    """A game whose samples contain its number (version) and their index in it (value)."""
    return Sample(
        observation=np.full((plies, 1), number, np.float32),
        legal=np.ones((plies, 2), bool),
        policy_target=np.full((plies, 2), 0.5, np.float32),
        value_target=np.arange(plies, dtype=np.float32),
        version=np.full(plies, number, np.int32),
    )


def played(shuffler, lengths):
    """Adds games and takes items as an actor does; returns all games and the samples taken."""
    games, taken = [], []
    for ended in lengths:
        for plies in ended:
            games.append(game(len(games), plies))
            shuffler.add(games[-1])
        if (samples := shuffler.take()) is not None:
            taken.append(samples)
    return games, taken


def identities(samples):
    return [(int(n), int(place)) for part in samples for n, place in zip(part.version, part.value_target, strict=True)]


@given(LENGTHS, st.sampled_from([1, 2, 4]))
def test_the_samples_of_an_item_come_from_different_games(lengths, samples_per_item):
    _, taken = played(SampleShuffler(samples_per_item, seed=0), lengths)
    for samples in taken:
        for numbers in samples.version.reshape(-1, samples_per_item):
            assert len(set(numbers.tolist())) == samples_per_item


@given(LENGTHS, st.sampled_from([1, 2, 4]))
def test_every_sample_is_taken_once_except_for_less_than_one_item(lengths, samples_per_item):
    shuffler = SampleShuffler(samples_per_item, seed=0)
    games, taken = played(shuffler, lengths)
    if (rest := shuffler.take_rest()) is not None:
        taken.append(rest)
    counts, total = Counter(identities(taken)), sum(len(g.version) for g in games)
    assert set(counts.values()) <= {1}
    assert len(counts) == total - total % samples_per_item
    assert set(counts) <= set(identities(games))
    for samples in taken:
        np.testing.assert_array_equal(samples.observation[:, 0], samples.version)


@given(LENGTHS, st.sampled_from([2, 4]))
def test_fewer_games_than_samples_per_item_remain(lengths, samples_per_item):
    shuffler = SampleShuffler(samples_per_item, seed=0)
    games, taken = played(shuffler, lengths)
    left = set(identities(games)) - set(identities(taken))
    assert len({number for number, _ in left}) < samples_per_item


def test_the_samples_of_a_game_are_shuffled():
    shuffler = SampleShuffler(1, seed=3)
    shuffler.add(game(0, 30))
    order = shuffler.take().value_target.tolist()
    assert sorted(order) == list(range(30))
    assert order not in (list(range(30)), list(range(30))[::-1])


def test_all_arrays_of_a_sample_stay_together():
    shuffler = SampleShuffler(2, seed=1)
    for number, plies in enumerate((8, 2, 2)):
        shuffler.add((game(number, plies), np.arange(plies) + 100 * number))
    for samples, beside in (shuffler.take(), shuffler.take_rest()):
        np.testing.assert_array_equal(samples.version * 100 + samples.value_target, beside)


def test_an_empty_shuffler_returns_none():
    assert SampleShuffler(4, seed=0).take() is None
    assert SampleShuffler(4, seed=0).take_rest() is None
