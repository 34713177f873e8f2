"""SGF: the main lines of games in any form, and what is left out because its meaning is not certain."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sgfmill import sgf

from podzero.envs import make_env
from podzero.evaluation.games import PlayedGame
from podzero.evaluation.records import record_text, sgf_point
from podzero.tools.records.games import Fault, RecordedGame
from podzero.tools.records.sgf import read_sgf

GO = make_env("go_9x9").spec
GOOD = "(;GM[1]SZ[9]RE[B+R];B[aa])"


def read(text, spec=GO):
    """The moves and points of each game, or the kind of its fault."""
    found = list(read_sgf(text.encode() if isinstance(text, str) else text, "x", spec))
    assert [one.where for one in found] == [f"x, game {number}" for number in range(1, len(found) + 1)]
    return [one.kind if isinstance(one, Fault) else (list(one.moves), one.points) for one in found]


def test_other_games_are_named():
    (fault,) = read_sgf(GOOD.encode(), "x", make_env("chess").spec)
    assert (fault.kind, fault.reason) == ("foreign", "this SGF is of Go, not chess")


@pytest.mark.parametrize(("points", "given_up"), [(1.0, False), (0.0, True)])
@pytest.mark.parametrize(("name", "moves"), [("go_9x9", [40, 81, 0]), ("othello", [19, 64]), ("hex", [12, 121, 5, 6])])
def test_games_are_read_as_they_are_written(name, moves, points, given_up):
    env = make_env(name)
    text = record_text(env, PlayedGame("a]b", "(c;", tuple(moves), points, end="given up" if given_up else "over"))
    assert read(2 * text, env.spec) == 2 * [(moves, points)]


def test_variations_comments_and_old_forms_do_not_matter():
    text = r"""(;GM[1]SZ[9:9]RE[Draw]C[a \] ;B[zz\] (];Black[aa];W[tt](;B[ba];W[](;B[ca])(;B[da]))(;B[bb]C[worse]))"""
    assert read(text) == [([0, 81, 1, 81, 2], 0.5)]


@pytest.mark.parametrize(
    "text",
    [
        f"{GOOD}\nnice :)\n",
        f"))) (hello) {GOOD} ))) ;B[aa] )",
        f"\ufeff\0{GOOD}",
        f"From: a (b)\n\n{GOOD}\n-- \n:-) (",
        GOOD.replace("[", " \n[").replace(";", "\r\n; "),
    ],
)
def test_what_is_outside_of_games_is_ignored(text):
    assert read(text) == [([0], 1.0)]


@pytest.mark.parametrize(
    "cut",
    [
        "(;GM[1]SZ[9];B[bb];W[cc]",
        "(;GM[1]SZ[9];B[bb];W[c",
        "(;GM[1]SZ[9];B[bb]C[words (",
        "(;GM[1]SZ[9]C[\\",
        "(",
        "(;",
        "(;C",
    ],
)
@pytest.mark.parametrize("begin", ["(;GM[1]", "(;FF[4]GM[1]", "( ;\nPB[a (b)]CA[UTF-8]\nSZ[9] ", "(;SZ[9]"])
def test_a_game_that_is_cut_off_does_not_take_the_next_with_it(cut, begin):
    following = f"{begin}{'' if 'SZ' in begin else 'SZ[9]'};B[dd])"
    found = [([30], None), ([0], 1.0)]
    assert read(f"{cut}\n{following}{GOOD}") == (found if cut == "(" else ["unreadable", *found])
    assert read(f"{GOOD}{cut}") == [([0], 1.0), *["unreadable"][: len(cut) - 1]]


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        ("SZ[9:13]", "foreign"), ("SZ[13:9]", "foreign"), ("SZ[9.5]", "foreign"), ("SZ[nine]", "foreign"),
        ("SZ[19]", "foreign"), ("", "foreign"), ("SZ[9]GM[2]", "foreign"), ("SZ[9]GM[1x]", "foreign"),
        ("SZ[9]HA[2]", "foreign"), ("SZ[9]AB[cc][gg]", "foreign"), ("SZ[9]RE[Void]", "unfinished"),
        ("SZ[9]RE[B+R]RE[B+R]", "unreadable"), ("SZ[9]SZ[13]", "unreadable"), ("SZ[9]KM[0][7.5]", "unreadable"),
        ("SZ[9]RE[B+R][W+R]", "unreadable"), ("SZ[9]RE[Black?]", "unreadable"), ("SZ[9]RE[B+0]", "unreadable"),
        ("SZ[9]RE[B+R]B[bb][cc]", "unreadable"), ("SZ[9]B[bb]W[cc]", "unreadable"), ("SZ[9];KM[6.5]", "unreadable"),
        ("SZ[9]C[see B[cc] and W[dd]]", "unreadable"), ("SZ[9];[bb]", "unreadable"), ("SZ[9];b[bb]", "unreadable"),
        ("SZ[9]KM[six]", "unreadable"), ("SZ[9]KM[nan]", "unreadable"), ("SZ[9]KM[1e9]", "unreadable"),
        ("SZ[9]RE[ B+R ]", 1.0), ("SZ[9]RE[B]", 1.0), ("SZ[9]RE[w+t]", 0.0), ("SZ[9]RE[White + 0.5]", 0.0),
        ("SZ[9]RE[W+2 1/2]", 0.0), ("SZ[9]RE[0]", 0.5), ("SZ[9]RE[draw]", 0.5), ("SZ[9]RE[?]", None),
        ("SZ[9]RE[]", None), ("SZ[ 9 : 9 ]HA[0]", None),
    ],
)  # fmt: skip
def test_properties_are_read_or_the_game_is_left_out(properties, found):
    (game,) = read(f"(;{'' if 'GM' in properties else 'GM[1]'}{properties};B[aa])")
    assert game == (found if isinstance(found, str) else ([0], found))


@pytest.mark.parametrize("moves", [";W[aa]", ";B[aa];B[bb]", ";B[jj]", ";B[AA]", ";B[a]", ";B[aaa]"])
def test_moves_that_cannot_be_played_are_illegal(moves):
    assert read(f"(;GM[1]SZ[9]{moves})") == ["illegal"]


@pytest.mark.parametrize(
    ("komi", "found"),
    [
        ("KM[6.5]", 6.5),
        ("KM[0]", 0),
        ("KM[-5]", -5),
        ("KM[6,5]", 6.5),
        ("KM[375]", 375),
        ("KM[ 7. ]", 7),
        ("KM[]", None),
        ("", None),
    ],
)
def test_komi_is_read(komi, found):
    (game,) = read_sgf(f"(;GM[1]SZ[9]{komi};B[aa])".encode(), "x", GO)
    assert game.komi == found


@pytest.mark.parametrize(
    ("charset", "name"),
    [
        ("Shift_JIS", "表"), ("SJIS", "ソ十"), ("cp932", "予"),
        ("Big5", "功許蓋"), ("GBK", "俓"), ("GB2312", "俓漒"), ("gb18030", "漒"),
                ("UTF-8", "表功"), ("EUC-JP", "表"), ("ISO-8859-1", "é"), ("utf8", "é"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "text", ["CA[{0}]PB[{1}]SZ[9]KM[0.5]", "PB[{1}]SZ[9]KM[0.5]CA[{0}]", "SZ[9]KM[0.5]C[{1} \\] ( ;B\\[zz\\]]CA[{0}]"]
)
def test_names_in_the_charset_of_the_game_swallow_nothing(charset, name, text):
    codec = {"GB2312": "gbk"}.get(charset, charset)
    data = f"(;GM[1]{text.format(charset, name)}RE[B+R];B[ee]C[{name}];W[ge])".encode(codec)
    first, second = read_sgf(data + GOOD.encode(), "x", GO)
    assert (first.moves, first.points, first.komi) == ((40, 42), 1.0, 0.5)
    assert second.moves == (0,)


@pytest.mark.parametrize(("charset", "name"), [("Shift_JIS", "表"), ("Big5", "功"), ("GBK", "俓")])
def test_a_charset_is_found_behind_what_looks_like_the_end_of_the_game(charset, name):
    data = f"(;GM[1]C[{name}\\])]SZ[9]CA[{charset}];B[ee]){GOOD}".encode(charset)
    assert read(data) == [([40], None), ([0], 1.0)]


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        ("(;GM[1]PB[表]SZ[9]KM[0.5];B[ee])".encode("shift_jis"), "CA[Shift_JIS]"),
        ("(;GM[1]CA[UTF-8]PB[許]SZ[9]KM[0.5];B[ee])".encode("big5"), "not in UTF-8"),
        ("(;GM[1]SZ[9]CA[ISO-8859-1]PB[表]KM[0.5];B[ee])".encode("shift_jis"), "ISO-8859-1"),
        ("(;GM[1]SZ[9]CA[Shift_JIS]PB[名]KM[0.5];B[ee])".encode(), "Shift_JIS"),
        (b"(;GM[1]CA[klingon]SZ[9];B[ee])", "klingon"),
        (b"(;GM[1]CA[UTF-16]SZ[9];B[ee])", "UTF-16"),
        (b"(;GM[1]CA[iso-2022-jp]SZ[9];B[ee])", "iso-2022-jp"),
        (b"(;GM[1]CA[hex]SZ[9];B[ee])", "hex"),
    ],
)
def test_a_game_in_no_known_charset_is_left_out_and_asked_for_its_charset(data, asked):
    first, second = read_sgf(data + GOOD.encode(), "x", GO)
    assert first.kind == "unreadable"
    assert asked in first.reason
    assert second.moves == (0,)


CHARSETS = {"UTF-8": "é表]\\", "Shift_JIS": "表ソ能]\\[", "Big5": "功許:]", "GBK": "俓漒\\](;B", "ISO-8859-1": "é"}
OUTSIDE = ("", "\n", ":)", " ) ", "(x)", "-- \r\n", "]", "[", "SZ[9]", "\\", "(")
RESULTS = {1.0: ("B+R", "B", "b+3.5", " B+ "), 0.0: ("W+T", "W+0.5"), 0.5: ("0", "Draw"), None: ("", "?")}


def rendered(random):
    """A game in a random form as bytes, its moves, points and komi."""
    charset = random.choice(list(CHARSETS))

    def gap():
        return random.choice(("", "", "", " ", "\n", "\r\n\t"))

    def property_of(name, value):
        escaped = value.replace("\\", "\\\\").replace("]", "\\]")
        return f"{name}{gap()}[{escaped}]{gap()}"

    def comment():
        text = "".join(random.choices(CHARSETS[charset] + "a (;)", k=random.randint(0, 6)))
        return random.choice(("", property_of("C", text)))

    moves = [random.randrange(82) for _ in range(random.randint(0, 6))]
    komi, points = random.choice((None, 0.0, 6.5, -3.0, 375.0)), random.choice(list(RESULTS))
    root = [property_of("CA", charset), property_of("SZ", random.choice(("9", "9:9"))), comment()]
    root += [property_of("GM", "1")] * random.randint(0, 1) + [property_of("RE", random.choice(RESULTS[points]))]
    root += [] if komi is None else [property_of("KM", str(komi).replace(".", random.choice(".,")))]
    random.shuffle(root)
    tree = ""
    for ply, move in reversed(list(enumerate(moves))):
        colour = random.choice((("B", "Black"), ("W", "White"))[ply % 2])
        point = random.choice(("", "tt")) if move == 81 else sgf_point(GO, move, ply)
        tree = f";{gap()}{property_of(colour, point)}{comment()}{gap()}{tree}"
        if random.random() < 0.3:
            tree = f"({tree}){gap()}(;{property_of(colour, 'cc')}{comment()})"
    data = f"({gap()};{gap()}{''.join(root)}{tree})".encode(charset)
    return data, (moves, points) if moves else "unfinished", komi


def judged(data):
    """The moves of a game by sgfmill, or None if it cannot read them."""
    try:
        # In other charsets it takes second bytes for brackets.
        data.decode()
        # It knows no size with a colon.
        game = sgf.Sgf_game.from_bytes(data.replace(b"9:9", b"9"))
        plays = [node.get_move() for node in game.get_main_sequence()]
    except ValueError:
        return None
    return [81 if point is None else 9 * (8 - point[0]) + point[1] for colour, point in plays if colour]


def check_reading(random):
    games = [rendered(random) for _ in range(random.randint(1, 3))]
    data = b"".join(random.choice(OUTSIDE).encode() + data for data, _, _ in games)
    assert read(data) == [found for _, found, _ in games]
    for one in read_sgf(data, "x", GO):
        if isinstance(one, RecordedGame):
            assert one.komi == games[int(one.where.split()[-1]) - 1][2]
    if games[0][1] != "unfinished":
        assert judged(games[0][0]) in (None, games[0][1][0])


def check_damaged(random, noise):
    """A damaged game touches no other, and is read as sgfmill reads it or is left out."""
    data, _, _ = rendered(random)
    start, stop = sorted(random.choices(range(len(data) + 1), k=2))
    stop = random.choice((start, start, start + 1, stop))
    data = data[:start] + random.choice((noise, random.choice(OUTSIDE).encode(), b"")) + data[stop:]
    first, *found, last = read(GOOD.encode() + data + b"\n" + GOOD.encode())
    assert first == last == ([0], 1.0)
    if len(found) == 1 and not isinstance(found[0], str) and (moves := judged(data)) is not None:
        assert found[0][0] == moves, data


RANDOM = st.randoms(use_true_random=False)


@given(RANDOM)
def test_games_are_read_in_whatever_form_they_are_written(random):
    check_reading(random)


@given(RANDOM, st.binary(max_size=6))
def test_damaged_games_are_never_read_wrongly(random, noise):
    check_damaged(random, noise)


@pytest.mark.slow
@given(RANDOM, st.binary(max_size=20))
@settings(max_examples=5000)
def test_thousands_of_games_in_any_form_and_damaged(random, noise):
    check_reading(random)
    check_damaged(random, noise)
