import json

import pytest

from podzero.evaluation.games import PlayedGame, PlayedPair
from podzero.evaluation.tournament import NumberedPair, Settings, TournamentError, TournamentFiles
from podzero.workdir import WorkdirError

SETTINGS = Settings("tic_tac_toe", ("mcts:2", "random"), None, 0, 8, 0)


def game(first, second, points, **end):
    return PlayedGame(first, second, (4, 0, 8), points, 0, "abcd", **end)


def pair(number, first="random", second="mcts:2"):
    replied = game(second, first, 0.5, cut_off=number == 1)
    return NumberedPair(number // 2, number, PlayedPair(game(first, second, 1.0, given_up=number == 2), replied))


PAIRS = [pair(0), pair(1, "mcts:2", "random"), pair(2)]


@pytest.fixture
def open_files(tmp_path):
    """Opens the folder of the test, and closes it at the end."""
    opened = []

    def open_(settings=SETTINGS):
        for one in opened:
            one.close()
        opened.append(TournamentFiles(tmp_path / "t", settings))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


@pytest.fixture
def games(open_files, tmp_path):
    """The file of games, with those of `PAIRS`."""
    files = open_files()
    files.append(PAIRS[:2])
    files.append(PAIRS[2:])
    return tmp_path / "t" / "games.jsonl"


def test_games_are_read_as_they_were_written(games, open_files):
    assert open_files().read() == PAIRS


def test_a_line_says_who_moved_first_and_what_was_played(games):
    lines = [json.loads(line) for line in games.read_text().splitlines()]
    assert lines[0] == {
        "batch": 0, "pair": 0, "players": ["random", "mcts:2"], "moves": [4, 0, 8], "opening_plies": 0,
        "position": "abcd", "points": [1.0, 0.0], "end": "over", "seed": 0,
    }  # fmt: skip
    assert lines[1]["players"] == ["mcts:2", "random"]
    assert [line["end"] for line in lines] == ["over", "over", "over", "cut off", "given up", "over"]


@pytest.mark.parametrize("missing", [1, 30, 200, 330])
def test_what_an_interruption_left_is_dropped(games, open_files, missing):
    """Half a line, and a game without the other one of its opening, at the end of the file."""
    whole = games.read_bytes()
    games.write_bytes(whole[:-missing])
    files = open_files()
    assert files.read() == PAIRS[:2]
    files.append(PAIRS[2:])
    assert games.read_bytes() == whole


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "not JSON",
        '{"batch": 0, "pair": 1, "players": ["x", "y"], "moves": [], "points": [1, 0]}',
        '{"batch": 0, "pair": 1, "players": ["random", "mcts:2"], "moves": ["a"], "opening_plies": 0, '
        '"position": "", "points": [1, 0], "end": "over"}',
    ],
)
def test_a_damaged_line_is_refused_by_its_number(games, open_files, line):
    lines = games.read_text().splitlines()
    games.write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n")
    with pytest.raises(TournamentError, match=r"games.jsonl, line 3 is damaged"):
        open_files().read()


def test_games_of_different_openings_are_not_joined(games, open_files):
    lines = games.read_text().splitlines()
    games.write_text("\n".join([*lines[:1], *lines[2:], lines[1]]) + "\n")
    with pytest.raises(TournamentError, match="not the two games of an opening"):
        open_files().read()


def test_another_tournament_is_refused_with_what_differs(games, open_files):
    with pytest.raises(TournamentError, match=r"seed: holds 0, given 3"):
        open_files(SETTINGS._replace(seed=3))
    with pytest.raises(TournamentError, match=r"players: only holds: mcts:2, only given: mcts:4"):
        open_files(SETTINGS._replace(players=("mcts:4", "random")))
    assert open_files().read() == PAIRS


def test_damaged_settings_are_refused(games, open_files):
    (games.parent / "tournament.json").write_text('{"format"')
    with pytest.raises(TournamentError, match=r"tournament.json is damaged"):
        open_files()


def test_games_without_settings_are_not_overwritten(games, open_files):
    (games.parent / "tournament.json").unlink()
    with pytest.raises(TournamentError, match=r"without tournament.json"):
        open_files()


def test_two_processes_do_not_play_in_one_folder(games, tmp_path):
    with pytest.raises(WorkdirError, match="in use"):
        TournamentFiles(tmp_path / "t", SETTINGS)
