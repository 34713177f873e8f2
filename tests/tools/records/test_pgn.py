"""PGN's import format: what is read however it is written, and what is left out because its meaning is not certain."""

import chess
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.envs import make_env
from podzero.envs.notation import NotationError, notation_of, state_of
from podzero.evaluation.games import PlayedGame
from podzero.evaluation.records import record_text
from podzero.tools.records.games import Fault
from podzero.tools.records.pgn import chess_action, read_pgn

CHESS = make_env("chess").spec
GARDNER = make_env("gardner_chess").spec
USUAL = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
OTHER = "rkbnrqnb/pppppppp/8/8/8/8/PPPPPPPP/RKBNRQNB w KQkq - 0 1"
BARE = USUAL.removesuffix(" 0 1")
RESULTS = {"1-0": 1.0, "0-1": 0.0, "1/2-1/2": 0.5, "½-½": 0.5, "*": None}


def read(text, spec=CHESS):
    """The moves and points of each game, or the kind of its fault."""
    data = text.encode() if isinstance(text, str) else text
    found = list(read_pgn(data, "x", spec))
    assert [one.where for one in found] == [f"x, game {number}" for number in range(1, len(found) + 1)]
    return [one.kind if isinstance(one, Fault) else (" ".join(map(str, one.moves)), one.points) for one in found]


def test_other_games_are_read_as_they_are_written():
    env = make_env("connect_four")
    games = [PlayedGame("a", "b", moves, 0.5) for moves in ((3, 3, 0), (6,))]
    assert read("\n".join(record_text(env, game) for game in games), env.spec) == [("d d a", 0.5), ("g", 0.5)]


def test_names_of_other_games_may_hold_numbers_and_parentheses():
    text = '[Variant "connect_four"]\n\n1. 4 {c} d $1\n% 1\n2. 3/off(5)!? (0,1) 3. P*5e ; c\nx(1,2)*\n'
    assert read(text, make_env("connect_four").spec) == [("4 d 3/off(5) (0,1) P*5e x(1,2)*", None)]


@pytest.mark.parametrize(
    "text",
    [
        "1. e4 {[%clk 0:03:00] a (comment} e5 $1 2.Nf3!? (2. f4 exf4 (2... d5) 3. Nf3) ; so (far\n1-0",
        "1. e4 1. ... e5 2. Nf3 1-0",
        "1.e4 {c}1... e5 2.Nf3 1-0",
        "1. e4 (1. d4)1... e5 2. Nf3 1-0",
        "1. e4!{best}e5$1$14 2. Nf3?!1-0",
        "1 e4 e5 2 Nf3 1-0",
        "1 . e4 e5 2 ... Nf3 1-0",
        "e4 e5 Nf3 1-0",
        "1.e4 1…e5 2.Nf3± 1-0",
        "1. e4 = e5 += 2. Nf3 +- -/+ 1-0",
        "% 1. d4\n1. e4 e5\n% Nc3\r\n2. Nf3 1-0",
        "1. e4+ e5# 2. Nf3++ 1-0",
        '1. e4 e.p. e5 2. Nf3 {[Variant "Chess960"]} {\n[FEN "x"]\n} 1-0',
        "1. e4 e5 2. Nf3 {" + 4000 * "a long comment\n" + "} 1-0",
        "1. e4\0 e5 \ufeff2. Nf3 1-0",
        "1. e4 e5\r2. Nf3\r1-0",
    ],
)
def test_moves_are_read_in_every_form_that_the_standard_allows(text):
    assert read(f'[Result "1-0"]\n\n{text}\n\n[Event "b"]\n\n1. d4 *\n') == [("e4 e5 Nf3", 1.0), ("d4", None)]


