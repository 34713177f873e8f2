"""`podzero import`, and the check of `data.records` before a run."""

import json

import pytest

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
