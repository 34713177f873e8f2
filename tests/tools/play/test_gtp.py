"""The GTP engine: transcripts of the protocol."""

import re
import time

import pytest

from podzero.tools.play.drawing import handicap_squares
from podzero.tools.play.gtp import GtpCommand, GtpServer


@pytest.fixture
def talk(parts_of):
    """Sends lines to an engine; returns its parts and its answers."""

    def run(game, *lines):
        parts, written = parts_of(game), []
        GtpServer("who", parts, written.append).run(lines)
        return parts.result(), "\n".join(written).rstrip("\n").split("\n\n")

    return run


def test_a_whole_conversation(talk):
    _, answers = talk(
        "go_9x9",
        "1 protocol_version", "2 name", "boardsize 9", "3 clear_board", "komi 7.5", "4 play b D4", "5 genmove w",
        "6 play black e5", "genmove white", "7 undo", "8 known_command genmove", "known_command dance", "9 quit",
    )  # fmt: skip
    assert answers == [
        "=1 2", "=2 podzero who", "=", "=3", "=", "=4", "=5 A9", "=6", "= B9", "=7", "=8 true", "= false", "=9",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("7 dance", "?7 unknown command"),
        ("play", "? syntax error: expected a colour"),
        ("play green D4", "? syntax error: expected a colour, black or white"),
        ("play b", "? syntax error: expected a move"),
        ("play b I5", "? illegal move: 'I5' is not a move of go_9x9; moves are named as E5, or pass"),
        ("play b Z99", "? illegal move: 'Z99' is not a move of go_9x9; moves are named as E5, or pass"),
        ("genmove", "? syntax error: expected a colour"),
        ("boardsize 13", "? unacceptable size"),
        ("boardsize nine", "? syntax error: expected a size, not 'nine'"),
        ("komi nan", "? syntax error: expected a komi, not 'nan'"),
        ("undo", "? cannot undo"),
        ("time_settings 1 2", "? syntax error: expected three numbers"),
        ("time_left b x 1", "? syntax error: expected seconds, not 'x'"),
        ("kgs-time_settings fischer 1 2", "? syntax error: expected none, absolute, byoyomi, canadian"),
        ("boardsize 9.5", "? syntax error: expected a size, not '9.5'"),
        ("fixed_handicap 2.7", "? syntax error: expected a number of stones, not '2.7'"),
        ("lz-analyze soon", "? 'soon' is not supported; supported: interval, minmoves, maxmoves, allow, avoid"),
        (
            "kata-analyze b 10 ownership true",
            "? 'ownership' is not supported; supported: interval, minmoves, maxmoves, allow, avoid",
        ),
        ("kata-analyze interval", "? syntax error: expected an interval"),
        ("kata-analyze minmoves 1.5", "? syntax error: expected a number of moves, not '1.5'"),
        ("kata-analyze avoid b E5", "? syntax error: expected a depth"),
        (
            "kata-analyze avoid b E5 2",
            "? avoid: only moves of the position itself can be chosen: depth 1, not 2",
        ),
        ("kata-analyze allow w E5 1", "? allow: only moves of black, who is to move, can be chosen"),
        ("kata-analyze allow b Z9 1", "? 'Z9' is not a move of go_9x9; moves are named as E5, or pass"),
        ("kata-analyze allow b E5 1 avoid b E5 1", "? allow and avoid leave no legal move"),
        ("known_command", "? syntax error: expected a command"),
    ],
)
def test_mistakes_are_answered_and_the_next_command_works(talk, line, answer):
    _, answers = talk("go_9x9", line, "8 protocol_version")
    assert answers == [answer, "=8 2"]


def test_comments_control_characters_and_empty_lines_are_dropped():
    assert GtpCommand.parse("12 play\tb  D4 # the centre\r\n") == ("12", "play", ["b", "D4"])
    assert GtpCommand.parse("\x07genmove\x00 w") == ("", "genmove", ["w"])
    assert GtpCommand.parse("# nothing") is None
    assert GtpCommand.parse("12") is None


def test_an_occupied_point_is_illegal(talk):
    _, answers = talk("go_9x9", "play b D4", "play w D4")
    assert answers == ["=", "? illegal move: 'D4' is illegal in this position"]


def test_a_colour_that_moves_twice_makes_the_other_one_pass(talk):
    parts, answers = talk("go_9x9", "play b D4", "play b E5", "play b F6", "play w C3", "genmove w")
    assert answers == ["=", "=", "=", "=", "= A9"]
    assert parts.game.names == ["D4", "pass", "E5", "pass", "F6", "C3", "pass", "A9"]


