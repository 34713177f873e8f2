"""JSON lines: what is read, and which games are left out before they are replayed."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.envs import make_env
from podzero.evaluation.games import PlayedGame, game_to_tree
from podzero.tools.records.games import RESULTS, Fault, RecordedGame, read_lines

FOUR = make_env("connect_four").spec


def moves_and_points(found):
    found = list(found)
    assert all(isinstance(game, RecordedGame) for game in found), found
    return [(list(game.moves), game.points) for game in found]


def kinds(found):
    return [found.kind for found in found if isinstance(found, Fault)]


@pytest.mark.parametrize(
    ("players", "names"), [('["a", "b"]', ("a", "b")), ('["a"]', ("a", "")), ("null", ("", "")), ('"ab"', ("", ""))]
)
def test_names_of_players_are_read_and_no_game_is_left_out_for_them(players, names):
    (found,) = read_lines(
        [f'{{"moves": [4], "result": "1-0", "players": {players}}}'], "f", make_env("tic_tac_toe").spec
    )
    assert found.players == names


def test_games_that_podzero_has_recorded_are_read():
    games = [PlayedGame("a", "b", (3, 2), 1.0, end="given up"), PlayedGame("a", "b", (3, 2), 0.5, end="cut off")]
    lines = [json.dumps({"pair": 1} | game_to_tree(game)) for game in games]
    assert moves_and_points(read_lines(lines, "x", FOUR)) == [([3, 2], 1.0), ([3, 2], None)]


def test_random_openings_are_told_apart():
    game = PlayedGame("a", "b", (3, 2, 1), 1.0, opening_plies=2)
    (found,) = read_lines([json.dumps(game_to_tree(game))], "x", FOUR)
    assert (found.moves, found.opening_plies) == ((3, 2, 1), 2)
    assert kinds(read_lines([json.dumps(game_to_tree(game._replace(opening_plies=3)))], "x", FOUR)) == ["unfinished"]


def test_lines_of_other_programs_are_read():
    lines = ['{"moves": [3, "d"], "result": "1/2-1/2", "game": "connect_four"}', "", '{"moves": ["a"], "result": null}']
    assert moves_and_points(read_lines(lines, "x", FOUR)) == [([3, "d"], 0.5), (["a"], None)]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ('{"moves": [3], "game": "hex"}', "foreign"),
        ('{"moves": [], "result": "1-0"}', "unfinished"),
        ('{"moves": [3], "result": "2-0"}', "unreadable"),
        ('{"moves": [3.5], "result": "1-0"}', "unreadable"),
        ('{"moves": [true], "result": "1-0"}', "unreadable"),
        ('{"moves": [3], "points": [0.7, 0.3]}', "unreadable"),
        ('{"moves": [3], "opening_plies": -1}', "unreadable"),
        ('{"moves": 3}', "unreadable"),
        ('{"moves": "ddd"}', "unreadable"),
        ('{"moves": {"d": 1}}', "unreadable"),
        ('{"moves": [3], "result": ""}', "unreadable"),
        ('{"moves": [3], "result": "1-0", "result": "0-1"}', "unreadable"),
        ('{"moves": [3], "points": [1, 1]}', "unreadable"),
        ('{"moves": [3], "points": [1, 0], "result": "0-1"}', "unreadable"),
        ('{"moves": [3], "points": [1' + 400 * "0" + ", 0]}", "unreadable"),
        ('{"moves": [3], "komi": "6.5"}', "unreadable"),
        ('{"moves": [3], "komi": true}', "unreadable"),
        (100_000 * "[", "unreadable"),
        ('{"result": "1-0"}', "unreadable"),
        ("[3]", "unreadable"),
        ('{"moves": [3', "unreadable"),
    ],
)
def test_faulty_lines_are_left_out(line, kind):
    (found,) = read_lines([line], "games.jsonl", FOUR)
    assert (found.where, found.kind) == ("games.jsonl, line 1", kind)


@pytest.mark.parametrize(("komi", "found"), [("6.5", 6.5), ("0", 0), ("-3", -3), ("null", None), ("375", 375)])
def test_komi_is_read(komi, found):
    (game,) = read_lines([f'{{"moves": [3], "komi": {komi}}}'], "x", make_env("go_9x9").spec)
    assert game.komi == found


def test_a_komi_that_is_no_number_is_named():
    (fault,) = read_lines(['{"moves": [3], "komi": "six"}'], "x", make_env("go_9x9").spec)
    assert '"komi" is "six"' in fault.reason


VALUES = st.recursive(
    st.sampled_from(
        ["1-0", "*", "d", "connect_four", "over", "cut off", 0, 1, 0.5, 3, 10**400, float("inf"), None, True]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "moves"]), inner, max_size=2),
    max_leaves=5,
)
KEYS = ("moves", "result", "points", "end", "opening_plies", "game", "komi", "players")
MOVES = st.lists(st.sampled_from([3, 6, "a", "d"]), min_size=1, max_size=4)
TREES = st.fixed_dictionaries({"moves": MOVES}, optional=dict.fromkeys(KEYS[1:], VALUES)) | st.dictionaries(
    st.sampled_from(KEYS), VALUES
)
LINES = st.lists(TREES.map(json.dumps) | st.text(max_size=20).filter(str.strip), max_size=5)


def check_lines(lines):
    """Each line is one game or one fault, and a game is what the line says."""
    found = list(read_lines(lines, "x", FOUR))
    assert [one.where for one in found] == [f"x, line {number}" for number in range(1, len(lines) + 1)]
    for line, game in zip(lines, found, strict=True):
        if isinstance(game, RecordedGame):
            tree = json.loads(line)
            assert list(game.moves) == tree["moves"]
            assert game.komi == tree.get("komi")
            assert game.points in (None, tree.get("points", [None])[0], RESULTS[tree.get("result") or "*"])
        else:
            str(game).encode()


@given(LINES)
def test_every_line_is_read_once_or_left_out(lines):
    check_lines(lines)


@pytest.mark.slow
@given(LINES)
@settings(max_examples=5000)
def test_thousands_of_lines_are_read_once_or_left_out(lines):
    check_lines(lines)
