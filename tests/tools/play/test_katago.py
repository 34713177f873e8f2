"""KataGo's analysis protocol: a session as KaTrain holds it, every field, and queries that are wrong."""

import json
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podzero.evaluation.resolve import Outlook
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.katago import KataGoServer

SIZE, SQUARES = 7, 49
BOARD = {"boardXSize": SIZE, "boardYSize": SIZE}


def black_owns_half(states):
    """A network for which Black owns half of each square, and all moves are equally good."""
    black = np.asarray(states.board.plies) % 2 == 0
    owned = np.repeat(np.where(black, 0.5, -0.5)[:, None], SQUARES, axis=1).astype(np.float32)
    return Outlook(np.full((len(black), SQUARES + 1), 0.02, np.float32), owned)


@pytest.fixture
def ask(parts_of):
    """Sends objects or lines to a server; returns its answers."""

    def run(*queries, look=black_owns_half, game="go_7x7", lines=None, parts=None, **kinds):
        seen, written = Future(), []
        seen.set_result(look)
        parts = parts or parts_of(game, **kinds)
        texts = lines or [one if isinstance(one, str) else json.dumps(one) for one in queries]
        KataGoServer("who", parts, written.append, seen).run(texts)
        return [json.loads(line) for line in written]

    return run


def query(name="q", moves=(), **fields):
    return {"id": name, "moves": [list(move) for move in moves], **BOARD, **fields}


def test_a_query_of_katrain_is_answered_in_full(ask):
    moves = [["B", "D4"], ["W", "C3"]]
    warning, noise, answer = ask(
        {
            "rules": "japanese", "priority": 1, "analyzeTurns": [2], "maxVisits": 8, "komi": 7.5, **BOARD,
            "includeOwnership": True, "includeMovesOwnership": True, "includePolicy": True, "initialStones": [],
            "initialPlayer": "B", "moves": moves, "id": "QUERY:1", "reportDuringSearchEvery": 1,
            "overrideSettings": {"reportAnalysisWinratesAs": "BLACK", "maxTime": 8.0, "wideRootNoise": 0.04},
        }
    )  # fmt: skip
    assert (warning["field"], noise["field"]) == ("rules", "overrideSettings.wideRootNoise")
    assert (answer["id"], answer["turnNumber"], answer["isDuringSearch"]) == ("QUERY:1", 2, False)
    assert answer["rootInfo"] == {
        "currentPlayer": "B", "visits": 4, "winrate": 0.625, "lcb": 0.625, "utility": 0.25,
        "scoreLead": 17.0, "scoreMean": 17.0,
    }  # fmt: skip
    assert answer["ownership"] == [0.5] * SQUARES
    assert answer["policy"] == [-1 if point in (24, 30) else 0.02 for point in range(SQUARES + 1)]
    first, second = answer["moveInfos"]
    assert first == {
        "move": "A7", "visits": 4, "winrate": 0.75, "lcb": 0.75, "utility": 0.5, "prior": 0.02, "order": 0,
        "pv": ["A7"], "scoreLead": 17.0, "scoreMean": 17.0, "ownership": [0.5] * SQUARES,
    }  # fmt: skip
    assert (second["move"], second["visits"], second["order"], second["winrate"]) == ("B7", 2, 1, 0.625)


@pytest.mark.parametrize(
    ("asked", "turn", "rate", "lead"),
    [
        ("BLACK", 0, 0.625, 17.0), ("BLACK", 1, 0.375, 17.0), ("WHITE", 0, 0.375, -17.0),
        ("WHITE", 1, 0.625, -17.0), ("SIDETOMOVE", 0, 0.625, 17.0), ("SIDETOMOVE", 1, 0.625, -17.0),
    ],
)  # fmt: skip
def test_win_rates_and_scores_are_from_the_perspective_asked_for(ask, asked, turn, rate, lead):
    seen = {"overrideSettings": {"reportAnalysisWinratesAs": asked}, "includeOwnership": True}
    (answer,) = ask(query(moves=[("B", "D4")], analyzeTurns=[turn], **seen))
    assert (answer["rootInfo"]["winrate"], answer["rootInfo"]["scoreLead"]) == (rate, lead)
    assert answer["moveInfos"][0]["scoreLead"] == lead
    assert answer["ownership"][0] == np.sign(lead) * 0.5


