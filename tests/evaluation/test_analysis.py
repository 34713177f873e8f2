"""Analysis of positions that arrive as lines of JSON."""

import json
import queue
from types import SimpleNamespace

import numpy as np
import pytest
from failing_callback import fail_in_callback
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podzero.core.errors import ConfigError
from podzero.envs import SimulatorError, make_env
from podzero.evaluation.analysis import BATCH, Analyst, analyze
from podzero.evaluation.resolve import resolve


@pytest.fixture(scope="module")
def analyst(workdir):
    env = make_env("tic_tac_toe")
    return Analyst(env, lambda size: resolve(str(workdir.root), env, size), 8)


def answers(analyst, *requests):
    return list(analyst.answers([r if isinstance(r, str) else json.dumps(r) for r in requests]))


def test_analyze_answers_with_the_newest_snapshot(workdir):
    (answer,) = analyze(str(workdir.root), ['{"id": 1, "moves": [4]}'], simulations=3)
    assert answer["id"] == 1
    assert sum(answer["visits"]) == 3


def test_bad_lines_are_answered_with_what_is_wrong_and_the_rest_as_well(analyst):
    requests = [
        {"id": 1, "moves": []},
        "{no json",
        {"id": 3, "moves": [4, 4]},
        "[1]",
        {"id": 5, "moves": [9]},
        {"id": 6},
        "   ",
        {"id": 7, "moves": [0, 3, 1, 4, 2]},
        {"id": 8, "moves": [0, 3, 1, 4, 2, 5]},
        {"id": 9, "moves": [True]},
        {"id": 10, "moves": [4]},
    ]
    got = answers(analyst, *requests)
    assert [answer["id"] for answer in got] == [1, None, 3, None, 5, 6, 7, 8, 9, 10]
    assert set(got[0]) == {"id", "move", "policy", "value", "visits"}
    assert sum(got[0]["visits"]) == 8
    assert sum(got[0]["policy"]) == pytest.approx(1, abs=1e-5)
    assert got[9]["policy"][4] == 0
    errors = [answer.get("error") for answer in got]
    assert errors[0] is errors[9] is None
    for error, words in zip(
        errors[1:9],
        ["invalid JSON", "move 2 (4) is illegal", "expected an object", "actions from 0 to 8", "actions from 0 to 8",
         "the game is over", "move 6 (5) is illegal", "actions from 0 to 8"],
        strict=True,
    ):  # fmt: skip
        assert words in error


def test_many_lines_are_answered_in_their_order_and_as_each_alone(analyst):
    count = BATCH + 10
    requests = [{"id": i, "moves": [i % 9]} for i in range(count)]
    got = answers(analyst, *requests)
    assert [answer["id"] for answer in got] == list(range(count))
    (alone,) = answers(analyst, requests[5])
    assert alone["move"] == got[5]["move"] == got[5 + 9]["move"]
    assert alone["policy"] == pytest.approx(got[5]["policy"], abs=1e-4)


def test_a_single_line_is_answered_while_the_next_is_not_there_yet(analyst):
    """A program that sends a position and waits for the answer must not wait for a full batch."""
    lines = queue.Queue()
    stream = analyst.answers(iter(lambda: lines.get(timeout=60), "end"))
    for i in range(2):
        lines.put(json.dumps({"id": i, "moves": []}))
        assert next(stream)["id"] == i
    lines.put("end")
    assert list(stream) == []


def test_a_reader_that_fails_is_heard(analyst):
    def broken():
        yield '{"id": 1, "moves": []}'
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    stream = analyst.answers(broken())
    assert next(stream)["id"] == 1
    with pytest.raises(UnicodeDecodeError):
        next(stream)


def test_a_game_that_fails_in_analysis_is_named():
    player = SimpleNamespace(search=lambda key, roots: fail_in_callback("mine: the game raised KeyError"))
    with pytest.raises(SimulatorError, match="mine: the game raised KeyError"):
        answers(Analyst(make_env("tic_tac_toe"), lambda size: player, 8), {"id": 1, "moves": []})


def test_a_game_of_chance_cannot_be_analyzed():
    with pytest.raises(ConfigError, match="backgammon"):
        analyze("mcts:2", [], game="backgammon")


def test_who_does_not_search_cannot_analyze():
    with pytest.raises(ConfigError, match="does not search"):
        analyze("random", [], game="tic_tac_toe")


def test_moves_are_named_as_the_game_names_them(analyst):
    """The centre of tic-tac-toe is b2, its corner a1; an answer speaks as its question does."""
    named, numbered, asked = answers(analyst, {"moves": ["b2", 0]}, {"moves": [4, 0]}, {"moves": [], "names": True})
    assert named["move"] in named["policy"]
    assert "b2" not in named["policy"]
    assert sum(named["policy"].values()) == pytest.approx(1, abs=1e-5)
    assert sum(named["visits"].values()) == sum(numbered["visits"]) == 8
    assert isinstance(numbered["move"], int)
    assert asked["move"] in asked["policy"]


def test_names_that_mean_nothing_there_are_answered_with_what_is_wrong(analyst):
    unknown, illegal = answers(analyst, {"moves": ["b2", "z9"]}, {"moves": ["b2", "b2", "a1"]})
    assert "move 2: 'z9'" in unknown["error"]
    assert "move 2 (b2) is illegal" in illegal["error"]


