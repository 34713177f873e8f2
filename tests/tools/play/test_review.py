"""Reviews of recorded games: costs of moves, and records with notes that other programs read."""

import io
import json

import chess.pgn
import jax
import numpy as np
import pytest
from sgfmill import sgf

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.core.types import SearchResult
from podzero.envs import make_env
from podzero.evaluation import resolve
from podzero.evaluation.players import RandomPlayer, SearchPlayer
from podzero.tools.play import review as module
from podzero.tools.play.cli import _curve, print_review
from podzero.tools.play.review import review


@pytest.fixture
def by_lowest(monkeypatch):
    """A player without a compiled search: it chooses the first legal action, and sees a value of 0.5 for whoever moves,
    so that each other move costs half a win."""

    def make(who, env, simulations, discount, keep_nodes):
        assert keep_nodes
        legal_of = jax.jit(jax.vmap(lambda state: env.view(state).legal))

        def decide(params, key, roots):
            legal = np.asarray(legal_of(roots))
            value = np.full(len(legal), 0.5, np.float32)
            policy = legal / legal.sum(axis=1, keepdims=True)
            return SearchResult(legal.argmax(axis=1), policy, value, legal.astype(np.int32), qvalues=policy)

        return SearchPlayer(f"{who}:{simulations}", decide, None, deterministic=True)

    monkeypatch.setattr(resolve, "resolve", make)


