"""The command `podzero tournament`."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from podzero.core.errors import ConfigError
from podzero.launch.evaluate import parse_anchors, print_ratings, short_name


def test_anchors_are_read():
    assert parse_anchors(["random=0", "a=b@3=-12.5"]) == {"random": 0.0, "a=b@3": -12.5}


@pytest.mark.parametrize("given", [["random"], ["random=high"], ["=3"], ["random=nan"], ["random=0", "random=1"]])
def test_anchors_of_another_form_are_refused(given):
    with pytest.raises(ConfigError, match="--anchor"):
        parse_anchors(given)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nobody", "random", "--game", "hex"], "unknown player 'nobody'"),
        (["random", "mcts:4"], "no game given"),
        (["random", "mcts:4", "--game", "hex", "--anchor", "random"], "--anchor random: expected"),
    ],
)
def test_mistakes_are_one_message_and_code_2(command, arguments, words):
    code, out, err = command("tournament", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("podzero: ")
    assert words in err


CROSS = [[None, {"wins": 9, "draws": 0, "losses": 7}], [{"wins": 7, "draws": 0, "losses": 9}, None]]
RESULT = {
    "games": 16,
    "cut_off": 3,
    "players": [
        {"name": "strong", "elo": 120.4, "low": 20.0, "high": 260.0, "games": 16, "score": 0.5625},
        {"name": "random", "elo": 0.0, "low": 0.0, "high": 0.0, "games": 16, "score": 0.4375},
        {"name": "new", "elo": None, "low": None, "high": None, "games": 0, "score": None},
    ],
    "cross": [[*row, None] for row in CROSS] + [[None] * 3],
    "workdir": "t",
    "ended": "the most games were played",
}


def test_people_see_ratings_cross_table_and_games_cut_off(capsys):
    print_ratings(RESULT)
    out = capsys.readouterr().out
    assert "20 to 260" in out
    assert "anchor" in out
    assert "9 0 7" in out
    assert "t/games.jsonl" in out
    assert "3 games were cut off by the limit on plies and scored by rewards so far" in out


def test_a_path_is_shown_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_name(f"{tmp_path}/runs/a@20") == "runs/a@20"
    assert short_name("mcts:20") == "mcts:20"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_after_writing_what_was_played_and_the_same_command_goes_on(tmp_path, number):
    """The signal comes twice at once, as from a terminal and from a parent that passes it on."""
    program = [sys.executable, "-c", "from podzero.launch.main import main; main()", "tournament", "random", "mcts:2"]
    arguments = ["--game", "tic_tac_toe", "--workdir", str(tmp_path / "t"), "--json"]
    running = subprocess.Popen(
        [*program, *arguments, "--games", "1000000"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        games = tmp_path / "t" / "games.jsonl"
        deadline = time.monotonic() + 200
        while not games.exists():
            assert running.poll() is None
            assert time.monotonic() < deadline, "no game within 200 s"
            time.sleep(0.2)
        os.kill(running.pid, number)
        os.kill(running.pid, number)
        out, _ = running.communicate(timeout=60)
    finally:
        running.kill()
    stopped = json.loads(out)
    assert (running.returncode, stopped["ended"]) == (128 + number, "interrupted")
    assert stopped["games"] == len(games.read_text().splitlines()) > 0

    more = stopped["games"] + 16
    done = subprocess.run(
        [*program, *arguments, "--games", str(more)], stdout=subprocess.PIPE, text=True, timeout=200, check=True
    )
    assert json.loads(done.stdout)["games"] == more == len(games.read_text().splitlines())