def test_an_illegal_move_out_of_turn_changes_nothing(talk):
    parts, _ = talk("go_9x9", "play b D4", "play b D4")
    assert parts.game.names == ["D4"]


def test_after_two_passes_the_engine_passes_and_play_goes_on(talk):
    parts, answers = talk("go_9x9", "play b pass", "play w PASS", "genmove b", "play w D4", "genmove b")
    assert answers == ["=", "=", "= pass", "=", "= A9"]
    assert parts.game.names == ["pass", "pass", "pass", "D4", "A9"]


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (["play b D4", "play b E5", "undo", "undo"], []),
        (["play b D4", "play b E5", "undo"], ["D4"]),
        (["genmove b", "genmove b", "undo", "undo"], []),
        (["play b D4", "play b E5", "play b F6", "undo", "undo", "undo"], []),
        (["play b pass", "play w pass", "play b D4", "undo", "undo"], ["pass"]),
        (["play b pass", "play w pass", "genmove b", "undo"], ["pass", "pass"]),
        (["play b D4", "play b resign", "undo"], []),
        (["play b D4", "play b D4", "reg_genmove b", "undo"], []),
    ],
)
def test_undo_takes_back_a_command_with_the_pass_before_it(talk, lines, left):
    parts, answers = talk("go_9x9", *lines)
    assert answers[-1] == "="
    assert parts.game.names == left


@pytest.mark.parametrize("handicap", ["fixed_handicap 3", "place_free_handicap 2", "set_free_handicap C3 G7"])
def test_a_handicap_is_not_taken_back(talk, handicap):
    parts, answers = talk("go_9x9", handicap, "undo", "play w E5", "undo", "undo")
    assert answers[1:] == ["? cannot undo", "=", "=", "? cannot undo"]
    assert parts.game.names[:3] == ["C3", "pass", "G7"]


@pytest.mark.parametrize(
    "lines",
    [
        ["play b J9", "play b pass", "play w D4"],
        ["play b pass", "play b E5", "play w D4"],
        ["play b pass", "play b pass", "genmove w"],
        ["play b pass", "play w pass", "play b E5", "play w D4", "genmove b"],
    ],
)
def test_passes_that_no_command_played_end_no_game(talk, lines):
    _, answers = talk("go_9x9", *lines)
    assert not [answer for answer in answers if answer.startswith("?") or answer == "= pass"]


def test_a_game_goes_on_after_podzeros_limit_of_plies_and_after_a_repetition(talk):
    """98 plies on the board of 7 x 7; a ko that is taken and taken back after a pass of each."""
    parts, answers = talk("go_7x7", "play b A1", *["play b pass"] * 60, "play b D4", "play w E4", "genmove b")
    assert answers[-3:] == ["=", "=", "= A7"]
    assert len(parts.game.moves) == 2 * 62 + 1
    ko = ["b A2", "w A3", "b B1", "w B2", "b pass", "w A1", "b pass", "w pass", "b A2", "w pass", "b pass", "w A1"]
    _, answers = talk("go_7x7", *(f"play {turn}" for turn in ko), "genmove b")
    assert set(answers[:-1]) == {"="}
    assert answers[-1] == "= A7"


def test_go_is_scored_by_area_with_the_komi_of_the_controller(talk):
    wall = [f"play {colour} {column}{row}" for row in range(1, 10) for colour, column in (("b", "E"), ("w", "F"))]
    _, answers = talk("go_9x9", *wall, "final_score", "komi 9", "final_score", "komi 0", "final_score")
    assert answers[-5:] == ["= B+1.5", "=", "= 0", "=", "= B+9"]


@pytest.mark.parametrize("knows_komi", [True, False])
def test_a_search_that_knows_komi_is_told_it_and_keeps_it(parts_of, monkeypatch, knows_komi):
    parts, written, told = parts_of("go_9x9", knows_komi=knows_komi), [], []
    search = parts.result().search
    results = search.results

    def noted(root, *rest):
        told.append(int(root.limited.state.board.komi))
        return results(root, *rest)

    monkeypatch.setattr(search, "results", noted)
    lines = ["genmove b", "komi 9", "genmove w", "clear_board", "fixed_handicap 2", "genmove w", "undo", "genmove w"]
    GtpServer("who", parts, written.append).run(lines)
    assert told == ([15, 18, 18, 18] if knows_komi else [15] * 4)


