"""Engines as players: those that fail forfeit and are replaced, and the real ones finish their games."""

import os
import shlex
import shutil
import sys
import time
from collections import OrderedDict
from contextlib import closing
from functools import cache
from itertools import chain
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import ChanceGameConfig
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.envs.boards.backgammon import START
from podzero.envs.notation import notation_of
from podzero.evaluation import engines
from podzero.evaluation.arena import Arena
from podzero.evaluation.engines import (
    LONGEST_LINE,
    WAITING_LINES,
    EngineContestant,
    EngineFailed,
    GnubgEngine,
    GtpAnswer,
    GtpEngine,
    LineProcess,
    UciEngine,
    UciOption,
    UciPosition,
    board_after,
)
from podzero.evaluation.games import match_result
from podzero.evaluation.players import GIVES_UP, RandomPlayer, Turn
from podzero.evaluation.resolve import resolve
from podzero.evaluation.tournament import Tournament, TournamentFiles, TournamentSettings
from podzero.files import players

FAKE = str(Path(__file__).parents[1] / "fakes" / "fake_engine.py")


@pytest.mark.parametrize(
    "answer", [GtpAnswer("", ""), GtpAnswer("12", "D4"), GtpAnswer("1", "a\nb"), GtpAnswer("", "no", failed=True)]
)
def test_a_controller_reads_the_answer_that_an_engine_writes(answer):
    *lines, end = str(answer).split("\n")
    assert end == ""  # with the end of the line that is sent, an empty line ends the answer
    assert GtpAnswer.parse(lines) == answer


@pytest.mark.parametrize(
    "command", [UciPosition("startpos", []), UciPosition("fen 8/8 w", ["e2e4", "e7e5"]), UciOption("Skill Level", "3")]
)
def test_an_engine_reads_the_arguments_that_a_controller_writes(command):
    assert type(command).parse(str(command).split()) == command


@pytest.fixture(scope="module")
def env():
    return make_env("tic_tac_toe")


@pytest.fixture(scope="module")
def arena(env):
    return Arena(env)


@pytest.fixture
def fake(env, tmp_path):
    """Makes a contestant of one process that misbehaves once; it lists the processes that were started."""
    made = []

    def make(behaviour):
        command = (sys.executable, FAKE, "gtp", behaviour, str(tmp_path / "marker"))
        pids = []

        def start():
            engine = GtpEngine(command, notation_of(env.spec), ())
            pids.append(engine.pid)
            return engine

        contestant = EngineContestant("fake", start, processes=1)
        made.append(contestant)
        return contestant, pids

    yield make
    for contestant in made:
        contestant.close()


def program(name):
    """Skips a test without the program, unless it must be there."""
    if shutil.which(name, path=os.pathsep.join([os.environ["PATH"], "/usr/games"])) is None:
        missing = f"the program {name} is not installed: apt-get install {players.ENGINES[name].package}"
        pytest.fail(missing) if os.environ.get("PODZERO_ENGINES") == "required" else pytest.skip(missing)


@cache
def compiled(game):
    env = make_env(ChanceGameConfig(name=game) if game == "backgammon" else game)
    return jax.jit(env.init), jax.jit(env.step), jax.jit(env.view)


def turn_after(env, moves):
    """The position after some named moves, as an engine gets it."""
    notation, (init, step, view) = notation_of(env.spec), compiled(env.spec.name)
    state, actions = init(jax.random.key(0)), []
    for move in moves:
        actions.append(notation.action(state, move))
        state = step(state, jnp.int32(actions[-1]))
    state = jax.device_get(state)
    return Turn(tuple(actions), state, np.asarray(view(state).legal))


def test_an_engine_plays_whole_games_of_which_all_moves_are_known(env, arena, fake):
    contestant, pids = fake("behaves")
    pairs = arena.pairs(RandomPlayer(env), contestant, 3, jax.random.key(0))
    games = list(chain.from_iterable(pairs))
    init, step, view = map(jax.jit, (env.init, env.step, env.view))
    assert len(pids) == 1
    assert not any(game.end == "given up" for game in games)
    assert [(game.first, game.second) for game in games] == [("random", "fake"), ("fake", "random")] * 3
    for game in games:
        assert len(set(game.moves)) == len(game.moves)
        state = init(jax.random.key(0))
        for action in game.moves:
            state = step(state, np.int32(action))
        seen = jax.device_get(view(state))
        assert seen.done
        opener = float(-seen.rewards[state.current_player]) * (1 if len(game.moves) % 2 else -1)
        assert game.points == 0.5 + 0.5 * opener