@pytest.fixture
def written(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def test_a_move_costs_the_fall_of_its_players_win_rate(by_lowest, written):
    found = review(written("g.jsonl", '{"moves": [4, 0], "result": "1-0"}'), "mcts:8", game="tic_tac_toe")
    assert found.start == pytest.approx(0.5)
    assert [one.value for one in found.moves] == pytest.approx([-0.5, 0.5])
    first, second = found.moves
    assert (first.move, first.cost, first.line) == ("b2", pytest.approx(0.5), ("a1",))
    assert (second.move, second.cost, second.better, second.line) == ("a1", 0.0, (), ())
    assert found.player == "mcts:8:8"


def test_a_game_that_the_rules_end_ends_with_its_result(by_lowest, written):
    moves = [0, 3, 1, 4, 2]
    found = review(written("g.jsonl", json.dumps({"moves": moves})), "mcts:8", game="tic_tac_toe", simulations=4)
    assert found.moves[-1].value == 1.0
    assert found.moves[-1].cost == 0.0
    assert (found.game.points, found.game.end) == (1.0, "over")
    assert found.player == "mcts:4:4"


def test_the_record_says_who_won_where_the_rules_do_not(by_lowest, written):
    file = written("g.sgf", "(;GM[1]SZ[7]PB[Ann \\] Ä]PW[Bob]RE[W+R]KM[5.5];B[dd];W[cc])")
    found = review(file, "mcts:8", game="go_7x7")
    assert found.game[:2] == ("Ann ] Ä", "Bob")
    assert (found.game.points, found.game.end) == (0.0, "over")
    read = sgf.Sgf_game.from_string(found.text)
    assert (read.get_komi(), read.get_winner(), read.get_player_name("b")) == (5.5, "w", "Ann ] Ä")
    assert found.komi_note == ""


def test_the_rules_say_who_won_where_the_record_is_wrong(by_lowest, written):
    found = review(written("g.pgn", "1. f3 e5 2. g4 Qh4# 1-0"), "mcts:8", game="chess")
    assert (found.game.points, found.moves[-1].value) == (0.0, -1.0)


def test_a_draw_that_the_players_agreed_on_is_one(by_lowest, written):
    found = review(written("g.pgn", "1. e4 e5 1/2-1/2"), "mcts:8", game="chess")
    text = found.text
    assert '[Result "1/2-1/2"]' in text
    assert "Termination" not in text


def test_names_in_a_file_cannot_act_on_the_terminal(by_lowest, written, capsys):
    print_review(review(written("g.sgf", "(;GM[1]SZ[7]PB[\x1b[2JAnn\\]];B[dd])"), "mcts:8", game="go_7x7"), 5)
    assert "\x1b" not in capsys.readouterr().out


def test_an_sgf_with_notes_has_win_rates_comments_and_variations(by_lowest, written):
    found = review(written("g.sgf", "(;GM[1]SZ[7];B[dd];W[aa];B[ba])"), "mcts:8", game="go_7x7")
    read = sgf.Sgf_game.from_string(found.text)
    main = [node.get_move() for node in read.get_main_sequence()[1:]]
    assert main == [("b", (3, 3)), ("w", (6, 0)), ("b", (6, 1))]
    first, second = read.get_main_sequence()[1:3]
    assert float(first.get("SBKV")) == pytest.approx(50 * (1 + found.moves[0].value), abs=0.01)
    assert first.get("C") == "costs 50% of a win; better A7"
    assert [child.get_move() for child in read.get_root()] == [("b", (3, 3)), ("b", (6, 0))]
    assert not second.has_property("C")
    # What was better than the second move is another branch after the first.
    assert len(list(first)) == 1
    assert read.get_winner() is None
    # Our own reader takes the main line of what we write.
    assert [one.move for one in review(written("h.sgf", found.text), "mcts:8", game="go_7x7").moves] == [
        "D4", "A7", "B7",
    ]  # fmt: skip


def test_a_pgn_with_notes_is_read_by_python_chess(by_lowest, written):
    text = '[White "Ann"]\n[Black "Bob"]\n\n1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4. Qxf7# 1-0\n'
    found = review(written("g.pgn", text), "mcts:8", game="chess")
    game = chess.pgn.read_game(io.StringIO(found.text))
    assert not game.errors
    assert (game.headers["White"], game.headers["Black"], game.headers["Result"]) == ("Ann", "Bob", "1-0")
    assert [node.san() for node in game.mainline()] == ["e4", "e5", "Qh5", "Nc6", "Bc4", "Nf6", "Qxf7#"]
    first = game.next()
    assert first.eval() is not None
    # White's move had one that was better, in a variation before it.
    assert [len(node.variations) for node in (game, first)] == [2, 2]
    assert "costs 50% of a win; better" in first.comment
    assert found.moves[-1].value == 1.0


def test_games_of_other_rules_have_their_notes_as_comments(by_lowest, written):
    found = review(written("g.pgn", '[Variant "connect_four"]\n\n1. d d 2. c *'), "mcts:8", game="connect_four")
    assert "{[%eval" in found.text
    assert "(1." not in found.text
    assert '[Result "*"]' in found.text
    again = review(written("h.pgn", found.text), "mcts:8", game="connect_four")
    assert [one.move for one in again.moves] == ["d", "d", "c"]


def test_a_better_line_follows_the_tree(written):
    found = review(written("g.jsonl", '{"moves": ["a1", "b1", "a2", "b2", "c1"]}'), "mcts:400", game="tic_tac_toe")
    last = found.moves[-1]
    assert last.line[0] == "a3"
    assert last.cost > 0.3
    assert found.text.count("better") >= 1


@pytest.mark.parametrize(
    ("name", "text", "game", "message"),
    [
        ("g.txt", "", "go_7x7", "expected a file that ends in .sgf, .pgn, .jsonl"),
        ("g.sgf", "", "go_7x7", "has no game 1"),
        ("g.sgf", "(;GM[1]SZ[19];B[dd])", "go_7x7", "its board has size 19, that of go_7x7 has 7"),
        ("g.sgf", "(;GM[1]SZ[7]AB[dd];W[cc])", "go_7x7", "it does not start from the empty board"),
        ("g.sgf", "(;GM[1]SZ[7];B[dd];W[dd])", "go_7x7", "game 1, move 2: 'D4' is not legal"),
        ("g.sgf", "(;GM[1]SZ[7]KM[99];B[dd])", "go_7x7", "komi 99.0 is not a multiple"),
        ("g.sgf", "(;GM[1]SZ[7]CA[UTF-7];B[dd]C[\u00e4])", "go_7x7", "it is not in UTF-7"),
        ("g.jsonl", '{"moves": [3]}', "2048", "only zero-sum games for two without chance"),
        ("g.jsonl", '{"moves": [3]}', "cartpole", "single-agent environment"),
        (
            "g.jsonl",
            '{"moves": [0, 3, 1, 4, 2, 5]}',
            "tic_tac_toe",
            "the game is over by the rules: first",
        ),
        ("g.jsonl", '{"moves": [99]}', "tic_tac_toe", "move 1: '99' is not the number of a move"),
    ],
)
def test_what_cannot_be_reviewed_is_refused(written, name, text, game, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        review(written(name, text), "mcts:8", game=game)


def test_a_player_that_does_not_search_is_refused(monkeypatch, written):
    monkeypatch.setattr(resolve, "resolve", lambda *_, **__: RandomPlayer(make_env("tic_tac_toe")))
    with pytest.raises(ConfigError, match="does not search"):
        review(written("g.jsonl", '{"moves": [4]}'), "random", game="tic_tac_toe")


def test_a_file_that_cannot_be_written_is_named(by_lowest, written, tmp_path):
    found = review(written("g.jsonl", '{"moves": [4]}'), "mcts:8", game="tic_tac_toe")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another file with --to"):
        found.write(tmp_path / "file" / "g.pgn")


def test_what_is_printed(by_lowest, written, capsys):
    found = review(written("g.jsonl", '{"moves": [4, 0], "result": "1-0"}'), "mcts:8", game="tic_tac_toe")
    print_review(found, 5)
    printed = capsys.readouterr().out
    assert "first player - second player, first player won, 2 moves" in printed
    assert "75% to 75%" in printed
    assert "50%" in printed


def test_the_curve_of_a_long_game_has_means():
    assert _curve([0, 0.5, 1]) == "▁▅█"
    assert _curve([0, 1] * 60) == "▅" * 60


def test_a_run_names_its_default_simulations():
    assert load("go_9x9_hour").search.simulations * module.STEP == 64


def test_the_command_prints_and_writes(by_lowest, written, command, tmp_path):
    file = written("g.jsonl", '{"moves": [4, 0], "result": "1-0", "players": ["Ann", "Bob"]}')
    code, out, _ = command("review", str(file), "--by", "mcts:8", "--game", "tic_tac_toe")
    assert code == 0
    assert "Ann - Bob, Ann won, 2 moves" in out
    assert f"The game with notes is in {tmp_path}/g.review.pgn" in out
    other = tmp_path / "new" / "h.pgn"
    code, out, _ = command(
        "review",
        str(file),
        "--by",
        "mcts:8",
        "--game",
        "tic_tac_toe",
        "--to",
        str(other),
        "--simulations",
        "4",
        "--json",
    )
    found = json.loads(out)
    assert (found["first"], found["by"], found["written"]) == ("Ann", "mcts:4:4", str(other))
    assert [move["cost"] for move in found["moves"]] == pytest.approx([0.5, 0.0])
    assert other.read_text().startswith("[Event")
    code, out, err = command("review", str(file), "--by", "mcts:8", "--game", "tic_tac_toe", "--number", "2")
    assert (code, out) == (2, "")
    assert "has no game 2" in err