def test_a_limit_of_visits_takes_the_largest_search_within_it(analyst):
    """8 simulations, a quarter and a 16th of them, at least one."""
    limits = [None, 100, 8, 7, 2, 1]
    got = answers(analyst, *({"id": n, "moves": [], "maxVisits": limit} for n, limit in enumerate(limits)))
    assert [answer["id"] for answer in got] == list(range(6))
    assert [sum(answer["visits"]) for answer in got] == [8, 8, 8, 2, 2, 1]


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "8"])
def test_a_limit_of_visits_that_is_none_is_refused(analyst, limit):
    (answer,) = answers(analyst, {"moves": [], "maxVisits": limit})
    assert "maxVisits" in answer["error"]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("initialStones", "known: id, moves, names, maxVisits, komi"),
        ("initialPlayer", "known"),
        ("boardXSize", "known"),
        ("rules", "known"),
        ("analyzeTurns", "known"),
        ("allowMoves", "known"),
        ("maxvisits", "did you mean 'maxVisits'?"),
        ("Komi", "did you mean 'komi'?"),
        ("komi", "tic_tac_toe has no komi"),
    ],
)
def test_a_key_that_is_not_known_is_refused_by_name(analyst, key, words):
    refused, answered = answers(analyst, {"id": 1, "moves": [], key: 7.5}, {"id": 2, "moves": []})
    assert refused["id"] == 1
    assert key in refused["error"]
    assert words in refused["error"]
    assert "move" in answered


def test_a_key_given_twice_is_refused(analyst):
    (answer,) = answers(analyst, '{"moves": [], "moves": [4]}')
    assert "'moves' is given twice" in answer["error"]


def test_whether_moves_are_named_is_true_or_false(analyst):
    (answer,) = answers(analyst, {"moves": [], "names": "no"})
    assert '"names" to be true or false' in answer["error"]


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=4,
)
move_lists = st.lists(
    st.one_of(st.integers(-1, 9), st.sampled_from(["b2", "A1", "c3", "pass"]), json_values), max_size=9
)
KEYS = ("id", "moves", "names", "maxVisits", "komi", "maxvisits", "rules")
queries = st.one_of(
    st.fixed_dictionaries({"moves": move_lists}, optional={"id": json_values, "names": st.booleans()}),
    st.dictionaries(st.sampled_from(KEYS), st.one_of(json_values, move_lists), max_size=4),
    json_values,
).map(json.dumps)
rubbish = st.text(max_size=30).map(lambda text: text.replace("\n", " "))
cut = st.tuples(queries, st.integers(0, 20)).map(lambda pair: pair[0][: pair[1]])
fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def check_answers(analyst, lines):
    lines = [line for line in lines if line.strip()]
    got = answers(analyst, *lines)
    assert len(got) == len(lines)
    for line, answer in zip(lines, got, strict=True):
        json.loads(json.dumps(answer, allow_nan=False))
        if "error" not in answer:
            query = json.loads(line)
            assert answer["id"] == query.get("id")
            assert set(query) <= {"id", "moves", "names", "maxVisits"}
            assert len(answer["visits"]) > 0


@fuzz
@given(st.lists(st.one_of(queries, queries, rubbish, cut), max_size=12))
def test_each_line_has_one_answer(analyst, lines):
    check_answers(analyst, lines)


@pytest.mark.slow
@settings(fuzz, max_examples=3000)
@given(st.lists(st.one_of(queries, queries, rubbish, cut), max_size=30))
def test_thousands_of_lines_have_one_answer_each(analyst, lines):
    check_answers(analyst, lines)


def test_many_moves_after_a_wrong_one_cost_nothing(analyst, monkeypatch):
    advance, plies = analyst._advance, []
    monkeypatch.setattr(analyst, "_advance", lambda *arguments: plies.append(1) or advance(*arguments))
    (answer,) = answers(analyst, {"moves": [4, 4] * 10_000})
    assert "move 2 (4) is illegal" in answer["error"]
    assert len(plies) < 4


def test_another_komi_than_that_of_training_is_refused():
    player = SimpleNamespace(search=None)
    go = Analyst(make_env("go_9x9"), lambda size: player, 8)
    assert "komi 6.5" in go.request('{"moves": [], "komi": 6.5}').error
    assert go.request('{"moves": ["E5"], "komi": 7.5}').error is None


def test_a_search_that_knows_komi_is_told_that_of_the_request():
    env, searched = make_env("go_9x9"), []

    def search(key, roots):
        searched.append(np.asarray(roots.board.komi))
        return random_searcher.search(key, roots)

    random_searcher = resolve("mcts:1", env)
    go = Analyst(env, lambda size: SimpleNamespace(search=search), 1, knows_komi=True)
    got = answers(go, *({"moves": ["E5"]} | komi for komi in ({"komi": -3.5}, {}, {"komi": 0})))
    assert [answer.get("error") for answer in got] == [None] * 3
    assert np.concatenate(searched)[:3].tolist() == [-7, 15, 0]


@pytest.mark.parametrize("komi", ["7", True, 0.25, 32, 10**400])
def test_a_komi_that_no_game_has_is_answered_with_what_is_wrong(komi):
    go = Analyst(make_env("go_9x9"), lambda size: SimpleNamespace(search=None), 8, knows_komi=True)
    assert "komi" in go.request(json.dumps({"moves": [], "komi": komi})).error