@pytest.mark.parametrize("behaviour", ["hangs", "crashes", "chatters", "nonsense", "illegal"])
def test_an_engine_that_fails_forfeits_one_game_and_is_restarted(env, arena, fake, behaviour, caplog, monkeypatch):
    if behaviour in ("hangs", "chatters"):
        monkeypatch.setattr(engines, "MOVE_TIMEOUT_S", 3.0)
    contestant, pids = fake(behaviour)
    games = list(chain.from_iterable(arena.pairs(RandomPlayer(env), contestant, 4, jax.random.key(1))))
    lost = [game for game in games if game.end == "given up"]
    assert [(game.first, game.points) in (("random", 1.0), ("fake", 0.0)) for game in lost] == [True]
    assert all(len(game.moves) >= 5 for game in games if game.end != "given up")
    assert len(pids) == 2
    (line,) = [record.getMessage() for record in caplog.records if "forfeits" in record.getMessage()]
    assert line.startswith(f"fake forfeits a game at ply {len(lost[0].moves) + 1}: ")


def test_an_engine_that_resigns_loses_without_a_fault(env, arena, fake, caplog):
    contestant, pids = fake("resigns")
    pairs = arena.pairs(RandomPlayer(env), contestant, 2, jax.random.key(2))
    assert match_result(pairs) == (4, 0, 0)
    assert all(game.end == "given up" for game in chain.from_iterable(pairs))
    assert len(pids) == 1
    assert not caplog.records


def test_two_engines_play_each_other(arena, fake):
    first, second = fake("behaves")[0], fake("behaves")[0]
    assert match_result(arena.pairs(first, second, 3, jax.random.key(0))).games == 6


def test_a_line_without_end_does_not_fill_the_memory(tmp_path):
    """The program waits while enough of what it wrote has not been asked for."""
    written = tmp_path / "written"
    script = (
        f"import sys; count = open({str(written)!r}, 'ab', 0)\n"
        f"while True: sys.stdout.write('x' * {LONGEST_LINE}); sys.stdout.flush(); count.write(b'.')"
    )
    process = LineProcess((sys.executable, "-c", script))
    deadline = time.monotonic() + 60.0
    while not written.exists() or written.stat().st_size < WAITING_LINES:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    assert written.stat().st_size <= WAITING_LINES + 5  # a few are in the pipe
    assert len(next(process.answer("go"))) <= LONGEST_LINE
    process.close()


def test_the_message_of_an_engine_that_ends_quotes_its_last_words(tmp_path, env):
    engine = GtpEngine((sys.executable, FAKE, "gtp", "crashes", str(tmp_path / "m")), notation_of(env.spec), ())
    with pytest.raises(EngineFailed, match=r"ended \(1\).*out of paper"):
        engine.best(turn_after(env, []))


def test_an_engine_of_othello_is_not_told_of_passes(tmp_path):
    """White has no other move at the end. gtp-rhino refuses to hear of it."""
    program("gtp-rhino")
    env = make_env("othello")
    contestant = resolve("gtp-rhino:1", env)
    turn = turn_after(env, ["c4", "c3", "c2", "d6", "c6", "b2", "e6", "c1", "a1", "a3", "pass"])
    (action,) = contestant.choose_after([turn])
    contestant.close()
    assert turn.legal[action]


def test_an_engine_that_refuses_its_set_up_cannot_play(tmp_path, env):
    command = (sys.executable, FAKE, "gtp", "behaves", str(tmp_path / "m"))
    with pytest.raises(EngineFailed, match="refused 'refused': no"):
        GtpEngine(command, notation_of(env.spec), ("refused",))


def test_a_uci_engine_without_an_option_cannot_play(tmp_path):
    command = (sys.executable, FAKE, "uci", "behaves", str(tmp_path / "m"))
    with pytest.raises(EngineFailed, match="no option 'Skill Level'"):
        UciEngine(command, None, ["setoption name Skill Level value 3"], "uci")