@pytest.mark.parametrize(
    "tag",
    [
        '[White "a "b" c"]',
        '[White-Elo "2000"]',
        '[White "a"] [Black "b"]',
        '  [White "a"]\n\t[ Black\n"b" ]',
        '[White "a\\"]',
        '[White "a\\\\\\"[x] b"]',
        '{\n[White "a"\n}',
        '% [White\n; [White "a\n[Été "x"]',
        '\ufeff[White "a"]\0',
        '[White ""]',
    ],
)
def test_no_tag_takes_those_around_it_away(tag):
    fen = f'[Variant "Chess960"]\n[FEN "{OTHER}"]'
    for tags in (f'{fen}\n{tag}\n[Result "1-0"]', f"{tag}\n{fen}", f"{fen} \n{tag}"):
        assert read(f"{tags}\n\n1. e4 e5 2. d4 d5 1-0\n\n1. e4 *") == ["foreign", ("e4", None)]
    assert read(f'[Event "a"]\n{tag}\n\n1. e4 1-0\n\n[Event "b"]\n\n1. d4 *') == [("e4", 1.0), ("d4", None)]


@pytest.mark.parametrize(
    "text",
    [
        '[White "a]\n[Variant "Chess960"]\n\n1. e4 1-0',
        '[Variant "Chess960]\n\n1. e4 1-0',
        '[Vari\0ant "Chess960"]\n\n1. e4 1-0',
        "[Variant Chess960]\n1. e4 1-0",
        f'[FEN "{OTHER}"]\n\n[White "a"]\n\n1. e4 1-0',
        f'[FEN "{OTHER}"]\n[FEN "{USUAL}"]\n\n1. e4 1-0',
        "1. e4 (1. d4 1-0",
        "1. e4 (1. d4) e5) 1-0",
        "1. e4 [%clk 0:01] e5 1-0",
        '1. e4 [White "x"] e5 1-0',
        "1. e4 {no end 1-0",
        '1. e4 {no end 1-0\n\n[Event "c"]\n\n1. d4 {end} 1-0',
    ],
)
def test_a_game_with_a_doubtful_tag_comment_or_variation_is_left_out_alone(text):
    found = read(f'[Event "a"]\n\n1. c4 1-0\n\n{text}\n\n[Event "b"]\n\n1. c4 1-0\n')
    assert found[:2] == [("c4", 1.0), "unreadable"]
    assert found[2:] == [("d4", 1.0)] * ("[Event" in text) + [("c4", 1.0)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[Event "a"]\n[Result "0-1"]\n\n[Event "b"]\n\n1. e4 1-0', ["unfinished", ("e4", 1.0)]),
        (f'[Event "a"]\n[FEN "{OTHER}"]\n\n*\n\n[Event "b"]\n\n1. e4 1-0', ["foreign", ("e4", 1.0)]),
        ('[White "a"]\n[Result "0-1"]\n\n\n[White "b"]\n\n1. e4 *', ["unfinished", ("e4", None)]),
        ('[Event "a"]\n[Result "0-1"]\n\n0-1\n\n1. e4 *', ["unfinished", ("e4", None)]),
        ('[Event "a"]\n[Result "0-1"]\n\n{forfeit}\n\n[Event "b"]\n\n1. e4 *', ["unfinished", ("e4", None)]),
        ('[Event "a"]\n\n1. e4\n[Event "b"]\n[Result "1-0"]\n\n1. d4', [("e4", None), ("d4", 1.0)]),
        ("1. e4 1-0 1. d4 0-1\n1. c4", [("e4", 1.0), ("d4", 0.0), ("c4", None)]),
        ("", []),
        ("\ufeff \r\n\0", []),
    ],
)
def test_games_are_divided(text, found):
    assert read(text) == found


@pytest.mark.parametrize(
    ("tag", "end", "found"),
    [
        ("1-0", "0-1", "wrong result"),
        ("0-1", "1/2-1/2", "wrong result"),
        ("*", "1-0", "wrong result"),
        ("1-0", "*", "wrong result"),
        ("0-0", "1-0", "wrong result"),
        ("forfeit", "", "wrong result"),
        ("1-0", "", 1.0),
        ("1/2", "½-½", 0.5),
        ("?", "0-1", 0.0),
        ("", "", None),
    ],
)
def test_the_result_is_that_of_the_tag_and_of_the_end_of_the_moves(tag, end, found):
    (one,) = read(f'[Result "{tag}"]\n\n1. e4 {end}')
    assert one == (found if found == "wrong result" else ("e4", found))


