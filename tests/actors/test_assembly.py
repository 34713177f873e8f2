"""Value targets computed by hand, the assembly of parallel games, and the shuffling of their samples."""

from __future__ import annotations

import weakref
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podzero.actors.assembly import GameAssembler, SampleShuffler
from podzero.actors.targets import Plies, outcome_classes, targets_of, value_targets
from podzero.config import ActorsConfig
from podzero.core.types import Move, Sample


def move(done, tag=0.0, player=0, rewards=None):
    """One move of len(done) games; observations encode `tag` and the slot."""
    games = len(done)
    return Move(
        observation=np.stack([np.full((2,), 100 * slot + tag, np.float32) for slot in range(games)]),
        legal=np.ones((games, 3), bool),
        policy=np.full((games, 3), 1 / 3, np.float32),
        value=np.full(games, 0.5, np.float32),
        action=np.zeros(games, np.int32),
        player=np.full(games, player, np.int32),
        rewards=np.zeros((games, 2), np.float32) if rewards is None else np.asarray(rewards, np.float32),
        done=np.asarray(done),
        truncated=np.zeros(games, bool),
    )


def targets_of_game(rewards, players, root_values=None, td_lambda=1.0, discount=1.0, actions=None, truncated=False):
    """The targets of one game, in NumPy."""
    count, zeros = len(rewards), np.zeros(len(rewards))
    last = np.arange(count) == count - 1
    values = zeros.astype(np.float32) if root_values is None else root_values
    actions = zeros.astype(np.int32) if actions is None else actions
    fields = (values, actions, players.astype(np.int32), rewards, last, last & truncated)
    plies = Plies(*(field[..., None] for field in fields))
    found = targets_of(plies, ActorsConfig(td_lambda=td_lambda), discount, xp=np)
    return type(found)(*(field[..., 0] for field in found))


def outcomes(rewards, players, discount=1.0):
    return targets_of_game(rewards, players, discount=discount).outcome


def lambda_returns(rewards, players, values, td_lambda, discount=1.0):
    return targets_of_game(rewards, players, values, td_lambda, discount).lambda_return


def test_the_outcome_is_the_sum_of_the_movers_later_rewards():
    rewards = np.array([[0, 0], [0, 0], [1, -1]], np.float32)
    np.testing.assert_array_equal(outcomes(rewards, np.array([0, 1, 0])), [1, -1, 1])


def test_targets_are_weighted_means_of_root_value_and_lambda_return():
    """0.25 * 0.2 + 0.75 * 0.4 = 0.35 and 0.25 * -0.6 + 0.75 * -0.2 = -0.3."""
    targets = value_targets(np.array([0.4, -0.2], np.float32), np.array([0.2, -0.6], np.float32), 0.25)
    np.testing.assert_allclose(targets, [0.35, -0.3], rtol=1e-6)


def test_the_weight_of_the_outcome_falls_with_the_plies_that_follow():
    """55 plies that player 0 wins, each with the root value 0.2 for player 0: the first lambda-return is
    0.2 + 0.8 * 0.95^54 = 0.25014. Player 1 has the negative of its own."""
    moves, players = 55, np.arange(55) % 2
    assembler = GameAssembler(ActorsConfig(games=1, td_lambda=0.95))
    for ply in range(moves):
        made = move([ply == moves - 1], player=players[ply], rewards=[[ply == moves - 1, -(ply == moves - 1)]])
        games = list(assembler.add(made._replace(value=np.float32([-0.2 if players[ply] else 0.2])), version=0))
    targets = games[0].samples.value_target
    np.testing.assert_allclose(targets[0], 0.25014, atol=1e-4)
    np.testing.assert_allclose(targets[1], -(0.2 + 0.8 * 0.95**53), rtol=1e-5)
    np.testing.assert_allclose(targets[-1], 1.0, rtol=1e-6)


def test_an_opponents_moves_are_no_samples_but_count_in_the_targets():
    """Player 0 wins with the third move. The opponent's second move, player 1's, is left out; with lambda 1/2 its root
    value 0.5 still enters the first target, 0.5 * -0.5 + 0.5 * G, where G is -(0.5 * -0.5 + 0.5) = -0.25 for player 1
    and 0.25 for player 0."""
    assembler = GameAssembler(ActorsConfig(games=1, td_lambda=0.5))
    games = []
    for ply, (player, own) in enumerate([(0, True), (1, False), (0, True)]):
        made = move([ply == 2], tag=ply, player=player, rewards=[[ply == 2, -(ply == 2)]])
        games += assembler.add(made._replace(own=np.array([own])), version=0)
    (game,) = games
    assert game.plies == 3
    np.testing.assert_array_equal(game.samples.observation[:, 0], [0, 2])
    np.testing.assert_allclose(game.samples.value_target, [0.5 * -0.5 + 0.5 * (0.5 * 0.5 + 0.5 * 1.0), 1.0])


