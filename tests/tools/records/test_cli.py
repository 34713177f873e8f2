"""`podzero import`, and the check of `data.records` before a run."""

import json

import numpy as np
import pytest

from podzero.config import load
from podzero.envs import make_env
from podzero.replay import open_records

WON = '{"moves": [0, 3, 1, 4, 2], "result": "1-0"}\n'
"""A game of tic-tac-toe."""


@pytest.fixture
def games(tmp_path):
    file = tmp_path / "games.jsonl"
    file.write_text("\ufeff" + WON + '{"moves": [4, 4]}\n{"moves": [4]}\n' + 5 * "no game\n" + WON)
    return file


def test_games_are_imported_and_those_left_out_are_counted_and_some_are_named(command, tmp_path, games):
    arguments = ("import", str(games), str(games), "--game", "tic_tac_toe", "--to", str(tmp_path / "records"))
    code, out, _ = command(*arguments, "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["games"], found["positions"]) == (4, 20)
    assert found["left_out"] == {"illegal": 2, "unfinished": 2, "unreadable": 10}
    assert sum("unreadable" in one for one in found["named"]) == 3
    assert any(f"{games}, line 2" in one for one in found["named"])
    code, _, err = command(*arguments)
    assert code == 2
    assert "exists" in err


def test_the_command_says_what_is_left_out_and_how_to_train(command, tmp_path, games):
    code, out, _ = command("import", str(games), "--game", "tic_tac_toe", "--to", str(tmp_path / "records"))
    assert code == 0
    assert "10 positions of 2 games" in out
    assert "5 unreadable" in out
    assert f"data.records={tmp_path / 'records'}" in out


@pytest.fixture
def komis(tmp_path):
    file = tmp_path / "games.sgf"
    komis = ("KM[0]", "KM[375]", "KM[7,5]", "", "KM[x]")
    file.write_text("".join(f"(;GM[1]SZ[7]RE[B+R]{komi};B[cc])\n" for komi in komis))
    return file


@pytest.mark.slow
def test_games_with_another_komi_than_the_network_knows_are_counted(command, tmp_path, komis):
    """A record without a komi says nothing against the usual one."""
    code, out, _ = command("import", str(komis), "--game", "go_7x7", "--to", str(tmp_path / "records"))
    assert code == 0
    assert "4 games" in out
    assert "2 of them had another komi than 7.5" in out


@pytest.mark.slow
def test_a_network_that_observes_the_komi_knows_all_but_impossible_ones(command, tmp_path, komis):
    experiment = tmp_path / "komi.yaml"
    experiment.write_text("extends: go_9x9\nenv: {name: go_7x7, komi: [0.5, 7.5]}\n")
    arguments = ("import", str(komis), "--game", str(experiment), "--to", str(tmp_path / "records"), "--json")
    code, out, err = command(*arguments)
    assert code == 0, err
    found = json.loads(out)
    assert (found["games"], found["other_komi"], found["left_out"]) == (3, 0, {"unreadable": 1, "foreign": 1})


@pytest.mark.parametrize("suffix", ["sgf", "pgn", "jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_files_in_utf_16_are_named(command, tmp_path, suffix, encoding):
    file = tmp_path / f"games.{suffix}"
    file.write_bytes("(;GM[1]SZ[9];B[ee])".encode(encoding))
    code, _, err = command("import", str(file), "--game", "tic_tac_toe", "--to", str(tmp_path / "records"))
    assert code == 2
    assert "UTF-16" in err


def test_whatever_a_record_holds_can_be_printed(command, tmp_path):
    file = tmp_path / "games.jsonl"
    file.write_text(WON + '{"moves": ["\\ud800\\u001b[2J"]}\n{"moves": [1], "game": "\\udfff"}\n')
    code, out, _ = command("import", str(file), "--game", "tic_tac_toe", "--to", str(tmp_path / "records"))
    assert code == 0
    assert "\\ud800\\x1b" in out
    assert "\\udfff" in out


def test_the_game_of_an_sgf_is_named(command, tmp_path):
    file = tmp_path / "g.sgf"
    file.write_text("(;GM[1]SZ[9];B[ee])")
    code, _, err = command("import", str(file), "--game", "chess", "--to", str(tmp_path / "records"))
    assert code == 2
    assert "this SGF is of Go, not chess" in err


def test_positions_are_searched_for_their_policies(command, tmp_path, games):
    """After 0, 3, 1, 4 the search finds the winning square 2 where the game recorded 8."""
    games.write_text('{"moves": [0, 3, 1, 4, 8, 5], "result": "0-1"}\n')
    records = tmp_path / "records"
    asked = ("import", str(games), "--game", "tic_tac_toe", "--to", str(records), "--search", "mcts:200")
    code, out, _ = command(*asked, "--json")
    assert code == 0
    assert json.loads(out)["positions"] == 6
    tree = json.loads((records / "records.json").read_text())
    assert (tree["search"], tree["layout"].split()[-1]) == ("mcts:200", "policy:searched")
    experiment = load("tic_tac_toe", [f"data.records={records}"])
    records = open_records(experiment, make_env("tic_tac_toe").spec)
    samples = records.layout.unpack(records.rows, auxiliary=False)
    assert samples.policy_target[4].argmax() == 2
    assert samples.policy_target[5].argmax() == 5
    np.testing.assert_array_equal(samples.value_target, [-1, 1, -1, 1, -1, 1])


@pytest.mark.parametrize(
    ("game", "options", "message"),
    [
        ("tic_tac_toe", ("--search", "random"), "does not search"),
        ("tic_tac_toe", ("--search", "zoo:hex"), "no agent 'hex'"),
        ("tic_tac_toe", ("--search", "zoo:connect_four"), "connect_four"),
        ("tic_tac_toe", ("--simulations", "8"), "--search"),
        ("cartpole", ("--search", "zoo:cartpole"), "episodes"),
    ],
)
def test_players_that_cannot_search_are_refused(command, tmp_path, games, game, options, message):
    code, _, err = command("import", str(games), "--game", game, "--to", str(tmp_path / "records"), *options)
    assert code == 2
    assert message in err
    assert not (tmp_path / "records").exists()


@pytest.mark.parametrize(
    ("name", "game", "message"),
    [
        ("games.jsonl", "hex", "no game of hex"),
        ("games.jsonl", "hexx", "hexx"),
        ("games.txt", "tic_tac_toe", ".pgn"),
        ("missing.sgf", "tic_tac_toe", "missing.sgf"),
        ("games.jsonl", "cartpole", "gymnasium"),
    ],
)
def test_an_import_without_a_usable_game_is_refused_and_leaves_nothing(command, tmp_path, name, game, message):
    (tmp_path / "games.jsonl").write_text('{"moves": [0, 0], "result": "1-0"}\n')
    (tmp_path / "games.txt").write_text(WON)
    before = sorted(tmp_path.iterdir())
    code, _, err = command("import", str(tmp_path / name), "--game", game, "--to", str(tmp_path / "records"))
    assert code == 2
    assert message in err
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_cannot_be_written_is_named(command, games):
    code, _, err = command("import", str(games), "--game", "tic_tac_toe", "--to", str(games / "records"))
    assert code == 2
    assert "cannot be written" in err


def test_a_run_on_records_of_another_game_is_refused_before_it_starts(command, tmp_path, games):
    records = str(tmp_path / "records")
    command("import", str(games), "--game", "tic_tac_toe", "--to", records)
    code, _, err = command("train", "connect_four", f"data.records={records}", "--check")
    assert code == 2
    assert "needs 'connect_four" in err