def test_a_komi_that_the_search_cannot_be_told_is_refused(parts_of):
    parts, written = parts_of("go_9x9", knows_komi=True), []
    GtpServer("who", parts, written.append).run(["komi 0.25", "komi 375", "komi 0.5"])
    assert [answer.rstrip()[0] for answer in written] == ["?", "?", "="]
    assert "unacceptable komi 375.0" in written[1]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("kata-analyze b allow b E5,D4 1 minmoves 9", ["E5", "D4"]),
        ("lz-analyze avoid b A9,B9 1 avoid b C9 1 maxmoves 2 interval 10 minmoves 5", ["D9", "E9"]),
        ("kata-analyze minmoves 4 maxmoves 3", ["A9", "B9", "C9"]),
        ("kata-analyze 20 minmoves 12 maxmoves 12", [f"{column}9" for column in "ABCDEFGHJ"] + ["A8", "B8", "C8"]),
        ("kata-analyze w maxmoves 1 interval 50", ["A9"]),
        ("kata-analyze allow b pass 1", ["pass"]),
    ],
)
def test_an_analysis_has_the_moves_that_were_asked_for(talk, line, shown):
    _, (answer, _) = talk("go_9x9", line, "name")
    assert re.findall(r"info move (\w+)", answer) == shown


def test_an_analysis_without_a_search_refuses_allow_and_avoid(parts_of):
    written = []
    GtpServer("who", parts_of("go_9x9", searches=False), written.append).run(["kata-analyze avoid b E5 1", "name"])
    assert "does not search" in written[0]
    assert written[1] == "= podzero who\n"


def test_a_command_that_fails_in_an_unknown_way_is_answered(parts_of, monkeypatch):
    parts, written = parts_of("go_9x9"), []

    def fail(*arguments):
        raise KeyError(7)

    monkeypatch.setattr(parts.result().search, "results", fail)
    GtpServer("who", parts, written.append).run(["1 genmove w", "2 kata-analyze", "3 showboard", "4 undo"])
    assert written[0] == "?1 genmove failed: KeyError: 7\n"
    assert written[1:3] == ["=2", ""]
    assert written[3].startswith("=3")
    assert written[4] == "?4 cannot undo\n"


def test_the_board_shows_both_colours(talk):
    _, answers = talk("go_9x9", "play b A1", "play w J9", "showboard")
    rows = answers[-1].split("\n")
    assert rows[10].split() == list("ABCDEFGHJ")
    assert (rows[1].split()[-1], rows[9].split()[:2]) == ("O", ["1", "X"])


def test_reg_genmove_leaves_the_board_alone(talk):
    parts, answers = talk("go_9x9", "reg_genmove w")
    assert answers == ["= A9"]
    assert parts.game.moves == []


def test_all_listed_commands_are_known(talk):
    _, (listed,) = talk("go_9x9", "list_commands")
    names = listed.removeprefix("= ").split("\n")
    assert {"genmove", "undo", "final_score", "time_left", "lz-analyze", "kata-analyze", "quit"} <= set(names)
    _, answers = talk("go_9x9", *(f"known_command {name}" for name in names))
    assert answers == ["= true"] * len(names)


def test_without_a_clock_the_usual_search_moves(talk):
    parts, _ = talk("go_9x9", "genmove b", "time_settings 0 1 0", "genmove w")
    assert parts.search.searched == [16, 16]


def test_the_clock_decides_how_much_is_searched(talk):
    parts, _ = talk("go_9x9", "time_settings 36000 0 0", "genmove b", "time_left w 0 0", "genmove w")
    assert parts.search.searched == [1, 4, 16, 64, 1]


def test_analysis_goes_on_until_the_next_command(parts_of):
    written, parts = [], parts_of("go_9x9")

    def lines():
        yield "1 lz-analyze b 1"
        while len(written) < 6:
            time.sleep(0.01)
        yield "2 protocol_version"

    GtpServer("who", parts, written.append).run(lines())
    assert written[0] == "=1"
    end = written.index("")
    info = (
        r"info move A9 visits 64 winrate 7500 prior \d+ lcb 7500 order 0 pv A9 info move B9 visits 62 winrate 6250 .*"
    )
    assert re.fullmatch(info, written[end - 1])
    assert written[end + 1 :] == ["=2 2\n"]
    assert parts.result().game.moves == []


