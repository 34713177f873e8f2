"""`podzero engine` with real programs on the other side: python-chess, and GNU Go."""

import json
import os
import shutil
import sys

import chess
import chess.engine
import numpy as np
import pytest
from untrained_agents import write_untrained

from podzero.core.errors import ConfigError
from podzero.evaluation import engines
from podzero.evaluation.engines import GtpEngine
from podzero.files.players import game_to_play
from podzero.tools.play.engine import make_parts, serve
from podzero.tools.play.searching import Root

PODZERO = os.path.join(os.path.dirname(sys.executable), "podzero")
LONGEST_S = 240.0


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """Makes a working directory with an untrained network for a game."""
    return lambda game: write_untrained(tmp_path_factory.mktemp(game), game)


@pytest.mark.slow
def test_python_chess_plays_a_game_with_an_engine():
    command = [PODZERO, "engine", "random", "--protocol", "uci", "--game", "chess"]
    with chess.engine.SimpleEngine.popen_uci(command, timeout=LONGEST_S) as engine:
        assert engine.id["name"] == "podzero random"
        engine.ping()  # until its programs are compiled
        board = chess.Board()
        limits = chess.engine.Limit(time=0.5), chess.engine.Limit(nodes=100), chess.engine.Limit(white_clock=9)
        for ply in range(30):
            if not board.is_game_over():
                board.push(engine.play(board, limits[ply % 3]).move)
        assert len(board.move_stack) == 30 or board.is_game_over()
        promoting = chess.Board("8/P6k/8/8/8/8/8/K7 w - - 0 1")
        with engine.analysis(promoting) as analysis:
            assert analysis.next()["pv"][0] in promoting.legal_moves
            analysis.stop()
            assert analysis.wait().move in promoting.legal_moves


@pytest.mark.slow
def test_python_chess_analyses_with_an_untrained_network(untrained):
    """XLA takes minutes for each number of simulations."""
    command = [PODZERO, "engine", untrained("chess"), "--protocol", "uci", "--simulations", "2"]
    with chess.engine.SimpleEngine.popen_uci(command, timeout=1000) as engine:
        engine.ping()
        board = chess.Board()
        lines = engine.analyse(board, chess.engine.Limit(nodes=50), multipv=3)
        assert len({line["pv"][0] for line in lines}) == 3
        assert all(line["pv"][0] in board.legal_moves and "score" in line and line["nodes"] == 2 for line in lines)
        engine.configure({"Simulations": 1})
        assert engine.analyse(board, chess.engine.Limit(nodes=50))["nodes"] == 1


@pytest.mark.slow
def test_gnugo_and_podzero_play_a_whole_game(monkeypatch):
    monkeypatch.setattr(engines, "MOVE_TIMEOUT_S", LONGEST_S)
    gnugo = shutil.which("gnugo", path=os.pathsep.join([os.environ["PATH"], "/usr/games"]))
    if gnugo is None:
        missing = "the program gnugo is not installed: apt-get install gnugo"
        pytest.fail(missing) if os.environ.get("PODZERO_ENGINES") == "required" else pytest.skip(missing)
    rules = ("--chinese-rules", "--positional-superko", "--capture-all-dead")
    theirs = GtpEngine((gnugo, "--mode", "gtp", "--level", "1", *rules), None, ())
    ours = GtpEngine((PODZERO, "engine", "mcts:2", "--protocol", "gtp", "--game", "go_9x9"), None, ())
    for engine in (ours, theirs):
        for line in ("boardsize 9", "komi 7.5", "clear_board", "time_settings 600 0 0"):
            engine.ask(line)
    moves = []
    while moves[-2:] != ["pass", "pass"] and len(moves) < 160:
        player, other = (theirs, ours) if len(moves) % 2 else (ours, theirs)
        colour = "bw"[len(moves) % 2]
        moves.append(player.ask(f"genmove {colour}").lower())
        if moves[-1] == "resign":
            break
        other.ask(f"play {colour} {moves[-1]}")
    assert len(moves) > 10
    ours.ask("undo")
    ours.ask(f"play {'bw'[(len(moves) - 1) % 2]} {moves[-1]}")
    score = ours.ask("final_score")
    theirs.close()
    ours.close()
    assert score[0] in "BW"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["random", "--protocol", "uci", "--game", "chess", "--resign", "-0.9"], "UCI has no resignation"),
        (["random", "--protocol", "uci", "--game", "go_9x9"], "UCI is for chess and gardner_chess, not for go_9x9"),
        (["random", "--protocol", "gtp"], "no game given"),
        (["gnugo:1", "--protocol", "gtp", "--game", "go_9x9"], "'gnugo:1' is an engine itself"),
        (["random", "--protocol", "gtp", "--game", "cartpole"], "engines play board games"),
        (["random", "--protocol", "gtp", "--game", "backgammon"], "dice"),
        (["nobody", "--protocol", "gtp"], "unknown player 'nobody'"),
    ],
)
def test_a_wrong_call_is_refused_at_once(command, arguments, words):
    code, out, err = command("engine", *arguments)
    assert code == 2
    assert words in err
    assert out == ""