@pytest.mark.parametrize(
    ("protocol", "game", "behaviour", "move"),
    [("uci", "chess", "behaves", "e2e4"), ("usi", "shogi", "behaves", "7g7f"), ("usi", "shogi", "resigns", None)],
)
def test_the_program_of_a_player_gets_the_lines_of_its_name(tmp_path, protocol, game, behaviour, move):
    """One with `go` for each move, the others once. The path of the program holds a blank."""
    (folder := tmp_path / "my engines").mkdir()
    (fake := folder / "engine.py").write_text(Path(FAKE).read_text())
    env, log = make_env(game), tmp_path / "told"
    command = shlex.join([sys.executable, str(fake), protocol, behaviour, str(tmp_path / "marker"), str(log)])
    contestant = resolve(f"{protocol}:{command}; go nodes 7; setoption name Hash value 8", env)
    turn = turn_after(env, [])
    chosen = contestant.choose_after([turn])
    contestant.close()
    assert chosen == [GIVES_UP if move is None else notation_of(env.spec).action(turn.state, move)]
    start = [protocol, "setoption name Hash value 8", "isready", f"{protocol}newgame"]
    assert log.read_text().splitlines() == [*start, "position startpos", "go nodes 7", "quit"]


@pytest.mark.parametrize(
    ("name", "game", "said"),
    [
        ("gnugo:1", "chess", "gnugo plays go_7x7, go_9x9 and go_19x19, not chess"),
        ("stockfish:3", "gardner_chess", "stockfish plays chess, not gardner_chess"),
        ("fairy-stockfish:3", "hex", "fairy-stockfish plays chess, gardner_chess and shogi, not hex"),
        ("uci:stockfish", "shogi", "uci plays chess and gardner_chess, not shogi"),
        ("usi:fairy-stockfish", "chess", "usi plays shogi, not chess"),
        ("gtp:no-program-has-this-name --gtp", "othello", "the program no-program-has-this-name is not installed$"),
        ("gtp: ; level 3", "othello", "expected the command of a program, for example gtp:gnugo --mode gtp; level 5"),
        ("uci:'stockfish", "chess", "''stockfish' is not a command: No closing quotation"),
        ("uci:stockfish\nquit", "chess", "expected printable characters"),
        ("gnugo:11", "go_9x9", "expected a level from 1 to 10, for example gnugo:10"),
        ("gnugo", "go_9x9", "expected a level from 1 to 10"),
        ("gtp-rhino:6", "othello", "expected a level from 1 to 5"),
        ("gnubg:4", "othello", "expected a level from 0 to 3"),
        ("gnubg:0", "othello", "gnubg plays backgammon, not othello"),
        ("stockfish:x", "chess", "expected a level from 0 to 20, or 1350 to 2850, for example stockfish:20"),
        ("stockfish:1000", "chess", "expected a level from 0 to 20, or 1350 to 2850"),
    ],
)
def test_an_engine_for_another_game_or_without_that_level_is_refused(name, game, said):
    with pytest.raises(ConfigError, match=said):
        resolve(name, make_env(game))