def test_another_command_is_answered_before_a_long_search_ends(parts_of):
    written, parts = [], parts_of("go_9x9")
    search = parts.result().search
    search.gate.clear()

    def lines():
        yield "lz-analyze b 1"
        assert search.waits.wait(timeout=60)
        yield "protocol_version"
        deadline = time.monotonic() + 60
        while written[-1] != "= 2\n" and time.monotonic() < deadline:
            time.sleep(0.01)
        answered.append(written[-1])
        search.gate.set()

    answered = []
    GtpServer("who", parts, written.append).run(lines())
    assert answered == ["= 2\n"]
    assert "visits 64" not in "".join(written)


def test_kata_analyze_writes_fractions(parts_of):
    written = []

    def lines():
        yield "kata-analyze interval 1"
        while len(written) < 2:
            time.sleep(0.01)

    GtpServer("who", parts_of("go_9x9"), written.append).run(lines())
    assert re.match(r"info move A9 visits 1 utility 0\.5\d* winrate 0\.75\d* prior 0\.\d+ lcb .* pv A9$", written[1])


def test_other_games_have_their_own_names_of_moves(talk):
    parts, answers = talk("othello", "boardsize 8", "play b d3", "genmove w", "genmove w", "final_score", "showboard")
    assert answers[:3] == ["=", "=", "= c3"]
    assert answers[3:5] == ["? illegal move: it is black's turn", "? cannot score: the game is not over"]
    assert answers[5].split("\n")[3].split() == ["3", ".", ".", "O", "X", ".", ".", ".", "."]
    assert parts.game.names == ["d3", "c3"]


def test_the_winner_of_a_finished_game_is_named(talk):
    moves = [f"play {colour} {column}" for colour, column in zip("bwbwbwb", "dadadad", strict=True)]
    _, answers = talk("connect_four", *moves, "final_score", "genmove w")
    assert answers[-2:] == ["= B+", "? the game is over"]


@pytest.mark.parametrize(
    ("stones", "points"),
    [
        (2, "C3 G7"),
        (3, "C3 G7 C7"),
        (4, "C3 G7 C7 G3"),
        (5, "C3 G7 C7 G3 E5"),
        (6, "C3 G7 C7 G3 C5 G5"),
        (7, "C3 G7 C7 G3 C5 G5 E5"),
        (8, "C3 G7 C7 G3 C5 G5 E3 E7"),
        (9, "C3 G7 C7 G3 C5 G5 E3 E7 E5"),
    ],
)
def test_a_fixed_handicap_has_the_points_of_the_specification(talk, stones, points):
    assert talk("go_9x9", f"fixed_handicap {stones}")[1] == [f"= {points}"]
    assert len(set(handicap_squares(19, stones))) == stones
    assert handicap_squares(19, 2) == [(15, 3), (3, 15)]


def test_small_and_even_boards_have_at_most_four_stones():
    assert handicap_squares(7, 9) == handicap_squares(7, 4) == [(4, 2), (2, 4), (2, 2), (4, 4)]
    assert handicap_squares(14, 9) == [(10, 3), (3, 10), (3, 3), (10, 10)]
    assert handicap_squares(5, 2) == []


def test_a_handicap_has_room_on_a_board_where_only_passes_were_played(talk):
    parts, answers = talk("go_7x7", *["play b pass"] * 48, "fixed_handicap 4", "genmove w", "undo", "undo")
    assert answers[48:] == ["= C3 E5 C5 E3", "= A7", "=", "? cannot undo"]
    assert not parts.game.over


def test_after_a_handicap_white_moves(talk):
    parts, answers = talk("go_9x9", "place_free_handicap 2", "genmove w")
    assert answers == ["= C3 G7", "= A9"]
    assert parts.game.names == ["C3", "pass", "G7", "A9"]
    parts, _ = talk("go_9x9", "set_free_handicap A1 B1 C1", "play w D4")
    assert parts.game.names == ["A1", "pass", "B1", "pass", "C1", "D4"]


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (["play b A1", "fixed_handicap 2"], "? board not empty"),
        (["fixed_handicap 10"], "? invalid number of stones"),
        (["fixed_handicap 1"], "? invalid number of stones"),
        (["set_free_handicap C3 pass"], "? invalid handicap: 'pass' is not a point"),
        (["set_free_handicap A1"], "? syntax error: expected at least two points"),
        (["set_free_handicap A1 A1"], "? invalid handicap: 'A1' is illegal in this position"),
    ],
)
def test_a_wrong_handicap_is_refused_and_the_board_stays(talk, lines, answer):
    parts, answers = talk("go_9x9", *lines)
    assert answers[-1].startswith(answer)
    assert len(parts.game.moves) == len(lines) - 1