def test_later_rewards_are_discounted_per_move():
    """A discount of 1/2 gives 1/4 for the winner's first move and -1/2 for the loser's; and for a single player with a
    reward of 1/4 per move 1/4 (1 + 1/2 + 1/4), 1/4 (1 + 1/2), 1/4."""
    final = np.array([[0, 0], [0, 0], [1, -1]], np.float32)
    np.testing.assert_array_equal(outcomes(final, np.array([0, 1, 0]), 0.5), [0.25, -0.5, 1])
    each_move = np.array([[0.25, 0]] * 3, np.float32)
    np.testing.assert_array_equal(outcomes(each_move, np.zeros(3), 0.5), [0.4375, 0.375, 0.25])


def test_the_lambda_return_mixes_later_root_values_for_the_player_to_move():
    """With lambda 1/2, the last move wins for player 0: its return is 1. Before it player 1 moved: of the root value
    0.5 of player 0 and that return, -(0.25 + 0.5) remains. At first, player 1's 0.2 and 0.75 give -0.1 + 0.375."""
    rewards = np.array([[0, 0], [0, 0], [1, -1]], np.float32)
    values = np.array([0.9, 0.2, 0.5], np.float32)
    returns = lambda_returns(rewards, np.array([0, 1, 0]), values, 0.5)
    np.testing.assert_allclose(returns, [0.275, -0.75, 1.0], rtol=1e-6)


def test_lambda_zero_looks_one_move_ahead_and_one_is_the_outcome():
    rewards = np.array([[0.25, 0]] * 3, np.float32)
    players, values = np.zeros(3), np.array([0.9, 0.8, 0.7], np.float32)
    one_step = lambda_returns(rewards, players, values, 0.0, discount=0.5)
    np.testing.assert_allclose(one_step, [0.25 + 0.4, 0.25 + 0.35, 0.25], rtol=1e-6)
    whole = lambda_returns(rewards, players, values, 1.0, discount=0.5)
    np.testing.assert_array_equal(whole, outcomes(rewards, players, 0.5))


def test_the_assembler_applies_the_discount():
    assembler = GameAssembler(ActorsConfig(games=1), discount=0.5)
    assert list(assembler.add(move([False]), version=0)) == []
    (game,) = assembler.add(move([True], rewards=[[1, -1]]), version=0)
    np.testing.assert_array_equal(game.samples.value_target, [0.5, 1])


@pytest.mark.parametrize(("last_player", "expected"), [(0, [0.125, -0.25, 0.5]), (1, [-0.125, 0.25, 0.5])])
def test_a_truncated_game_bootstraps_from_its_last_root_value(last_player, expected):
    """The root value of the last position is 0.5 for its mover; the reward of its move is part of that value."""
    assembler = GameAssembler(ActorsConfig(games=1), discount=0.5)
    for player in (0, 1):
        assert list(assembler.add(move([False], player=player), version=0)) == []
    last = move([True], player=last_player, rewards=[[0.25, -0.25]])._replace(truncated=np.array([True]))
    (game,) = assembler.add(last, version=0)
    np.testing.assert_array_equal(game.samples.value_target, expected)


def test_consecutive_moves_of_one_player_have_equal_signs():
    rewards = np.array([[0, 0], [0, 0], [-1, 1]], np.float32)
    np.testing.assert_array_equal(outcomes(rewards, np.array([1, 1, 0])), [1, 1, -1])


def test_a_game_consists_of_its_own_moves_in_order_with_their_versions():
    assembler = GameAssembler(ActorsConfig(games=2))
    assert list(assembler.add(move([False, False], tag=1), version=7)) == []
    assert list(assembler.add(move([False, False], tag=2), version=8)) == []
    (game,) = assembler.add(move([False, True], tag=3, rewards=[[0, 0], [1, -1]]), version=9)
    assert game.plies == 3
    np.testing.assert_array_equal(game.samples.observation[:, 0], [101, 102, 103])
    np.testing.assert_array_equal(game.samples.version, [7, 8, 9])
    np.testing.assert_array_equal(game.samples.value_target, [1, 1, 1])
    (game,) = assembler.add(move([True, False], tag=4), version=9)
    np.testing.assert_array_equal(game.samples.observation[:, 0], [1, 2, 3, 4])
    (game,) = assembler.add(move([False, True], tag=5), version=9)
    np.testing.assert_array_equal(game.samples.observation[:, 0], [104, 105])