def test_turns_are_answered_in_the_order_of_their_priorities(ask):
    moves = [("B", "D4"), ("W", "E5"), ("B", "C3")]
    answers = ask(query(moves=moves, analyzeTurns=[0, 1, 2, 3], priorities=[0, 5, 0, 7]))
    assert [one["turnNumber"] for one in answers] == [3, 1, 0, 2]
    assert [one["rootInfo"]["currentPlayer"] for one in answers] == ["W", "W", "B", "B"]


def test_without_turns_the_last_position_is_analyzed_with_the_usual_visits(ask):
    (answer,) = ask(query(moves=[("B", "D4"), ("B", "E5")]))
    assert answer["turnNumber"] == 2
    assert answer["rootInfo"]["visits"] == 16
    assert answer["rootInfo"]["currentPlayer"] == "W"


def test_stones_of_the_setup_stand_and_the_player_named_begins(ask):
    stones = [["B", "A7"], ["B", "B7"], ["W", "C7"], ["W", "D7"]]
    (answer,) = ask(query(initialStones=stones, initialPlayer="W", includePolicy=True))
    assert answer["rootInfo"]["currentPlayer"] == "W"
    assert [place for place, share in enumerate(answer["policy"]) if share < 0] == [0, 1, 2, 3]
    assert answer["moveInfos"][0]["move"] == "E7"


def test_moves_are_chosen_by_avoid_and_allow(ask):
    avoid, allow = (
        [{"player": "b", "moves": moves, "untilDepth": 1}] for moves in (["A7", "B7"], ["G1", "F1", "pass"])
    )
    left, chosen = ask(query(avoidMoves=avoid), query(allowMoves=allow))
    assert left["moveInfos"][0]["move"] == "C7"
    assert {one["move"] for one in chosen["moveInfos"]} == {"G1", "F1", "pass"}


def test_limits_of_the_other_player_have_no_effect(ask):
    limits = [{"player": "W", "moves": ["A7"]}]
    first, second = ask(query(moves=[("B", "G1")], analyzeTurns=[0, 1], avoidMoves=limits))
    assert [one["moveInfos"][0]["move"] for one in (first, second)] == ["A7", "B7"]


def test_a_game_that_goes_on_is_not_replayed(ask, monkeypatch):
    played, play = [], PlayableGame.play
    monkeypatch.setattr(PlayableGame, "play", lambda game, move: (played.append(move), play(game, move))[1])
    moves = [("B", "D4"), ("W", "E5"), ("B", "C3"), ("W", "F4")]
    grown = [query(str(number), moves[:number]) for number in (1, 2, 4, 3)]
    other = [
        query("other", [("B", "D4"), ("W", "A1")]),
        query("white", [("W", "D4"), ("B", "E5")]),
        query("wrong", [("W", "Z9")]),
    ]
    answers = ask(*grown, *other, query("again", [("W", "D4"), ("B", "A1")]), look=None)
    by_id = {one["id"]: one for one in answers}
    assert [move for move in played if isinstance(move, str) and move != "pass"] == [
        "D4", "E5", "C3", "F4", "A1", "D4", "E5", "Z9", "A1",
    ]  # fmt: skip
    movers = {
        name: by_id[name]["rootInfo"]["currentPlayer"] for name in ("1", "2", "4", "3", "other", "white", "again")
    }
    assert movers == {"1": "W", "2": "B", "4": "B", "3": "W", "other": "B", "white": "W", "again": "W"}


def test_without_a_network_or_its_ownership_there_is_no_score(ask):
    def no_ownership(states):
        return black_owns_half(states)._replace(ownership=None)

    for look in (None, no_ownership):
        (answer,) = ask(query(includeOwnership=True, includeMovesOwnership=True, includePolicy=True), look=look)
        assert "scoreLead" not in answer["rootInfo"]
        assert "ownership" not in answer
        assert "scoreLead" not in answer["moveInfos"][0]
        assert ("policy" in answer) == (look is not None)
    # The prior is then the search's.
    assert ask(query(), look=None)[0]["moveInfos"][0]["prior"] > 0.1


def test_a_player_without_a_search_answers_its_move(ask):
    (answer,) = ask(query(), look=None, searches=False)
    assert len(answer["moveInfos"]) == 1
    assert ask(query(avoidMoves=[{"player": "B", "moves": ["A7"]}]), searches=False)[0]["field"] == "avoidMoves"


