"""The UCI engine: transcripts of the protocol, in chess and Gardner's chess."""

import re
import threading
import time

import pytest

from podzero.envs.notation import white_to_move
from podzero.evaluation.records import centipawns
from podzero.tools.play.uci import UciServer

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"


@pytest.fixture
def talk(parts_of):
    """Sends lines to an engine; returns its parts and its answers. A number in place of a line waits for as many."""

    def run(*lines, game="gardner_chess"):
        parts, written = parts_of(game), []

        def sent():
            for line in lines:
                if isinstance(line, int):
                    deadline = time.monotonic() + 60
                    while sum(said.startswith("bestmove") for said in written) < line and time.monotonic() < deadline:
                        time.sleep(0.01)
                else:
                    yield line

        UciServer("who", game, parts, written.append).run(sent())
        return parts.result(), written

    return run


def test_an_engine_introduces_itself_before_it_is_ready(talk):
    _, answers = talk("uci", "isready", "quit", game="chess")
    assert answers[0] == "id name podzero who"
    assert answers[-2:] == ["uciok", "readyok"]
    assert "option name MultiPV type spin default 1 min 1 max 218" in answers
    assert not any("UCI_Variant" in line for line in answers)


def test_a_variant_is_named(talk):
    _, answers = talk("uci", "setoption name UCI_Variant value gardner", "quit")
    assert answers[-2:] == ["option name UCI_Variant type combo default gardner var gardner", "uciok"]


def test_a_move_with_its_score_and_line(talk):
    _, answers = talk("ucinewgame", "position startpos moves b2b3", "go", 1, "quit")
    assert re.fullmatch(
        r"info depth 1 multipv 1 score cp 89 nodes 16 nps \d+ time \d+ pv (\w{4,5})\nbestmove \1", "\n".join(answers)
    )


def test_several_lines_are_shown_in_the_order_of_their_visits(talk):
    _, answers = talk("setoption name MultiPV value 3", "position startpos", "go nodes 20", 1)
    found = [re.search(r"multipv (\d) score cp (-?\d+) .* pv (\w+)", line).groups() for line in answers[:-1]]
    assert [number for number, _, _ in found] == ["1", "2", "3"]
    assert [score for _, score, _ in found] == ["89", "37", "0"]
    assert len({move for _, _, move in found}) == 3


def test_limits_choose_how_much_is_searched(talk):
    parts, _ = talk(
        "position startpos", "go nodes 63", 1, "go nodes 1000000", 2, "go nodes 0", 3, "go movetime 60000", 4,
        "go movetime 1", 5, "go wtime 1000 btime 3600000", 6, "go depth 3", 7,
    )  # fmt: skip
    assert parts.search.searched[:8] == [16, 64, 1, 1, 4, 16, 64, 1]
    assert parts.search.searched[-1] == 16


def test_the_clock_of_the_player_to_move_counts(talk):
    parts, _ = talk("position startpos moves b2b3", "go wtime 3600000 btime 1", 1)
    assert parts.search.searched == [1]


def test_an_endless_search_ends_with_stop(talk):
    parts, answers = talk("position startpos", "go infinite", "isready", "stop", "quit")
    assert sum(line.startswith("bestmove") for line in answers) == 1
    assert "readyok" in answers
    assert parts.search.searched == [1, 4, 16, 64][: len(parts.search.searched)]


def stopped(search):
    """Lines that begin an endless search, and stop it while its last search waits for the gate."""
    search.gate.clear()
    yield "go infinite"
    assert search.waits.wait(timeout=60)
    yield "stop"


def test_stop_is_answered_before_a_long_search_ends(parts_of):
    parts, written = parts_of("gardner_chess"), []
    search = parts.result().search

    def sent():
        yield from stopped(search)
        assert written[-1].startswith("bestmove ")
        assert search.searched == [1, 4, 16]
        search.gate.set()
        yield "go nodes 1"

    UciServer("who", "gardner_chess", parts, written.append).run(sent())
    assert search.searched == [1, 4, 16, 64, 1]


