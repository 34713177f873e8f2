"""GTP under every command with every kind of argument: each is answered, and the board is that of the controller."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podzero.tools.play.gtp import GtpCommand, GtpServer

GAME, SIZE = "go_7x7", 7
COLUMNS = "ABCDEFG"
POINTS = [f"{column}{row}" for column in COLUMNS for row in range(1, SIZE + 1)]
colours = st.sampled_from(["b", "w", "B", "black", "White"])
moves = st.one_of(
    st.sampled_from(POINTS), st.sampled_from(POINTS[:9]), st.sampled_from(["pass", "pass", "PASS", "resign"])
)
numbers = st.one_of(st.integers(-2, 12), st.integers(), st.floats(), st.sampled_from(["1e999", "9" * 5000, "٣", "2.7"]))
anything = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=12)


def arguments(*parts):
    """The parts, some of which may be missing at the end, be something else, or have more after them."""
    wrong = st.lists(st.one_of(colours, moves, numbers, anything), max_size=6)
    return st.one_of(*[st.tuples(*parts)] * 5, wrong, st.tuples(*parts, anything))


keys = st.one_of(
    st.tuples(st.sampled_from(["allow", "avoid"]), colours, st.lists(moves, max_size=3).map(",".join), st.just(1)),
    st.tuples(st.sampled_from(["interval", "minmoves", "maxmoves", "ownership", ""]), numbers),
)
ARGUMENTS = {
    "play": arguments(colours, moves),
    "genmove": arguments(colours),
    "reg_genmove": arguments(colours),
    "boardsize": arguments(st.one_of(st.just(SIZE), numbers)),
    "komi": arguments(st.one_of(st.just(0.5), numbers)),
    "fixed_handicap": arguments(st.one_of(st.integers(1, 5), numbers)),
    "place_free_handicap": arguments(st.one_of(st.integers(1, 12), numbers)),
    "set_free_handicap": arguments(st.lists(moves, max_size=4).map(" ".join)),
    "known_command": arguments(anything),
    "time_settings": arguments(numbers, numbers, numbers),
    "kgs-time_settings": arguments(st.sampled_from(["none", "absolute", "byoyomi", "canadian"]), numbers, numbers),
    "time_left": arguments(colours, numbers, numbers),
    "lz-analyze": arguments(keys, keys),
    "kata-analyze": arguments(colours, keys, keys),
    "lz-genmove_analyze": arguments(colours, keys, keys),
    "kata-genmove_analyze": arguments(keys, keys),
    "final_status_list": arguments(st.sampled_from(["alive", "dead", "seki", "x"])),
    "loadsgf": arguments(anything, numbers),
    "clear_cache": arguments(),
    **{
        name: arguments()
        for name in ("clear_board", "undo", "showboard", "final_score", "protocol_version", "name", "version")
    },
    "list_commands": arguments(),
}
plays = st.builds("play {} {}".format, st.sampled_from("bw"), st.sampled_from(["pass", *POINTS[:9]] * 2 + POINTS))


def flat(part):
    return " ".join(map(flat, part)) if isinstance(part, tuple | list) else str(part)


lines = st.one_of(
    *[plays] * 6,
    *[st.sampled_from(["genmove b", "genmove w", "undo", "undo", "play b pass", "play w pass"])] * 3,
    *[st.sampled_from(list(ARGUMENTS)).flatmap(lambda name: ARGUMENTS[name].map(lambda rest: f"{name} {flat(rest)}"))]
    * 4,
    st.builds("{} {}".format, st.integers(0, 10**12), st.sampled_from(list(ARGUMENTS))),
    anything.filter(lambda text: (GtpCommand.parse(text) or ("", "", []))[1] != "quit"),
)


class Controller:
    """The stones as a controller shows them, by what it was told of the commands."""

    def __init__(self):
        self.stones, self.before = {}, []
        self.black = True
        """Whether black is to move."""

    def may(self, command):
        """Whether a command cannot be refused: nothing ends a game, and a point beside an empty one is neither suicide
        nor a ko.
        """
        name, words = command.name, command.arguments
        if name == "undo":
            return bool(self.before)
        if not words or words[0].lower() not in ("b", "w", "black", "white"):
            return False
        if name == "play" and len(words) > 1:
            point = words[1].upper()
            free = point in POINTS and point not in self.stones
            return point == "PASS" or (free and any(near not in self.stones for near in beside(point)))
        return name == "genmove"

    def hears(self, command, answer):
        name, words = command.name, command.arguments
        if name in ("clear_board", "boardsize"):
            self.stones, self.before, self.black = {}, [], True
        elif name == "undo":
            self.stones, self.black = self.before.pop()
        elif name in ("fixed_handicap", "place_free_handicap", "set_free_handicap"):
            points = answer.split() or words
            self.stones, self.before, self.black = {point.upper(): "X" for point in points}, [], False
        elif name in ("play", "genmove") or name.endswith("genmove_analyze"):
            # The last word of an analysis is its move.
            move = (answer.split()[-1] if answer else words[1]).upper()
            given = [word.lower() for word in words if word.lower() in ("b", "w", "black", "white")]
            black = given[-1].startswith("b") if given else self.black
            if move != "RESIGN":
                self.before.append((dict(self.stones), self.black))
                self.black = not black
                if move != "PASS":
                    self.places(move, "X" if black else "O")

    def places(self, point, colour):
        self.stones[point] = colour
        for near in beside(point):
            if self.stones.get(near, colour) != colour and not self.free(near):
                for taken in self.chain(near):
                    del self.stones[taken]
        assert self.free(point), "the engine accepted suicide"

    def chain(self, point):
        found, waiting = {point}, [point]
        while waiting:
            more = {near for near in beside(waiting.pop()) if self.stones.get(near) == self.stones[point]} - found
            found |= more
            waiting += more
        return found

    def free(self, point):
        return any(near not in self.stones for one in self.chain(point) for near in beside(one))


def beside(point):
    column, row = COLUMNS.index(point[0]), int(point[1:])
    for right, up in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        if 0 <= column + right < SIZE and 1 <= row + up <= SIZE:
            yield f"{COLUMNS[column + right]}{row + up}"


def shown(board):
    """The stones of an answer to `showboard`."""
    rows = [row.split() for row in board.split("\n") if re.match(r" ?\d", row)]
    cells = {f"{column}{row[0]}": cell for row in rows for column, cell in zip(COLUMNS, row[1:], strict=True)}
    assert len(cells) == SIZE**2
    return {point: cell for point, cell in cells.items() if cell != "."}


@pytest.fixture
def parts(parts_of):
    return parts_of(GAME)


def check(parts, sent):
    written, controller = [], Controller()
    parts.result().game.restart()
    GtpServer("who", parts, written.append).run([*sent, "showboard", "name"])
    answers = "\n".join(written).rstrip("\n").split("\n\n")
    commands = [command for line in sent if (command := GtpCommand.parse(line))]
    assert len(answers) == len(commands) + 2
    for command, answer in zip(commands, answers, strict=False):
        sign, number, text = re.fullmatch(r"([=?])(\d*) ?(.*)", answer, re.DOTALL).groups()
        assert number == command.number
        assert "failed: " not in text, text
        if sign == "=":
            controller.hears(command, text)
        else:
            assert not controller.may(command), (command, text)
    assert shown(answers[-2]) == controller.stones
    assert answers[-1] == "= podzero who"


fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@fuzz
@given(sent=st.lists(lines, min_size=8, max_size=16))
def test_every_command_is_answered_and_the_board_is_that_of_the_controller(parts, sent):
    check(parts, sent)


@pytest.mark.slow
@settings(fuzz, max_examples=2000)
@given(sent=st.lists(lines, min_size=10, max_size=40))
def test_thousands_of_commands_are_answered(parts, sent):
    check(parts, sent)


def test_the_commands_tried_are_those_that_the_engine_lists(parts):
    written = []
    GtpServer("who", parts, written.append).run(["list_commands"])
    assert {*ARGUMENTS, "quit"} == set(written[0].removeprefix("= ").split())