def test_the_komi_reaches_the_score_and_a_search_that_knows_it(ask):
    warning, answer = ask(query(komi=0.5))
    assert warning["field"] == "komi"
    assert answer["rootInfo"]["scoreLead"] == 24.0
    assert [one.get("field") for one in ask(query(komi=0.5), knows_komi=True)] == [None]


def test_after_two_passes_the_position_is_still_analyzed(ask):
    (answer,) = ask(query(moves=[("B", "D4"), ("W", "pass"), ("B", "pass"), ("W", "pass")]))
    assert answer["moveInfos"]


def test_versions_models_and_caches(ask):
    named, models, cleared = ask(
        {"id": "1", "action": "query_version"},
        {"id": "2", "action": "query_models"},
        {"id": "3", "action": "clear_cache"},
    )
    assert named["id"] == "1"
    assert tuple(map(int, named["version"].split("."))) >= (1, 12)
    assert named["engine"].startswith("podzero ")
    assert models["models"] == [{"name": "who", "internalName": "who"}]
    assert cleared == {"id": "3", "action": "clear_cache"}


@pytest.mark.parametrize(
    ("wrong", "field", "reason"),
    [
        ({"boardXSize": 19}, "boardXSize", "who plays on 7 x 7, not on 19"),
        ({"boardYSize": "7"}, "boardYSize", "valid integer"),
        ({"moves": [["B", "D4"], ["W", "D4"]]}, "moves", "Illegal move 2: 'D4' is illegal"),
        ({"moves": [["B", "Z99"]]}, "moves", "Illegal move 1: 'Z99' is not a move of go_7x7"),
        ({"moves": ["D4"]}, "moves", "moves.0: Input should be a valid array"),
        ({"moves": [["R", "D4"]]}, "moves", "'B' or 'W'"),
        ({"moves": None}, "moves", "valid array"),
        ({"initialStones": [["B", "D4"], ["W", "D4"]]}, "initialStones", "Illegal position: 'D4' is illegal"),
        ({"initialStones": [["B", "pass"]]}, "initialStones", "not a point"),
        ({"initialPlayer": "black"}, "initialPlayer", "'B' or 'W'"),
        ({"analyzeTurns": [0, 1]}, "analyzeTurns", "the game has no turn 1, only 0 to 0"),
        ({"analyzeTurns": [-1]}, "analyzeTurns", "the game has no turn -1"),
        ({"priorities": [1, 2]}, "priorities", "one for each of the 1 turns"),
        ({"maxVisits": 0}, "maxVisits", "greater than or equal to 1"),
        ({"maxVisits": True}, "maxVisits", "valid integer"),
        ({"komi": 7.3}, "komi", "multiple of 0.5"),
        ({"komi": 1000}, "komi", "less than or equal to 31"),
        ({"rules": 3}, "rules", "valid"),
        ({"overrideSettings": {"maxTime": -1}}, "overrideSettings", "maxTime: Input should be greater than 0"),
        ({"overrideSettings": {"reportAnalysisWinratesAs": "ME"}}, "overrideSettings", "'BLACK', 'WHITE'"),
        ({"avoidMoves": [{"player": "B", "moves": ["A1"], "untilDepth": 3}]}, "avoidMoves", "untilDepth"),
        ({"allowMoves": [{"player": "B", "moves": ["Z1"]}]}, "allowMoves", "not a move"),
        ({"includeOwnership": "yes"}, "includeOwnership", "valid boolean"),
        ({"action": "dance"}, "action", "is not one of query_version"),
        ({"action": "terminate"}, "terminateId", "needs the id"),
        ({"action": "terminate", "terminateId": 3}, "terminateId", "valid string"),
    ],
)
def test_a_wrong_field_is_answered_by_its_name_and_the_next_query_works(ask, wrong, field, reason):
    error, answer = ask(query("wrong") | wrong, query("right"))
    assert (error["id"], error["field"]) == ("wrong", field)
    assert reason in error["error"]
    assert answer["id"] == "right"


def test_an_occupied_list_of_moves_left_is_refused(ask):
    every = [f"{column}{row}" for column in "ABCDEFG" for row in range(1, 8)] + ["pass"]
    (error,) = ask(query(avoidMoves=[{"player": "B", "moves": every}]))
    assert error["error"] == "no legal move is left"