@pytest.mark.parametrize(
    ("tags", "foreign"),
    [
        ('[Variant "Chess960"]', True),
        ('[variant "crazyhouse"]', True),
        ('[Rules "antichess"]', True),
        ('[Event "FICS rated suicide game"]', True),
        ('[Event "Live Chess - Chess960"]', True),
        ('[Event "FICS rated wild/fr game"]', True),
        ('[Event "Rated Crazyhouse game"]', True),
        ('[FEN "8/8/8/8/8/8/k7/7K w - - 0 1"]', True),
        (f'[FEN "{USUAL.swapcase().replace("W", "w")}"]', True),
        (f'[FEN "{USUAL.replace("w", "b")}"]', True),
        (f'[Variant "Atomic"]\n[FEN "{USUAL}"]', True),
        (f'[Setup "1"]\n[fen "{OTHER}"]', True),
        ('[SetUp "1"]', True),
        ('[Variant "Gardner"]\n[FEN "rnbqk/ppppp/5/PPPPP/RNBQK w - - 0 1"]', True),
        ('[Variant "Standard"]', False),
        ('[Variant "normal"]\n[Event "Atomic Open"]', False),
        ('[SetUp "0"]', False),
        ('[Event "Leipzig 1960, Wild Card"]', False),
        (f'[SetUp "1"]\n[FEN "{USUAL}"]', False),
        (f'[FEN "{BARE}"]', False),
        (f'[Variant "Chess960"]\n[FEN "{USUAL}"]', False),
        (f'[Variant "From Position"]\n[FEN "{BARE.replace("KQkq", "HAha")}"]', False),
    ],
)
def test_variants_and_other_positions_are_left_out(tags, foreign):
    assert read(f'{tags}\n\n1. e4 1-0\n\n[Event "x"]\n\n1. e4 1-0\n') == [
        "foreign" if foreign else ("e4", 1.0),
        ("e4", 1.0),
    ]


def test_the_start_of_the_game_itself_is_not_another_position():
    text = '[Variant "Gardner"]\n[SetUp "1"]\n[FEN "rnbqk/ppppp/5/PPPPP/RNBQK w - - 0 1"]\n\n1. c3 1-0\n'
    assert read(text, GARDNER) == [("c3", 1.0)]
    assert read("1. c3 1-0", GARDNER) == ["foreign"]


def spellings(board, move):
    """The names of a legal move that the import format allows."""
    san, origin, target = (
        board.san(move).rstrip("+#"),
        chess.square_name(move.from_square),
        chess.square_name(move.to_square),
    )
    if board.is_castling(move):
        return [san, san.replace("O", "0"), move.uci()]
    piece, takes = board.piece_at(move.from_square).symbol().upper().replace("P", ""), board.is_capture(move)
    promoted = chess.piece_symbol(move.promotion) if move.promotion else ""
    names = [
        san,
        san.replace("=", ""),
        move.uci(),
        f"{piece}{origin}{'x' if takes else '-'}{target}{promoted and '='}{promoted.upper()}",
    ]
    if not piece:
        names += [f"P{san}", san.replace("=", "/")]
    return [*names, *(f"{san}{ending}" for ending in ("ep", "e.p.") if board.is_en_passant(move))]


def played(random, plies):
    """The moves of a random game with the board before each; takes en passant, promotes and castles when it can."""
    board = chess.Board()
    while len(board.move_stack) < plies and (moves := list(board.legal_moves)):
        rare = [move for move in moves if move.promotion or board.is_en_passant(move) or board.is_castling(move)]
        move = random.choice(rare or moves)
        yield board, move
        board.push(move)


GAPS = (
    " ", "\n", "\r\n", "\t ", " $1 ", " {a ] } ", "{\n(1. d4 1-0\n[Event \"x\"]\n}", " (1. d4 {)} (2. x) $1 *) ",
    " ; 1-0 (\n", "\n% 1-0 {\n", " = ", " +- ", " ± ", " \ufeff", "!! ", "?! ", "+ ", "#\n", "\0 ",
)  # fmt: skip
NUMBERS = ("", "{}.", "{}. ", "{} ", "{} . ", "{}... ", "{}. ... ", "{} … ")
VALUES = ("", "a", "a b", 'a "b" c', "\\", "a\\\\", '[x] \\"', "{;%(", "名", "1-0", "1. e4")