def test_a_clock_runs_while_the_search_that_was_stopped_ends(parts_of):
    parts = parts_of("gardner_chess")
    search = parts.result().search

    def sent():
        yield from stopped(search)
        threading.Timer(0.5, search.gate.set).start()
        yield "go movetime 400"

    UciServer("who", "gardner_chess", parts, [].append).run(sent())
    assert search.searched[3:] == [64, 1]  # nothing is left of the 400 ms


def test_a_search_that_fails_is_told_and_the_engine_goes_on(parts_of, monkeypatch):
    parts, written = parts_of("gardner_chess"), []

    def fail(*arguments):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(parts.result().search, "results", fail)
    UciServer("who", "gardner_chess", parts, written.append).run(["go", "stop", "isready"])
    assert written == ["info string go failed: RuntimeError: out of memory", "bestmove (none)", "readyok"]


def test_a_command_that_fails_is_told_and_the_engine_goes_on(parts_of, monkeypatch):
    parts, written = parts_of("gardner_chess"), []
    monkeypatch.setattr(parts.result().game, "restart", lambda *_, **__: {}[7])
    lines = ["position fen rnbqk/ppppp/5/PPPPP/RNBQK b - - 0 1", "go", "stop"]
    UciServer("who", "gardner_chess", parts, written.append).run(lines)
    assert written[0] == "info string position failed: KeyError: 7"
    assert written[-1] == "bestmove (none)"


@pytest.mark.parametrize(
    ("fen", "move"),
    [
        ("4k3/8/8/8/8/8/8/R3K2R w HA - 0 1", "e1g1"),
        ("4k3/8/8/8/8/8/8/R3K2R w A - 0 1", "e1c1"),
        ("r3k2r/8/8/8/8/8/8/4K3 b ha - 0 1", "e8c8"),
    ],
)
def test_castling_rights_by_the_file_of_the_rook(talk, fen, move):
    _, answers = talk(f"position fen {fen}", f"go searchmoves {move} nodes 1", 1, game="chess")
    assert answers[-1] == f"bestmove {move}"


@pytest.mark.parametrize(
    ("fen", "words"),
    [
        ("8/8/8/8/8/8/8/8 w - - 0 1", "each player must have one king"),
        ("4k3/8/8/8/8/8/8/4K2R w KQ - 0 1", "castling 'Q': no king on e1 or rook on a1"),
        ("4k2r/8/8/8/8/8/8/4K3 w q - 0 1", "castling 'q': no king on e8 or rook on a8"),
        ("bqnb1rkr/pp3ppp/3ppn2/2p5/5P2/P2P4/NPP1P1PP/BQ1BNRKR w HFhf - 2 9", "castling 'H': no king on e1"),
        ("r3k2r/8/8/8/8/8/8/R3K2R w KB - 0 1", "castling 'B': expected - or letters of KQkq (HAha)"),
        ("4k3/8/8/8/8/8/8/4K3 w - e6 0 1", "no pawn has just passed over e6"),
        ("4k3/4R3/8/8/8/8/8/4K3 w - - 0 1", "the player to move could take the king on e8"),
        ("rubbish", "is not a FEN"),
    ],
)
def test_after_a_refused_position_no_move_is_made_until_there_is_one(talk, fen, words):
    _, answers = talk("position startpos", f"position fen {fen}", "go nodes 8", 1, game="chess")
    assert words in answers[0]
    assert answers[1:] == ["info string go: no position: the last one was refused", "bestmove (none)"]
    _, answers = talk(f"position fen {fen}", "position startpos moves e2e4", "go nodes 1", 1, game="chess")
    assert re.fullmatch("bestmove [a-h][78][a-h][56]", answers[-1])


def test_a_position_is_refused_whole_or_up_to_an_illegal_move(talk):
    parts, answers = talk("position startpos moves b2b3 b2b3", "go nodes 1", 1)
    assert answers[-1] != "bestmove (none)"
    assert parts.game.names == ["b2b3"]