def test_an_error_of_the_player_ends_the_engine(monkeypatch):
    monkeypatch.setattr(sys, "stdin", iter(["protocol_version\n", "genmove b\n"]))
    with pytest.raises(ConfigError, match="no solver for 'hex_11x11'"):
        serve("solver", "gtp", game="hex")


def parts_of(who, simulations=None, game=None):
    return make_parts(who, simulations, game_to_play(game, who))


def test_players_without_a_search_are_engines_too():
    game, search, _ = parts_of("solver", game="tic_tac_toe")
    for name in ("a1", "b1", "a2", "b2"):
        game.play(game.action(name))
    *_, searched = search.results(Root.of(game.position), 1)
    assert game.name(searched.lines[0].action) == "a3"
    assert np.isfinite(searched.seconds)


def best(parts, simulations=10**6, seconds=None):
    """The last result of a search of the position shown."""
    *_, searched = parts.search.results(Root.of(parts.game.position), simulations, seconds)
    return searched


@pytest.fixture(scope="module")
def tic_tac_toe(untrained):
    return parts_of(untrained("tic_tac_toe"))


def test_a_trained_player_searches_up_to_a_number_of_simulations(tic_tac_toe):
    game, search, _ = tic_tac_toe
    game.restart([0])
    assert (search.usual, search.most) == (8, 32)
    for simulations, made in ((search.usual, 8), (13, 13), (4, 13), (100, 32), (100, 32)):
        searched = best(tic_tac_toe, simulations)
        assert (searched.simulations, sum(line.visits for line in searched.lines)) == (made, made)
        assert len(searched.lines) == 8
    assert searched.reused == 32
    game.restart([1])
    assert best(tic_tac_toe, seconds=0.0).simulations >= 1


def test_an_engine_keeps_the_part_of_its_tree_that_was_played(untrained):
    parts = parts_of(untrained("tic_tac_toe"), 150)
    game, kept = parts.game, []
    game.restart([4])
    while not game.over:
        searched = best(parts)
        kept.append(searched.reused)
        assert searched.simulations == 150
        chosen = searched.lines[0]
        assert chosen.action in game.legal
        assert chosen.moves[0] == chosen.action
        # The opponent answers by a move that the tree knows.
        game.play(chosen.action)
        reply = chosen.moves[1] if len(chosen.moves) > 1 else None
        if not game.over:
            game.play(reply if reply in game.legal else game.legal[0])
    assert kept[0] == 0
    assert kept[1] > 0


def test_an_engine_drops_its_tree_where_the_game_is_another(tic_tac_toe):
    game = tic_tac_toe.game
    game.restart([4, 0])
    best(tic_tac_toe)
    game.play(game.legal[-1])
    assert best(tic_tac_toe).reused > 0
    game.take_back()
    assert best(tic_tac_toe).reused == 0
    game.restart([2, 4, 0, 1])
    assert best(tic_tac_toe).reused == 0


def test_an_engine_forgets_its_tree_when_it_is_told(tic_tac_toe):
    tic_tac_toe.game.restart([4, 0])
    best(tic_tac_toe)
    assert best(tic_tac_toe).reused == 32
    tic_tac_toe.search.forget()
    assert best(tic_tac_toe).reused == 0
    assert best(tic_tac_toe).reused == 32


def test_an_agent_with_ownership_answers_katagos_protocol(monkeypatch, tmp_path, capsys):
    agent = write_untrained(tmp_path, "go_7x7", auxiliary=True, ownership=True)
    query = {"id": "q", "boardXSize": 7, "boardYSize": 7, "analyzeTurns": [0, 1], "includeOwnership": True}
    lines = [{"moves": [["B", "D4"]], **query}, {"id": "t", "action": "query_version"}]
    monkeypatch.setattr(sys, "stdin", iter(f"{json.dumps(line)}\n" for line in lines))
    serve(agent, "katago", 8)
    version, first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert version["id"] == "t"
    for answer, mover in ((first, "B"), (second, "W")):
        assert answer["rootInfo"]["currentPlayer"] == mover
        assert answer["rootInfo"]["visits"] == 8
        # The lead of Black is that of the squares, and the komi.
        assert answer["rootInfo"]["scoreLead"] == pytest.approx(sum(answer["ownership"]) - 7.5, abs=0.01)
        assert sum(one["visits"] for one in answer["moveInfos"]) == 8
        assert all(abs(one["scoreLead"]) < 60 and one["pv"][0] == one["move"] for one in answer["moveInfos"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mcts:2", "--game", "othello"], "KataGo's protocol is for Go, not for othello"),
        (["gnugo:1", "--game", "go_9x9"], "'gnugo:1' is an engine itself"),
        (["zoo:cartpole"], "engines play board games"),
    ],
)
def test_katagos_protocol_is_refused_where_it_has_no_meaning(command, arguments, words):
    code, out, err = command("analyze", *arguments, "--protocol", "katago")
    assert code == 2
    assert words in err
    assert out == ""