@pytest.mark.parametrize(
    "line",
    [
        '{"id": "a", "moves": [], "boardXSize": 7, "boardYSize": 7, "deep": ' + "[" * 300 + "]" * 300 + "}",
        '{"id": "\\ud800", "moves": [], "boardXSize": 7, "boardYSize": 7}',
        "nonsense",
        "[1]",
        "3",
        '{"moves": []}',
        '{"id": 3}',
        '{"id": "a", "id": "b"}',
        '{"id": "a", "k": NaN}',
        "[" * 9999,
    ],
)
def test_a_line_that_is_no_query_is_answered(ask, line):
    error, answer = ask(line, query())
    assert "error" in error
    assert answer["moveInfos"]


def test_fields_that_are_not_known_change_nothing_and_are_named(ask):
    first, second, answer = ask(query(rootFpuReductionMax=0, includePVVisits=True))
    assert {first["field"], second["field"]} == {"rootFpuReductionMax", "includePVVisits"}
    assert answer["moveInfos"]


def test_more_visits_than_there_is_room_for_are_named(ask):
    warning, answer = ask(query(maxVisits=1000))
    assert warning["warning"] == "at most 64 are made; start with --simulations 1000 to have more"
    assert answer["rootInfo"]["visits"] == 64


def test_waiting_queries_are_terminated_and_the_running_one_ends(ask, parts_of):
    parts = parts_of("go_7x7")
    search = parts.result().search

    def lines():
        search.gate.clear()
        yield json.dumps(query("long", maxVisits=64, reportDuringSearchEvery=0.001))
        assert search.waits.wait(timeout=60)
        yield json.dumps(query("next", moves=[("B", "D4")], analyzeTurns=[0, 1]))
        yield json.dumps({"id": "t", "action": "terminate", "terminateId": "next", "turnNumbers": [1]})
        yield json.dumps({"id": "u", "action": "terminate_all"})
        search.gate.set()

    answers = ask(lines=lines(), parts=parts)
    gone = {"id": "next", "isDuringSearch": False, "noResults": True}
    assert gone | {"turnNumber": 1} in answers
    assert gone | {"turnNumber": 0} in answers
    assert {"id": "t", "action": "terminate", "terminateId": "next", "turnNumbers": [1]} in answers
    assert [one["isDuringSearch"] for one in answers if one["id"] == "long"][-1] is False


def test_a_search_that_fails_is_answered_and_the_next_works(ask, parts_of):
    calls = []

    def fails_once(states):
        calls.append(states)
        if len(calls) == 1:
            raise RuntimeError("no network")
        return black_owns_half(states)

    error, answer = ask(query("a"), query("b"), look=fails_once)
    assert error == {"error": "analysis failed: RuntimeError: no network", "id": "a", "turnNumber": 0}
    assert answer["id"] == "b"


places = st.sampled_from(["A1", "D4", "E5", "pass", "Z9", "", "PASS"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 30) | st.floats() | st.sampled_from(["B", "W", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["player", "moves"]), inner, max_size=2)
    ),
    max_leaves=5,
)
stones = st.lists(st.tuples(st.sampled_from("BWbw"), places), max_size=4)
fields = st.fixed_dictionaries(
    {"id": st.just("q"), "moves": st.one_of(stones, stones, anything), **{name: st.just(SIZE) for name in BOARD}},
    optional={
        "initialStones": st.one_of(stones, anything), "initialPlayer": st.one_of(st.sampled_from("BW"), anything),
        "analyzeTurns": st.one_of(st.lists(st.integers(-1, 4), max_size=3), anything), "komi": anything,
        "maxVisits": anything, "priority": anything, "priorities": anything, "overrideSettings": anything,
        "avoidMoves": anything, "allowMoves": anything, "includePolicy": anything, "action": anything, "x": anything,
    },
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(fields, max_size=4))
def test_whatever_a_query_holds_it_is_answered_once_for_each_turn(ask, queries):
    *answers, last = ask(*queries, query("last"))
    assert last["id"] == "last"
    for one in answers:
        assert one.get("id") in ("q", None)
        assert "error" in one or "warning" in one or "action" in one or one["isDuringSearch"] is False


def test_more_positions_than_may_wait_are_refused(ask, monkeypatch):
    monkeypatch.setattr("podzero.tools.play.katago.MOST_WAITING", 2)
    many = query("many", [("B", "D4"), ("W", "E5")], analyzeTurns=[0, 1, 2])
    error, answer = ask(many, query("one", komi=7), knows_komi=True)
    assert (error["id"], error["error"]) == ("many", "at most 2 positions may wait; ask for fewer, or later")
    assert answer["id"] == "one"