def test_an_endless_search_shows_growing_searches(parts_of):
    parts, written, stop = parts_of("gardner_chess"), [], threading.Event()

    def sent():
        yield "go infinite"
        while sum("nodes 64" in line for line in written) == 0:
            time.sleep(0.01)
        assert not any(line.startswith("bestmove") for line in written)
        stop.set()
        yield "stop"

    UciServer("who", "gardner_chess", parts, written.append).run(sent())
    assert stop.is_set()
    assert [int(re.search(r"nodes (\d+)", line)[1]) for line in written[:-1]] == [1, 4, 16, 64]


def test_pondering_goes_on_by_the_clock_once_the_expected_move_is_played(parts_of):
    parts, written = parts_of("gardner_chess"), []

    def sent():
        yield "setoption name Ponder value true"
        yield "position startpos moves b2b3"
        yield "go ponder wtime 1 btime 3600000"
        while sum("nodes 64" in line for line in written) == 0:
            time.sleep(0.01)
        assert not any(line.startswith("bestmove") for line in written)
        yield "ponderhit"
        while not written[-1].startswith("bestmove"):
            time.sleep(0.01)

    UciServer("who", "gardner_chess", parts, written.append).run(sent())
    assert len(written) == 5


@pytest.mark.parametrize("clock", ["", " movetime 1"])
def test_pondering_without_time_ends_when_the_expected_move_is_played(parts_of, clock):
    parts, written = parts_of("gardner_chess"), []
    search = parts.result().search
    search.gate.clear()

    def sent():
        yield f"go ponder{clock}"
        assert search.waits.wait(timeout=60)
        yield "ponderhit"
        while not written[-1].startswith("bestmove"):
            time.sleep(0.01)
        search.gate.set()

    UciServer("who", "gardner_chess", parts, written.append).run(sent())
    assert search.searched[:3] == [1, 4, 16]


def test_the_expected_reply_is_said_where_the_other_program_ponders(talk):
    _, answers = talk("setoption name Ponder value true", "position startpos", "go nodes 20", 1)
    assert answers[-1].startswith("bestmove ")
    pv = re.search(r" pv (.*)", answers[-2])[1].split()
    assert answers[-1].split()[1::2] == pv[: 2 if len(pv) > 1 else 1]


def test_chances_of_winning_are_shown_where_they_are_asked_for(talk):
    _, answers = talk("setoption name UCI_ShowWDL value true", "position startpos moves b2b3", "go", 1)
    # A value of 0.5 is 750 wins in 1,000 games, with draws as half wins: 90 tan(1.56 * 0.5) = 89 centipawns.
    assert " score cp 89 wdl 750 0 250 nodes " in answers[-2]


def test_searched_moves_can_be_chosen(talk):
    _, answers = talk("position startpos", "go searchmoves c2c3 d2d3", 1, "go searchmoves e9e9", 2)
    assert answers[1] == "bestmove c2c3"
    assert answers[2].startswith("info string searchmoves: 'e9e9' is not a move")


def test_the_number_of_simulations_is_an_option(talk):
    parts, _ = talk("setoption name Simulations value 4", "isready", "go nodes 1000", 1, "go", 2)
    assert parts.search.searched[-2:] == [4, 4]
    parts, _ = talk(
        "setoption name Simulations value 4", "isready", "setoption name Simulations value 0", "isready",
        "go nodes 1000", 1, "go", 2,
    )  # fmt: skip
    assert parts.search.searched[-2:] == [64, 16]


def test_chess_starts_from_a_fen_and_promotes(talk):
    parts, _ = talk("position fen 8/P6k/8/8/8/8/8/K7 w - - 0 40 moves a7a8r h7g6", "go nodes 1", 1, game="chess")
    assert parts.game.names == ["a7a8r", "h7g6"]
    assert white_to_move(parts.game.state)


