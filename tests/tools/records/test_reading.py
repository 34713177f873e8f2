"""What is read from files of games, and which games are left out before they are replayed."""

import json

import pytest

from podzero.envs import make_env
from podzero.evaluation.games import PlayedGame, game_to_tree
from podzero.evaluation.records import record_text
from podzero.tools.records.games import Fault, RecordedGame
from podzero.tools.records.lines import read_lines
from podzero.tools.records.sgf import read_sgf

GO = make_env("go_9x9").spec
HEX = make_env("hex").spec
FOUR = make_env("connect_four").spec


def moves_and_points(found):
    found = list(found)
    assert all(isinstance(game, RecordedGame) for game in found), found
    return [(list(game.moves), game.points) for game in found]


def kinds(found):
    return [found.kind for found in found if isinstance(found, Fault)]


@pytest.mark.parametrize(("points", "given_up"), [(1.0, False), (0.0, True)])
@pytest.mark.parametrize(("name", "moves"), [("go_9x9", [40, 81, 0]), ("othello", [19, 64]), ("hex", [12, 121, 5])])
def test_sgf_is_read_as_it_is_written(name, moves, points, given_up):
    env = make_env(name)
    text = record_text(env, PlayedGame("a]b", "(c;", tuple(moves), points, given_up=given_up))
    assert moves_and_points(read_sgf(2 * text, "x", env.spec)) == 2 * [(moves, points)]


def test_variations_comments_and_old_forms_of_sgf_do_not_matter():
    text = r"""(;GM[1]SZ[9:9]RE[Draw]C[a \] ;B[zz\] (];Black[aa];W[tt](;B[ba];W[](;B[ca])(;B[da]))(;B[bb]C[worse]))"""
    assert moves_and_points(read_sgf(text, "x", GO)) == [([0, 81, 1, 81, 2], 0.5)]


@pytest.mark.parametrize(("komi", "read"), [("KM[6.5]", 6.5), ("KM[0]", 0), ("KM[-5]", -5), ("KM[]", None), ("", None)])
def test_the_komi_of_sgf_is_read(komi, read):
    (game,) = read_sgf(f"(;GM[1]SZ[9]{komi};B[aa])", "x", GO)
    assert game.komi == read


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("(;GM[1]SZ[19];B[aa])", "foreign"),
        ("(;GM[1];B[aa])", "foreign"),
        ("(;GM[2]SZ[9];B[aa])", "foreign"),
        ("(;GM[1]SZ[nine];B[aa])", "foreign"),
        ("(;GM[1]SZ[9]HA[2]AB[cc][gg];W[aa])", "foreign"),
        ("(;GM[1]SZ[9];W[aa])", "illegal"),
        ("(;GM[1]SZ[9];B[aa];B[bb])", "illegal"),
        ("(;GM[1]SZ[9];B[jj])", "illegal"),
        ("(;GM[1]SZ[9];B[aa];W[b", "unreadable"),
        ("(;GM[1]SZ[9]RE[B+3.5])", "unfinished"),
        ("()", "unreadable"),
    ],
)
def test_sgf_of_other_games_and_faulty_sgf_is_left_out(text, kind):
    good = "(;GM[1]SZ[9]RE[B+R];B[aa])"
    found = list(read_sgf(good + text, "kgs.sgf", GO))
    assert kinds(found) == [kind]
    assert found[0] == RecordedGame("kgs.sgf, game 1", (0,), 1.0)
    assert found[1].where == "kgs.sgf, game 2"


def test_a_game_without_sgf_finds_all_sgf_foreign():
    assert kinds(read_sgf("(;GM[11];B[a1])", "x", FOUR)) == ["foreign"]


def test_games_that_podzero_has_recorded_are_read():
    games = [PlayedGame("a", "b", (3, 2), 1.0, given_up=True), PlayedGame("a", "b", (3, 2), 0.5, cut_off=True)]
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
        ('{"result": "1-0"}', "unreadable"),
        ("[3]", "unreadable"),
        ('{"moves": [3', "unreadable"),
    ],
)
def test_faulty_lines_are_left_out(line, kind):
    (found,) = read_lines([line], "games.jsonl", FOUR)
    assert (found.where, found.kind) == ("games.jsonl, line 1", kind)