@pytest.mark.parametrize(
    ("name", "game", "package"),
    [
        ("gnugo:1", "go_9x9", "gnugo"),
        ("gnubg:0", ChanceGameConfig(name="backgammon"), "gnubg"),
        ("gtp-rhino:1", "othello", "grhino"),
        ("stockfish:3", "chess", "stockfish"),
        ("fairy-stockfish:3", "chess", "fairy-stockfish"),
    ],
)
def test_a_missing_engine_names_its_package(name, game, package, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(players, "GAMES_FOLDERS", ())
    kind = name.partition(":")[0]
    with pytest.raises(ConfigError, match=f"{kind} is not installed; on Debian and Ubuntu: apt-get install {package}$"):
        resolve(name, make_env(game))


@pytest.mark.slow
def test_gnugo_finishes_games_and_beats_random_moves():
    program("gnugo")
    env = make_env("go_9x9")
    contestant = resolve("gnugo:1", env)
    (pair,) = Arena(env).pairs(contestant, RandomPlayer(env), 1, jax.random.key(0))
    contestant.close()
    assert pair.points == (1.0, 1.0)
    assert not any(game.end == "given up" for game in pair)


def test_gnugo_captures_dead_stones_before_it_passes():
    """Its opponent passes; a white stone is dead in black's area, and would count as alive if black passed as well."""
    program("gnugo")
    env = make_env("go_9x9")
    contestant = resolve("gnugo:1", env)
    moves = ["C5", "E5", "D4", "E3", "D6", "E7", "D5", "pass"]
    (action,) = contestant.choose_after([turn_after(env, moves)])
    contestant.close()
    assert notation_of(env.spec).names([action]) != ["pass"]


@pytest.mark.parametrize(
    ("name", "game", "moves", "answers"),
    [
        ("stockfish:20", "chess", "f2f3 e7e5 g2g4", ["d8h4"]),
        ("fairy-stockfish:20", "chess", "f2f3 e7e5 g2g4", ["d8h4"]),
        ("fairy-stockfish:20", "gardner_chess", "b2b3 c4b3", ["a2b3", "c2b3"]),
        ("stockfish:20", "chess", "a2a4 h7h5 a4a5 h5h4 a5a6 h4h3 a6b7 h3g2", ["b7a8q", "f1g2", "b7c8q"]),
        ("uci:stockfish; setoption name Hash value 1; go depth 5", "chess", "f2f3 e7e5 g2g4", ["d8h4"]),
        ("uci:fairy-stockfish; go nodes 1000", "gardner_chess", "b2b3 c4b3", ["a2b3", "c2b3"]),
        # White takes back the bishop that has taken a bishop.
        ("fairy-stockfish:20", "shogi", "7g7f 3c3d 8h2b+", ["3a2b"]),
        ("usi:fairy-stockfish; go nodes 1000", "shogi", "7g7f 3c3d 8h2b+", ["3a2b"]),
        # All legal moves: rows count from the top.
        ("gtp-rhino:1", "othello", "f5", ["d6", "f4", "f6"]),
        ("gtp:gtp-rhino --level 1", "othello", "f5 d6", None),
        ("gtp:gnugo --mode gtp; level 1", "go_9x9", "E5", None),
    ],
)
def test_engines_play_from_the_moves_of_a_game(name, game, moves, answers):
    player = players.parse_player(name)
    program(*player.command[:1] or (player.kind,))
    env = make_env(game)
    contestant = resolve(name, env)
    turn = turn_after(env, moves.split())
    (action,) = contestant.choose_after([turn])
    contestant.close()
    assert turn.legal[action]
    assert answers is None or notation_of(env.spec).name(turn.state, action) in answers


def backgammon(board=START, dice=()):
    """A position of backgammon, with dice to be played, as an engine gets it."""
    env, (init, _, view) = make_env(ChanceGameConfig(name="backgammon")), compiled("backgammon")
    state = jax.device_get(init(jax.random.key(0)))
    played = np.bincount(dice, minlength=7)[1:].astype(np.int8)
    state = state._replace(game=state.game._replace(board=np.array(board, np.int8), dice=played))
    return env, Turn((), state, np.asarray(view(state).legal))


def move_of(contestant, turn):
    """Plays a whole turn; the points from which checkers moved, and how far, as podzero's actions say."""
    actions, player, (_, step, view) = [], turn.state.game.player, compiled("backgammon")
    while turn.state.game.player == player and not turn.state.game.done:
        (action,) = contestant.choose_after([turn])
        assert turn.legal[action]
        actions.append((26 - action // 6, action % 6 + 1))
        state = jax.device_get(step(turn.state, jnp.int32(action)))
        turn = Turn((*turn.moves, action), state, np.asarray(view(state).legal))
    return sorted(actions, reverse=True)


def gnubg(behaviour, tmp_path):
    """A contestant of one process."""
    command, planned = (sys.executable, FAKE, "gnubg", behaviour, str(tmp_path / "marker")), OrderedDict()
    return EngineContestant("fake", lambda: GnubgEngine(command, 0, planned), processes=1)


@pytest.mark.parametrize(
    ("move", "changes"),
    [
        ("8/5 6/5", {16: -1, 18: -1, 19: 2}),
        ("24/18(2) 13/7(2)", {0: -2, 6: 2, 11: -2, 17: 2}),
        ("24/22*/18*", {0: -1, 2: 1, 6: 2, 25: -2}),
        ("bar/22* 24/23", {24: -1, 2: 2, 25: -1, 0: -1, 1: 1}),
        ("6/off(2) 3/1", {18: -2, 26: 2, 21: -1, 23: 1}),
    ],
)
def test_a_move_of_gnu_backgammon_changes_the_board(move, changes):
    """Blots of the opponent stand on the points 22 and 18, and one checker of the player is on the bar."""
    board = np.zeros(28, np.int8)
    board[[0, 11, 16, 18, 21, 24]], board[[2, 6]] = (2, 3, 3, 3, 2, 1), -1
    if "22" not in move:
        board[2] = 0
    if "18*" not in move:
        board[6] = 0
    expected = board.copy()
    for place, change in changes.items():
        expected[place] += change
    assert board_after(board, move).tolist() == expected.tolist()


@pytest.mark.parametrize("behaviour", ["behaves", "crashes", "nonsense"])
def test_a_turn_of_backgammon_is_played_action_by_action(tmp_path, behaviour):
    contestant = gnubg(behaviour, tmp_path)
    _, turn = backgammon(dice=(3, 1))
    if behaviour != "behaves":
        assert contestant.choose_after([turn]) == [GIVES_UP]
    assert move_of(contestant, turn) == [(8, 3), (6, 1)]
    contestant.close()


def test_a_rest_of_a_roll_and_a_forced_pass_are_played_without_a_question(tmp_path):
    contestant = gnubg("nonsense", tmp_path)
    closed = np.zeros(28, np.int8)
    closed[24], closed[:6], closed[20], closed[25] = 1, -2, 14, -3
    for position in ({"dice": (3,)}, {"dice": (2, 2)}, {"board": closed, "dice": (3, 1)}):
        _, turn = backgammon(**position)
        (action,) = contestant.choose_after([turn])
        assert turn.legal[action]
    contestant.close()


def test_gnu_backgammon_is_asked_about_the_position_of_the_player_to_move():
    """It makes the point with 3-1, enters from the bar first, and bears off as many checkers as it may."""
    program("gnubg")
    contestant = resolve("gnubg:0", backgammon()[0])
    assert move_of(contestant, backgammon(dice=(3, 1))[1]) == [(8, 3), (6, 1)]
    entering = START.copy()
    entering[0], entering[24], entering[18:24] = 1, 1, [5, 0, -2, -2, -2, -2]
    entering[[5, 7, 12, 23]] = [-2, 0, -5, -2]
    assert move_of(contestant, backgammon(entering, (2, 1))[1])[0][0] == 25
    last = np.zeros(28, np.int8)
    last[[18, 21, 23, 26]], last[[0, 27]] = (2, 1, 1, 11), (-2, -13)
    assert move_of(contestant, backgammon(last, (6, 6, 6, 6))[1]) == [(6, 6), (6, 6), (3, 6), (1, 6)]
    contestant.close()


@pytest.mark.slow
def test_gnu_backgammon_beats_random_moves():
    program("gnubg")
    env, _ = backgammon()
    contestant = resolve("gnubg:0", env)
    pairs = Arena(env).pairs(contestant, RandomPlayer(env), 3, jax.random.key(0))
    contestant.close()
    assert [pair.points for pair in pairs] == [(1.0, 1.0)] * 3
    assert not any(game.end == "given up" for pair in pairs for game in pair)


def test_an_engine_that_resigns_loses_its_games_of_a_tournament(env, fake, tmp_path):
    contestant, _ = fake("resigns")
    settings = TournamentSettings("tic_tac_toe", ("fake", "random"), None, 0, 2, 0)
    files = TournamentFiles(tmp_path / "t", settings)
    with closing(Tournament(env, [contestant, RandomPlayer(env)], {"random": 0.0}, files)) as tournament:
        tournament.play(4)
        ratings = tournament.ratings()
        games = [game for pair in files.read() for game in pair.games]
    assert list(ratings) == ["random", "fake"]
    assert [game.end for game in games] == ["given up"] * 4