@pytest.mark.parametrize(
    "position",
    [
        "fen 8/P6k/8/8/8/8/8/K7 w - - 0 40 moves a7a8n h7g6",
        "startpos moves" + 2 * " g1f3 g8f6 f3g1 f6g8" + " g1f3 g8f6",
        "fen 4k3/8/8/8/8/8/8/R3K3 w Q - 99 300 moves e1d1 e8e7",
    ],
)
def test_a_game_that_podzero_would_end_as_drawn_goes_on(talk, position):
    """No mate is possible; a position occurs for the third time; 100 plies without progress."""
    parts, answers = talk(f"position {position}", "go nodes 1", 1, game="chess")
    assert not [line for line in answers if line.startswith("info string")]
    assert re.fullmatch("bestmove [a-h][1-8][a-h][1-8]", answers[-1])
    assert parts.game.names[-2:] == position.split()[-2:]


def test_black_moves_first_after_a_fen(talk):
    fen = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1"
    parts, answers = talk(f"position fen {fen}", "go movetime 1", 1, game="chess")
    assert answers[-1] == "bestmove a7a6" or re.fullmatch(r"bestmove [a-h][78][a-h][56]", answers[-1])
    assert not white_to_move(parts.game.state)


def test_a_mated_player_has_no_move(talk):
    _, answers = talk("position startpos moves f2f3 e7e5 g2g4 d8h4", "go infinite", "stop", game="chess")
    assert answers == ["bestmove (none)"]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("dance", "info string unknown command: dance"),
        ("position", "info string position: expected startpos or fen, not ''"),
        ("position start", "info string position: expected startpos or fen, not 'start'"),
        ("position fen 8/8 w - - 0 1", "info string position: '8/8' does not describe 5 ranks of 5 squares"),
        ("position startpos moves b2b3 z9z9", "info string position: 'z9z9' is not a move of gardner_chess in this"),
        ("position startpos moves b2b4", "info string position: 'b2b4' is illegal in this position"),
        ("position startpos moves a1a2", "info string position: 'a1a2' is illegal in this position"),
        ("setoption name Contempt value 3", "info string no such option: Contempt"),
        ("setoption name MultiPV value many", "info string MultiPV: expected a number from 1 to 218, not 'many'"),
        ("setoption name MultiPV value 0", "info string MultiPV: expected a number from 1 to 218, not '0'"),
        ("setoption", "info string no such option: "),
        ("setoption name MultiPV value " + "9" * 5000, "info string MultiPV: expected a number from 1 to 218"),
        ("setoption name MultiPV value ²", "info string MultiPV: expected a number from 1 to 218, not '²'"),
    ],
)
def test_mistakes_are_told_and_the_next_command_works(talk, line, answer):
    _, answers = talk(line, "isready")
    assert answers[0].startswith(answer)
    assert answers[1:] == ["readyok"]


def test_unknown_words_before_a_command_are_skipped(talk):
    _, answers = talk("joho isready")
    assert answers == ["info string unknown command: joho", "readyok"]


def test_unknown_limits_are_told_and_the_search_goes_on(talk):
    _, answers = talk("go sideways wtime soon", 1)
    assert answers[0] == "info string go: not understood: sideways wtime soon"
    assert answers[-1].startswith("bestmove ")


def test_the_end_of_the_input_ends_a_search_with_its_move(talk):
    _, answers = talk("position startpos", "go infinite")
    assert answers[-1].startswith("bestmove ")


def test_the_next_position_of_a_game_plays_only_what_is_new(talk):
    parts, _ = talk("position startpos moves b2b3", "position startpos moves b2b3 b4b3", "position startpos moves c2c3")
    assert parts.game.names == ["c2c3"]


def test_scores_are_finite_and_grow_with_the_value():
    scores = [centipawns(value) for value in (-1, -0.5, 0, 0.5, 1)]
    assert scores == sorted(scores)
    assert scores[2] == 0
    assert scores[0] == -scores[-1]
