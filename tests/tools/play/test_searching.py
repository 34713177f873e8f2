"""Searches of one position at a time and their trees; limits of time."""

import numpy as np
import pytest

from podzero.config import BUILTIN_GAMES
from podzero.core.types import SearchedNodes
from podzero.envs import make_env
from podzero.evaluation.players import RandomPlayer, mcts_player
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import (
    OVERHEAD_S,
    GtpClock,
    PositionSearch,
    Searched,
    SearchedLines,
    most_visited,
    share_of_clock,
)
from podzero.tools.play.uci import GoLimits, parse_go


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


def test_a_search_without_values_of_its_actions_has_lines_with_that_of_the_position():
    found = Searched(1, np.array([0.25, 0.75], np.float32), 0.5, np.array([3, 5], np.int32))
    lines = SearchedLines(found, np.array([True, True]), 8, 0, 0.1).lines
    assert [(line.action, line.value, line.probability, line.visits) for line in lines] == [
        (1, 0.5, 0.75, 5),
        (0, 0.5, 0.25, 3),
    ]


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


def test_the_chart_has_a_point_for_each_searched_position_for_the_player_who_began(env, page):
    game = PlayableGame(env)
    game.restart([0, 3, 1])
    searched = {2: Searched(1, value=-0.3), 0: Searched(0), 1: Searched(3, value=0.1)}
    chart = page.value_chart(game, searched)
    assert [one[0] for one in chart["series"][0]["data"]] == [1, 2]
    # In percent: the second player, who is to move at ply 1, sees 0.1 for itself.
    assert [one[1] for one in chart["series"][0]["data"]] == pytest.approx([45, 35])
    assert (chart["yAxis"]["min"], chart["yAxis"]["max"]) == (0, 100)


def test_the_chart_has_values_where_they_are_no_win_rates(page):
    game = PlayableGame(make_env(BUILTIN_GAMES["backgammon"]))
    assert not game.has_win_rates
    assert game.meaning(0.25) == "value +0.250"
    chart = page.value_chart(game, {0: Searched(0, value=0.25)})
    assert (chart["yAxis"]["min"], chart["yAxis"]["max"]) == (-1, 1)
    assert chart["series"][0]["data"] == [[0, pytest.approx(0.25)]]


# Clocks, and the limits of `go`.


def test_a_clock_is_never_overdrawn():
    for remaining in (0.0, 0.01, 0.1, 1.0, 60.0):
        for increment in (0.0, 1.0, 100.0):
            for moves in (1, 2, 30):
                assert 0 <= share_of_clock(remaining, increment, moves) <= max(remaining - OVERHEAD_S, 0)


def test_arguments_of_go():
    limits, unknown = parse_go(["wtime", "60000", "btime", "-20", "winc", "1000", "movestogo", "10", "depth", "3"])
    assert limits == GoLimits(wtime=60000, btime=0, winc=1000, movestogo=10)
    assert not unknown
    assert limits.seconds(white=True) == pytest.approx((60 - OVERHEAD_S) / 10 + 0.75)
    assert limits.seconds(white=False) == 0
    assert parse_go(["searchmoves", "e2e4"])[0].searchmoves == ("e2e4",)
    limits, unknown = parse_go(["searchmoves", "e2e4", "d2d4", "infinite", "nodes", "7", "g1f3"])
    assert (limits.searchmoves, limits.infinite, limits.nodes) == (("e2e4", "d2d4"), True, 7)
    assert unknown == ["g1f3"]
    assert parse_go(["nodes", "--5"]) == (GoLimits(), ["nodes", "--5"])
    assert parse_go(["nodes", "9" * 5000])[1][0] == "nodes"
    assert parse_go(["movetime"]) == (GoLimits(), ["movetime"])
    assert GoLimits(movetime=1000, wtime=5).seconds(white=True) == pytest.approx(1 - OVERHEAD_S)


def test_a_clock_with_and_without_a_limit():
    assert GtpClock(60, 0, 0).seconds() < 60
    assert GtpClock(0, 1, 0).seconds() is None  # as the protocol says: no limit


def test_canadian_byo_yomi_divides_the_period_among_its_stones():
    clock = GtpClock(0, 10, 5)
    assert clock.seconds() == pytest.approx((10 - OVERHEAD_S) / 5)
    clock.spend(8.0)
    assert clock.seconds() == pytest.approx((2 - OVERHEAD_S) / 4)
    clock.left(10, 5)
    for _ in range(5):
        clock.spend(1.0)
    assert clock.seconds() == pytest.approx((10 - OVERHEAD_S) / 5)


def test_main_time_that_is_used_up_leaves_the_periods():
    clock = GtpClock(20, 10, 1)
    clock.spend(25)
    assert clock.seconds() == pytest.approx(10 - OVERHEAD_S)


def test_a_single_sudden_death_clock_shrinks():
    clock = GtpClock(60, 0, 0)
    first = clock.seconds()
    clock.spend(30)
    assert 0 < clock.seconds() < first
    clock.spend(100)
    assert clock.seconds() == 0
