"""Searches for people: one position at a time, and their trees."""

import numpy as np
import pytest

from podzero.core.types import SearchedNodes
from podzero.envs import make_env
from podzero.evaluation.players import RandomPlayer, mcts_player
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import PositionSearch, most_visited


@pytest.fixture(scope="module")
def env():
    return make_env("tic_tac_toe")


@pytest.fixture(scope="module")
def page():
    """The module of the page; NiceGUI takes a second to import."""
    from podzero.tools.play import page

    return page


def test_the_nodes_of_a_tree_are_sorted_by_visits_and_end_with_the_game(env, page, monkeypatch):
    game = PlayableGame(env)
    game.restart([0, 3, 1, 4])
    nodes = SearchedNodes(
        parent=np.array([-1, 0, 0, 2, 0, 1]),
        action=np.array([-1, 2, 7, 2, 5, 8]),
        visits=np.array([6, 1, 4, 3, 0, 1]),
        value=np.array([0.0, 0.25, -0.5, 0.75, 0.0, 1.0]),
        prior=np.array([0.0, 0.2, 0.7, 0.4, 0.1, 1.0]),
    )
    second, first = sorted(page.tree_of(game, nodes), key=lambda node: node["id"])
    assert page.tree_of(game, nodes) == [first, second]
    assert first["label"] == "b3  visits 4  value -0.50  prior 70.0%"
    # The first player wins there, so the search's node below does not exist.
    assert second == {"id": "2", "label": "c1  visits 1  value +0.25  prior 20.0%", "children": []}
    (reply,) = first["children"]
    assert (reply["id"], reply["label"]) == ("7/2", "c1  visits 3  value +0.75  prior 40.0%")
    monkeypatch.setattr(page, "MOST_NODES", 1)
    assert page.tree_of(game, nodes)[0]["children"] == []


def test_the_principal_variation_follows_the_most_visited_children():
    nodes = SearchedNodes(
        parent=np.array([-1, 0, 0, 2, 2, 4, 0]),
        action=np.array([-1, 5, 7, 1, 3, 5, 2]),
        visits=np.array([7, 1, 5, 1, 3, 1, 0]),
        value=np.zeros(7),
        prior=np.zeros(7),
    )
    assert most_visited(nodes, 7) == (7, 3, 5)
    assert most_visited(nodes, 5) == (5,)
    assert most_visited(nodes, 2) == (2,)  # not visited
    assert most_visited(nodes, 6) == (6,)  # not in the tree


def test_the_tree_of_a_search_has_the_names_and_visits_of_its_moves(env, page):
    game = PlayableGame(env)
    game.restart(game.read("b2 a1 a2"))  # the second player must play c2
    search = PositionSearch(lambda simulations: mcts_player(env, simulations, keep_nodes=True))
    found = search(game.state, 256)
    assert game.name(found.action) == "c2"
    tree = page.tree_of(game, found.nodes)
    assert tree[0]["label"].startswith(f"c2  visits {found.visits[found.action]}  value ")
    assert tree[0]["children"][0]["id"].startswith(f"{found.action}/")


def test_a_player_that_does_not_search_gives_a_move_alone(env):
    game = PlayableGame(env)
    found = PositionSearch(lambda simulations: RandomPlayer(env))(game.state, 8)
    assert found.action in game.legal
    assert found.policy is None
    assert found.nodes is None


def test_the_chart_has_a_point_for_each_searched_position(page):
    assert page.value_chart([(0, 0.1), (2, -0.3)])["series"][0]["data"] == [[0, 0.1], [2, -0.3]]
