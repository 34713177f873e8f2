import json
import queue
from types import SimpleNamespace

import pytest
from failing_callback import fail_in_callback

from podzero.envs import SimulatorError, make_env
from podzero.errors import ConfigError
from podzero.evaluation.evaluate import BATCH, Analyst, analyze, evaluate, records_file
from podzero.evaluation.resolve import resolve


def test_a_match_as_plain_values():
    result = evaluate("solver", opponent="random", games=20, game="tic_tac_toe", seed=1)
    assert json.loads(json.dumps(result)) == result
    assert result["losses"] == 0
    assert result["games"] == result["wins"] + result["draws"] == 20
    assert result["score"] == (result["wins"] + result["draws"] / 2) / 20
    assert result["interval"][0] < result["score"] <= result["interval"][1] <= 1


def test_an_odd_number_of_games_is_rounded_up():
    assert evaluate("solver", opponent="solver", games=3, game="tic_tac_toe")["games"] == 4


def test_a_judgement_as_plain_values(workdir):
    result = evaluate(str(workdir.root), positions=30)
    judged = {"positions", "keeps_value", "exact", "interval", "by_ply", "bands"}
    assert set(result) == {"game", "player", "network"} | judged
    assert set(result["network"]) == judged
    assert set(result["bands"]) == {"plies 0 to 9"}
    assert result["positions"] == result["bands"]["plies 0 to 9"]["positions"] == 30
    assert result["interval"][0] <= result["keeps_value"] <= result["interval"][1]


def test_all_positions_of_tic_tac_toe_are_judged():
    """5,478 positions can be reached, 4,520 of which are not over."""
    result = evaluate("solver", game="tic_tac_toe")
    assert (result["keeps_value"], result["exact"]) == (1, 1)
    assert 1000 < result["positions"] < 4520
    assert "network" not in result
    assert evaluate("solver", positions=30, game="tic_tac_toe")["positions"] == 30


def test_the_seed_decides():
    one, same, other = (evaluate("random", "random", 40, game="tic_tac_toe", seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_two_games_are_refused(workdir):
    with pytest.raises(ConfigError, match=r"--game plays hex, .*tic_tac_toe"):
        evaluate(str(workdir.root), opponent="random", game="hex")


def test_no_game_is_refused():
    with pytest.raises(ConfigError, match="no game given"):
        evaluate("random", opponent="mcts:10")


def test_without_opponent_and_solver_a_match_is_played_against_search_and_one_against_random_play(monkeypatch):
    """Small numbers of simulations stand in for the default ones."""
    monkeypatch.setattr("podzero.evaluation.evaluate.DEFAULT_OPPONENTS", ("mcts:2", "random"))
    result = evaluate("random", games=4, game="hex")
    assert json.loads(json.dumps(result)) == result
    assert {key: value for key, value in result.items() if key != "matches"} == {
        "game": "hex", "player": "random",
    }  # fmt: skip
    assert list(result["matches"]) == ["mcts:2", "random"]
    for match in result["matches"].values():
        assert match["games"] == match["wins"] + match["draws"] + match["losses"] == 4
        assert match["interval"][0] <= match["score"] <= match["interval"][1]


@pytest.mark.parametrize(
    ("who", "arguments", "words"),
    [
        ("random", {"game": "hex"}, r"--positions 30: hex has no solver .* leave --positions out"),
        ("random", {"game": "cartpole"}, r"--positions 30: .* has no solver .* leave --positions out"),
        ("random", {"game": "tic_tac_toe", "opponent": "solver"}, "remove it, or --opponent"),
    ],
)
def test_positions_without_a_solver_that_judges_them_are_refused(who, arguments, words):
    with pytest.raises(ConfigError, match=words):
        evaluate(who, positions=30, **arguments)


@pytest.fixture(scope="module")
def analyst(workdir):
    env = make_env("tic_tac_toe")
    return Analyst(env, resolve(str(workdir.root), env))


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
        answers(Analyst(make_env("tic_tac_toe"), player), {"id": 1, "moves": []})


def test_who_does_not_search_cannot_analyze():
    with pytest.raises(ConfigError, match="does not search"):
        analyze("random", [], game="tic_tac_toe")


def test_matches_of_an_agent_that_comes_with_podzero_leave_its_folder_alone():
    assert records_file("zoo:go_9x9", "zoo:go_9x9@2932", "random", "go_9x9") is None