def test_auxiliary_targets_tell_how_the_game_went_on():
    """Player 1 moves twice in a row, so one of its moves has no reply of the other; player 0 wins."""
    rewards = np.array([[0, 0], [0, 0], [0, 0], [1, -1]], np.float32)
    players, actions = np.array([0, 1, 1, 0]), np.array([5, 6, 7, 8])
    targets = targets_of_game(rewards, players, actions=actions)
    np.testing.assert_array_equal(outcome_classes(targets.outcome, targets.truncated), [2, 0, 0, 2])
    np.testing.assert_array_equal(targets.moves_left, [4, 3, 2, 1])
    np.testing.assert_array_equal(targets.reply, [6, -1, 8, -1])
    cut = targets_of_game(rewards, players, actions=actions, truncated=True)
    np.testing.assert_array_equal(outcome_classes(cut.outcome, cut.truncated), [-1] * 4)
    np.testing.assert_array_equal(cut.moves_left, [-1] * 4)
    np.testing.assert_array_equal(cut.reply, targets.reply)


def test_samples_have_auxiliary_targets_only_if_asked_for():
    for asked in (False, True):
        assembler = GameAssembler(ActorsConfig(games=1), auxiliary_targets=asked)
        assert not list(assembler.add(move([False]), version=0))
        (game,) = assembler.add(move([True], player=1, rewards=[[-1, 1]]), version=0)
        assert (game.samples.reply is not None) is asked
    np.testing.assert_array_equal(game.samples.outcome, [0, 2])
    np.testing.assert_array_equal(game.samples.reply, [0, -1])


def test_owners_are_those_for_the_player_to_move_and_unknown_after_a_limit():
    """At the end player 0 owns the first square, and player 1 the second."""
    for truncated, expected in ((False, [[2, 0, 1], [0, 2, 1]]), (True, [[-1] * 3] * 2)):
        assembler = GameAssembler(ActorsConfig(games=1), auxiliary_targets=True)
        assert not list(assembler.add(move([False])._replace(ownership=np.int8([[[0, 0, 1], [0, 0, -1]]])), version=0))
        last = move([True], player=1, rewards=[[-1, 1]])
        last = last._replace(ownership=np.int8([[[1, -1, 0], [-1, 1, 0]]]), truncated=np.array([truncated]))
        (game,) = assembler.add(last, version=0)
        np.testing.assert_array_equal(game.samples.ownership, expected)


def test_states_for_reanalysis_have_outcomes_instead_of_value_targets():
    assembler = GameAssembler(ActorsConfig(games=2, root_value_weight=0.5))
    for number in range(3):
        last = move(
            [False, number == 2], tag=number, player=number % 2, rewards=[[0, 0], [number // 2, -(number // 2)]]
        )
        games = list(assembler.add(last._replace(state=np.full((2, 4), [[7], [number]], np.uint8)), version=number))
    (game,) = games
    np.testing.assert_array_equal(game.states.state, [[0] * 4, [1] * 4, [2] * 4])
    np.testing.assert_array_equal(game.states.outcome, [1, -1, 1])
    np.testing.assert_array_equal(game.states.version, [0, 1, 2])
    np.testing.assert_array_equal(game.states.truncated, [False] * 3)
    np.testing.assert_array_equal(game.samples.value_target, [0.75, -0.25, 0.75])
    assert next(GameAssembler(ActorsConfig(games=1)).add(move([True]), version=0)).states is None


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=40))
def test_every_move_is_in_exactly_one_finished_or_running_game(ends):
    assembler = GameAssembler(ActorsConfig(games=3))
    written = sorted(
        float(tag)
        for number, done in enumerate(ends)
        for game in assembler.add(move(done, tag=number), version=0)
        for tag in game.samples.observation[:, 0]
    )
    finished = [
        100.0 * slot + number
        for slot in range(3)
        for number in range(max((i + 1 for i, done in enumerate(ends) if done[slot]), default=0))
    ]
    assert written == sorted(finished)


def test_memory_is_bounded_by_the_longest_running_game():
    assembler = GameAssembler(ActorsConfig(games=2))
    kept = []
    for _ in range(100):
        made = move([True, True])
        kept.append(weakref.ref(made.observation))
        list(assembler.add(made, version=0))
    del made
    assert all(observation() is None for observation in kept)


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
