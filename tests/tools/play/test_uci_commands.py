"""UCI under every command with every kind of argument, with python-chess as judge of positions and moves."""

import re

import chess
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podzero.tools.play.uci import UciServer

FENS = [
    "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1",
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w HAha - 0 1",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 99 400",
    "8/P6k/8/8/8/8/8/K7 w - -",
    "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1",
    "4k3/8/8/8/8/8/8/4K3 w - - 0 1",
    "4k3/8/8/8/8/8/8/4K2R w KQ - 0 1",
    "4k3/4R3/8/8/8/8/8/4K3 w - - 0 1",
    "4k3/8/8/8/8/8/8/4K3 b - e3 0 1",
    "8/8/8/8/8/8/8/8 w - - 0 1",
    "kK6/8/8/8/8/8/8/8 w - - 0 1",
    "kKP5/8/8/8/8/8/8/8 w - - 0 1",
]
REFUSED = (
    chess.STATUS_NO_WHITE_KING
    | chess.STATUS_NO_BLACK_KING
    | chess.STATUS_TOO_MANY_KINGS
    | chess.STATUS_PAWNS_ON_BACKRANK
    | chess.STATUS_BAD_CASTLING_RIGHTS
    | chess.STATUS_INVALID_EP_SQUARE
    | chess.STATUS_OPPOSITE_CHECK
)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=8)
numbers = st.one_of(st.integers(-3, 99).map(str), st.integers().map(str), st.sampled_from(["9" * 5000, "٣", "--5"]))
moves = st.one_of(
    st.sampled_from(["e2e4", "e7e5", "g1f3", "b8c6", "e1g1", "a7a8q", "a7a8r", "h7g6", "d2d4", "E2E4", "0000"]), words
)
changed = st.tuples(st.sampled_from(FENS), st.integers(0, 70), st.sampled_from([*"KkQqRPp/1 8-whaAHb3"])).map(
    lambda part: part[0][: part[1]] + part[2] + part[0][part[1] + 1 :]
)
starts = st.one_of(st.just("startpos"), st.sampled_from(FENS).map("fen {}".format), changed.map("fen {}".format), words)
limits = st.one_of(
    st.tuples(st.sampled_from(["nodes", "movetime", "depth", "wtime", "winc", "movestogo"]), numbers).map(" ".join),
    st.lists(moves, max_size=3).map(lambda listed: " ".join(["searchmoves", *listed])),
    st.sampled_from(["infinite", "ponder", "nodes"]),
    words,
)
options = st.tuples(
    st.sampled_from(["MultiPV", "UCI_Variant", "Ponder", "UCI_ShowWDL", "Contempt", ""]), st.one_of(numbers, words)
)
positions = st.tuples(starts, st.lists(moves, max_size=4)).map(
    lambda part: f"position {part[0]}{' moves ' if part[1] else ''}{' '.join(part[1])}"
)
lines = st.one_of(
    positions,
    positions,
    st.lists(limits, max_size=3).map(lambda listed: " ".join(["go", *listed])),
    st.just("go nodes 1"),
    options.map(lambda pair: f"setoption name {pair[0]} value {pair[1]}"),
    st.sampled_from(["uci", "isready", "ucinewgame", "stop", "ponderhit", "debug on", "register later", "setoption"]),
    words.filter(lambda text: "quit" not in text),
)


def judged(start):
    """The position that a start describes; None if it is none."""
    if start == "startpos":
        return chess.Board()
    if not start:
        return None
    name, *fields = start.split()
    if name != "fen" or len(fields) not in (4, 6):
        return None
    # python-chess wants no digit beside another, and the castling rights in their order.
    fields[0] = re.sub("[1-8]+", lambda digits: str(sum(map(int, digits[0]))), fields[0])
    fields[2] = "".join(sorted(set(fields[2].translate(str.maketrans("HAha", "KQkq")))))
    try:
        board = chess.Board(" ".join(fields))
    except ValueError:
        return None
    # python-chess drops a right without a rook in silence.
    complete = board.castling_rights.bit_count() == len(fields[2].strip("-"))
    return board if complete and not board.status() & REFUSED else None


def after(board, line):
    """The position after a line; a position that is refused is None, an illegal move keeps those before it."""
    if line.split()[:1] != ["position"]:
        return board
    told = line.split()[1:]
    at = told.index("moves") if "moves" in told else len(told)
    board = judged(" ".join(told[:at]))
    for name in told[at + 1 :]:
        legal = {} if board is None else {move.uci(): move for move in board.legal_moves}
        if name.lower() not in legal:
            break
        board.push(legal[name.lower()])
    return board


def check(parts, sent):
    written, board, known = [], chess.Board(), []
    parts.result().game.restart()

    def told():
        nonlocal board
        for line in sent:
            board = after(board, line)
            if line.split()[:1] == ["go"]:
                known.append(board and board.copy())
            yield line
        yield from ("stop", "isready")

    UciServer("who", "chess", parts, written.append).run(told())
    assert written[-1] == "readyok"
    assert not [line for line in written if " failed: " in line]
    bests = [line.split()[1] for line in written if line.startswith("bestmove")]
    assert len(bests) == len(known)
    for best, position in zip(bests, known, strict=True):
        legal = set() if position is None else {move.uci() for move in position.legal_moves}
        assert best in (legal or {"(none)"})


@pytest.fixture
def parts(parts_of):
    return parts_of("chess")


fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@fuzz
@given(sent=st.lists(lines, max_size=8))
def test_every_go_has_a_legal_move_of_the_last_position_or_none(parts, sent):
    check(parts, sent)


@pytest.mark.slow
@settings(fuzz, max_examples=2000)
@given(sent=st.lists(lines, max_size=20))
def test_thousands_of_lines_are_answered(parts, sent):
    check(parts, sent)


def test_the_judge_knows_good_and_bad_positions():
    assert [judged(f"fen {fen}") is not None for fen in FENS] == [True] * 6 + [False] * 6


def test_the_commands_tried_are_those_of_the_engine(parts):
    known = set(UciServer("who", "chess", parts, print)._commands)
    tried = {"position", "go", "uci", "isready", "ucinewgame", "stop", "ponderhit", "debug", "register", "setoption"}
    assert known == tried
