"""Why searches err, by the lines that refute them, and the table of that."""

import jax
import numpy as np
import pytest

from podzero.benchmarks.inner_nodes_page import inner_nodes
from podzero.benchmarks.refutations import NEVER_VISITED, NOT_CHOSEN, SEEN_TO_THE_END, VALUE_WRONG, Refutations
from podzero.envs import make_env
from podzero.evaluation.positions import replay
from podzero.evaluation.solvers import make_solver
from podzero.searched_nodes import SearchedNodes
from podzero.types import SearchResult

MUST_BLOCK_2 = [0, 4, 1]
"""Tic-tac-toe: the player to move draws at 2 and loses elsewhere, at once to a move at 2."""
BLOCK, BLUNDER = 2, 8


@pytest.fixture(scope="module")
def follow():
    """The network has no preference."""
    env = make_env("tic_tac_toe")
    refutations = Refutations(env, make_solver("tic_tac_toe"), lambda seen: np.zeros((len(seen), 9)))
    states = replay(env, np.array([MUST_BLOCK_2]))
    scores = make_solver("tic_tac_toe").scores(np.asarray(jax.vmap(env.view)(states).observation))
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
        np.array([played]), blank, blank, root_visits, blank, qvalues=root_qvalues,
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


def search(rule, wrong, reason, simulations=32):
    errors = [{"position": position, "ply": 3, "reason": reason} for position in wrong]
    return {"rule": rule, "settings": {}, "simulations": simulations, "positions": 100, "errors": errors}


def test_rules_are_paired_with_the_first_one_and_their_errors_counted_by_reason():
    """The second rule is right in eight positions in which the first errs: 2 of the 256 ways in which a coin decides
    eight times are as one-sided. The third one in two of three: 8 of 8 ways are.
    """
    results = {"agent": "zoo:x", "command": "c", "hardware": "h", "date": "d", "drawn": "e",
        "ranges_where_all_moves_are_equal": {"32": [0.1, 0.2, 0.6]}, "searches": {
        "first": search("first", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], NEVER_VISITED),
        "second": search("second", [8, 9], VALUE_WRONG),
        "third": search("third", [0, 1, 2, 3, 4, 5, 6, 7, 10], NOT_CHOSEN),
        "first of 64": search("first", [1], NOT_CHOSEN, 64),
    }}  # fmt: skip
    text = "\n".join(inner_nodes(results))
    assert "- Rules that keep the value in more positions (p below 0.05): second with 32." in text
    assert "- 2 of 22 errors are the network's:" in text
    assert "half of their ranges are 0.10 to 0.60, median 0.20, with 32 simulations." in text
    assert "never visited in 10 of 10 with 32, 0 of 1 with 64 simulations." in text
    assert "| first | 32 | 100 | 90.0% (82.6 to 94.5) |  | 10 | 0 | 0 | 0 |" in text
    assert "| second | 32 | 100 | 98.0% (93.0 to 99.4) | +8, -0 (p = 0.008) | 0 | 2 | 0 | 0 |" in text
    assert "| third | 32 | 100 | 91.0% (83.8 to 95.2) | +2, -1 (p = 1.000) | 0 | 0 | 0 | 9 |" in text
    assert "| first | 64 | 100 | 99.0% (94.6 to 99.8) |  | 0 | 0 | 0 | 1 |" in text