def written(random):
    """A game in a random form, its moves as spelled, and the points."""
    names = [random.choice(spellings(board, move)) for board, move in played(random, random.randint(0, 8))]
    end = random.choice(list(RESULTS))
    result = end.replace("½-½", "1/2-1/2")
    tags = [("Event", random.choice(VALUES)), *((f"X-{n}", random.choice(VALUES)) for n in range(random.randint(0, 3)))]
    tags += random.choice([[], [("Result", result)], [("Result", "?"), ("Variant", "normal")], [("FEN", BARE)]])
    pairs = [random.choice(('[{} "{}"]', '[ {}\t"{}" ]', '[{}\n"{}"\n]')).format(*tag) for tag in tags]
    moves = "".join(
        random.choice(NUMBERS).format(ply // 2 + 1) + name + random.choice(GAPS) for ply, name in enumerate(names)
    )
    # Without its end a game ends where a line begins with a tag.
    ended = end if random.random() < 0.8 or not names else ""
    known = RESULTS[end] if ended or ("Result", result) in tags else None
    if not names and random.random() < 0.5:
        ended = ""
    breaks = [random.choice(("\n", "\r\n", " ", "\n  ", "")) for _ in pairs[1:]]
    section = pairs[0] + "".join(gap + pair for gap, pair in zip(breaks, pairs[1:], strict=True))
    return f"{section}\n\n{moves}{ended}\n\n", (" ".join(names), known) if names else "unfinished"


def check_reading(random):
    games = [written(random) for _ in range(random.randint(1, 3))]
    assert read("".join(text for text, _ in games)) == [found for _, found in games]


def check_naming(random):
    """Every spelling names the move that python-chess plays, and those of no legal move are refused."""
    notation = notation_of(CHESS)
    *_, (board, _) = played(random, random.randint(1, 60))
    board.pop()
    state = state_of(board.fen(), 8)
    legal = np.zeros(CHESS.num_actions, bool)
    legal[[notation.action(state, one.uci()) for one in board.legal_moves]] = True
    for one in random.sample(list(board.legal_moves), min(4, board.legal_moves.count())):
        for name in spellings(board, one):
            assert notation.name(state, chess_action(notation, state, legal, name)) == one.uci(), name
    name = (
        "".join(random.choice(("", *"PKQRBN", *"abh", *"128"))) + random.choice("abcdefgh") + random.choice("12345678")
    )
    try:
        expected = board.parse_san(name.removeprefix("P")).uci()
    except ValueError:
        with pytest.raises(NotationError):
            chess_action(notation, state, legal, name)
    else:
        assert notation.name(state, chess_action(notation, state, legal, name)) == expected


RANDOM = st.randoms(use_true_random=False)


@given(RANDOM)
def test_games_are_read_in_whatever_form_they_are_written(random):
    check_reading(random)


@given(RANDOM)
@settings(max_examples=30)
def test_moves_are_named_in_every_notation(random):
    check_naming(random)


@given(st.text(st.sampled_from('[]{}();%$.*"\\\n\r\0\ufeff eO0-1/2½x=+!'), max_size=60) | st.binary(max_size=60))
def test_whatever_a_file_holds_the_games_around_it_are_read(noise):
    check_noise(noise)


def check_noise(noise):
    """Noise is no game, or it is one or more of their own; a game before it that has ended is not touched."""
    noise = noise if isinstance(noise, bytes) else noise.encode()
    found = read(b"1. e4 e5 1-0\n" + noise)
    assert found[0] == ("e4 e5", 1.0)
    for spec in (GARDNER, make_env("connect_four").spec):
        read(noise, spec)


@pytest.mark.slow
@given(RANDOM, st.binary(max_size=300))
@settings(max_examples=3000)
def test_thousands_of_games_are_read_in_whatever_form_they_are_written(random, noise):
    check_reading(random)
    check_noise(noise)


@pytest.mark.slow
@given(RANDOM)
@settings(max_examples=1000)
def test_thousands_of_moves_are_named_in_every_notation(random):
    check_naming(random)
