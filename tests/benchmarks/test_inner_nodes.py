"""Why searches err, by the lines that refute them."""

import jax
import numpy as np
import pytest

from podzero.benchmarks.inner_nodes import NEVER_VISITED, NOT_CHOSEN, SEEN_TO_THE_END, VALUE_WRONG, Refutations
from podzero.core.types import SearchedNodes, SearchResult
from podzero.envs import make_env
from podzero.evaluation.positions import replay
from podzero.evaluation.solvers import make_solver

MUST_BLOCK_2 = [0, 4, 1]
"""Tic-tac-toe: the player to move draws at 2 and loses elsewhere, at once to a move at 2."""
BLOCK, BLUNDER = 2, 8


@pytest.fixture(scope="module")
def follow():
    """The network has no preference."""
    env = make_env("tic_tac_toe")
    refutations = Refutations(env, make_solver("tic_tac_toe"), lambda seen: np.zeros((len(seen), 9)))
    states = replay(env, np.array([MUST_BLOCK_2]))
    scores = make_solver("tic_tac_toe")(np.asarray(jax.vmap(env.view)(states).observation))
    return lambda result: refutations(states, scores, result)


def searched(nodes, played=BLUNDER, qvalues=(-0.2, 0.1)):
    """A tree of `(parent, action, visits)` below the root, with the Q-values of the block and of the blunder."""
    parent, action, visits = np.array([(-1, -1, 99), *nodes]).T[:, None]
    blank = np.zeros(parent.shape)
    root_visits, root_qvalues = np.zeros((1, 9), int), np.zeros((1, 9))
    for above, move, count in nodes:
        if above == 0:
            root_visits[0, move] = count
    root_qvalues[0, [BLOCK, BLUNDER]] = qvalues
    return SearchResult(
        np.array([played]), blank, blank, root_visits, qvalues=root_qvalues,
        nodes=SearchedNodes(parent, action, visits, blank, blank),
    )  # fmt: skip


def test_a_right_move_is_no_error(follow):
    assert follow(searched([(0, BLOCK, 5), (0, BLUNDER, 5)], played=BLOCK)) == []


def test_a_refutation_that_is_not_tried_among_many_visits(follow):
    """Of five replies, those at 2 and 3 win; the node has six visits, and none of them went there."""
    (error,) = follow(searched([(0, BLOCK, 5), (0, BLUNDER, 6), (2, 5, 5)]))
    assert (error["reason"], error["visits"], error["replies"]) == (NEVER_VISITED, 6, 5)
    assert error["prior"] == pytest.approx(1 / 5)
    assert error["line"] == [BLUNDER]
    assert (error["played"], error["right"]) == (BLUNDER, BLOCK)


def test_a_node_with_fewer_visits_than_moves_has_the_value_of_the_network(follow):
    (error,) = follow(searched([(0, BLOCK, 5), (0, BLUNDER, 5), (2, 5, 4)]))
    assert error["reason"] == VALUE_WRONG


def test_a_refutation_may_be_seen_and_count_too_little(follow):
    (error,) = follow(searched([(0, BLOCK, 5), (0, BLUNDER, 50), (2, 5, 40), (2, 2, 9)]))
    assert (error["reason"], error["line"]) == (SEEN_TO_THE_END, [BLUNDER, 2])


def test_the_line_begins_with_the_move_that_is_misjudged_most(follow):
    """The block draws and is held for nearly lost; that the blunder loses is known. The network ends the line."""
    (error,) = follow(searched([(0, BLOCK, 5), (0, BLUNDER, 5)], qvalues=(-0.95, -0.9)))
    assert (error["reason"], error["line"]) == (VALUE_WRONG, [BLOCK])


def test_a_right_move_may_have_the_higher_value_and_not_be_chosen(follow):
    (error,) = follow(searched([(0, BLOCK, 5), (0, BLUNDER, 5)], qvalues=(0.0, -0.9)))
    assert error["reason"] == NOT_CHOSEN