def test_a_game_that_stays_lost_is_resigned(parts_of):
    """Each best move of the player has the value 0.5; the third turn in a row at that value is the last."""
    written, parts = [], parts_of("go_9x9")
    lines = [
        "genmove b",
        "genmove w",
        "genmove b",
        "undo",
        "genmove b",
        "genmove b",
        "genmove b",
        "clear_board",
        "genmove b",
    ]
    GtpServer("who", parts, written.append, resign_at=0.5).run(lines)
    assert [answer.strip() for answer in written] == [
        "= A9",
        "= B9",
        "= C9",
        "=",
        "= C9",
        "= D9",
        "= resign",
        "=",
        "= A9",
    ]
    parts.result().game.restart()
    GtpServer("who", parts, written.append, resign_at=0.4).run(["genmove b"] * 4)
    assert written[-1].strip() != "= resign"


def test_all_stones_are_alive(talk):
    _, answers = talk(
        "go_9x9", "play b D4", "play w E5", "final_status_list alive", "final_status_list dead", "final_status_list",
    )  # fmt: skip
    assert sorted(answers[2].removeprefix("= ").split()) == ["D4", "E5"]
    assert answers[3:] == ["=", "? syntax error: expected alive, dead or seki"]
    assert talk("othello", "final_status_list alive")[1] == ["? othello has no dead stones"]


@pytest.fixture
def record(tmp_path):
    """Writes an SGF into a folder whose name has a space."""

    def write(text):
        (tmp_path / "my games").mkdir(exist_ok=True)
        file = tmp_path / "my games" / "g.sgf"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def test_a_game_is_loaded_up_to_a_move(talk, record):
    file = record("(;GM[1]SZ[9]KM[5.5];B[dd];W[ee];B[];W[];B[cc])")
    parts, answers = talk("go_9x9", "play b A1", f"loadsgf {file}", "final_score", "undo")
    assert answers == ["=", "= white", "= W+4.5", "="]
    assert parts.game.names == ["D6", "E5", "pass", "pass"]
    parts, answers = talk("go_9x9", f"loadsgf {file} 3", "genmove b")
    assert answers == ["= black", "= A9"]
    assert parts.game.names == ["D6", "E5", "A9"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no game"),
        ("(;GM[1]SZ[9];B[dd];W[dd])", "move 2: move 30 is illegal in this position"),
        ("(;GM[1]SZ[19];B[dd])", "its board has size 19"),
        ("(;GM[1]SZ[9]AB[aa];B[dd])", "it does not start from the empty board"),
    ],
)
def test_a_game_that_cannot_be_loaded_leaves_the_board(talk, record, text, reason):
    parts, answers = talk("go_9x9", "play b A1", f"loadsgf {record(text)}")
    assert answers[1].startswith("? cannot load file: ")
    assert reason in answers[1]
    assert parts.game.names == ["A1"]


def test_only_files_of_sgf_are_loaded(talk, tmp_path):
    _, answers = talk("go_9x9", "loadsgf", f"loadsgf {tmp_path}/none.sgf", "loadsgf x.txt 0", "loadsgf x.txt")
    assert answers[0] == "? syntax error: expected a file"
    assert "is not a file" in answers[1]
    assert answers[2] == "? syntax error: expected a move's number, not '0'"
    assert "ends in .sgf" in answers[3]


@pytest.mark.parametrize("command", ["lz-genmove_analyze", "kata-genmove_analyze"])
def test_a_move_is_played_with_the_analysis_of_its_search(talk, command):
    parts, answers = talk("go_9x9", f"7 {command} b 10 maxmoves 2", f"{command} w avoid w B9 1", "clear_cache")
    lines = answers[0].split("\n")
    assert (lines[0], lines[-1]) == ("=7", "play A9")
    assert [line.count("info move") for line in lines[1:-1]] == [2]
    assert answers[1].endswith("play C9")
    assert answers[2] == "="
    assert parts.game.names == ["A9", "C9"]


def test_a_move_that_cannot_be_analyzed_is_an_error(talk):
    won = ["play b a1", "play w b1", "play b a2", "play w b2", "play b a3"]
    _, answers = talk("tic_tac_toe", *won, "kata-genmove_analyze w")
    assert answers[-1] == "? the game is over"
    _, answers = talk("go_9x9", "lz-genmove_analyze soon", "play b pass", "play w pass", "lz-genmove_analyze b")
    assert answers[0].startswith("? 'soon' is not supported")
    # No search: the engine passes after two passes.
    assert answers[-1] == "=\nplay pass"
