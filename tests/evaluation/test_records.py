import json

import pytest

from podzero.evaluation.arena import Game
from podzero.evaluation.records import PlayedPair, Records, Settings, TournamentError
from podzero.workdir import WorkdirError

SETTINGS = Settings("tic_tac_toe", ("mcts:2", "random"), None, 0, 8, 0)


def game(opened, points, cut_off=False):
    return Game(opened, [4, 0, 8], 0, "abcd", points, cut_off)


def pair(number, first="random", second="mcts:2"):
    return PlayedPair(number // 2, number, first, second, (game(True, 1.0), game(False, 0.5, number == 1)))


PAIRS = [pair(0), pair(1, "mcts:2", "random"), pair(2)]


@pytest.fixture
def open_records(tmp_path):
    """Opens the folder of the test, and closes it at the end."""
    opened = []

    def open_(settings=SETTINGS):
        for one in opened:
            one.close()
        opened.append(Records(tmp_path / "t", settings))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


@pytest.fixture
def games(open_records, tmp_path):
    """The file of games, with those of `PAIRS`."""
    records = open_records()
    records.append(PAIRS[:2])
    records.append(PAIRS[2:])
    return tmp_path / "t" / "games.jsonl"


def test_games_are_read_as_they_were_written(games, open_records):
    assert open_records().read() == PAIRS


def test_a_line_says_who_moved_first_and_what_was_played(games):
    lines = [json.loads(line) for line in games.read_text().splitlines()]
    assert lines[0] == {
        "batch": 0, "pair": 0, "players": ["random", "mcts:2"], "moves": [4, 0, 8], "opening_plies": 0,
        "position": "abcd", "points": [1.0, 0.0], "end": "over", "seed": 0,
    }  # fmt: skip
    assert lines[1]["players"] == ["mcts:2", "random"]
    assert [line["end"] for line in lines] == ["over", "over", "over", "cut off", "over", "over"]


@pytest.mark.parametrize("missing", [1, 30, 200, 330])
def test_what_an_interruption_left_is_dropped(games, open_records, missing):
    """Half a line, and a game without the other one of its opening, at the end of the file."""
    whole = games.read_bytes()
    games.write_bytes(whole[:-missing])
    records = open_records()
    assert records.read() == PAIRS[:2]
    records.append(PAIRS[2:])
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
def test_a_damaged_line_is_refused_by_its_number(games, open_records, line):
    lines = games.read_text().splitlines()
    games.write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n")
    with pytest.raises(TournamentError, match=r"games.jsonl, line 3 is damaged"):
        open_records().read()


def test_games_of_different_openings_are_not_joined(games, open_records):
    lines = games.read_text().splitlines()
    games.write_text("\n".join([*lines[:1], *lines[2:], lines[1]]) + "\n")
    with pytest.raises(TournamentError, match="not the two games of an opening"):
        open_records().read()


def test_another_tournament_is_refused_with_what_differs(games, open_records):
    with pytest.raises(TournamentError, match=r"seed: holds 0, given 3"):
        open_records(SETTINGS._replace(seed=3))
    with pytest.raises(TournamentError, match=r"players: only holds: mcts:2, only given: mcts:4"):
        open_records(SETTINGS._replace(players=("mcts:4", "random")))
    assert open_records().read() == PAIRS


def test_damaged_settings_are_refused(games, open_records):
    (games.parent / "tournament.json").write_text('{"format"')
    with pytest.raises(TournamentError, match=r"tournament.json is damaged"):
        open_records()


def test_games_without_settings_are_not_overwritten(games, open_records):
    (games.parent / "tournament.json").unlink()
    with pytest.raises(TournamentError, match=r"without tournament.json"):
        open_records()


def test_two_processes_do_not_play_in_one_folder(games, tmp_path):
    with pytest.raises(WorkdirError, match="in use"):
        Records(tmp_path / "t", SETTINGS)
