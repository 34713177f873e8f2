"""Files of episodes: what is read, and what is left out and why."""

import json

import numpy as np
import pytest

from podzero.config import load
from podzero.errors import ConfigError
from podzero.tools.records import import_games
from podzero.tools.records.episodes import read_episodes
from podzero.types import EnvSpec

SPEC = EnvSpec("gymnasium/CartPole-v1", (4,), "float32", 2, players=1)
GOOD = {"observations": [[0.0] * 4, [0.1] * 4, [0.2] * 4], "actions": [1, 0], "rewards": [1.0, 1.0], "terminated": True}


def write(file, *trees):
    file.write_text("".join(json.dumps(tree) + "\n" for tree in trees))
    return file


def test_lines_and_archives_hold_the_same_episode(tmp_path):
    (line,) = read_episodes(write(tmp_path / "one.jsonl", GOOD), SPEC)
    np.savez(tmp_path / "one.npz", **GOOD)
    (archive,) = read_episodes(tmp_path / "one.npz", SPEC)
    for one, other in zip(line, archive, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (line.observation.dtype, line.action.tolist(), line.terminated) == (np.float32, [1, 0], True)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"actions": [1, 2]}, "illegal"),
        ({"actions": [1.0, 0.5]}, "illegal"),
        ({"rewards": [1.0, float("nan")]}, "illegal"),
        ({"observations": [[0.0] * 3] * 3}, "foreign"),
        ({"observations": [[0.0] * 4] * 2}, "foreign"),
        ({"actions": [], "rewards": []}, "unfinished"),
        ({"rewards": [1.0]}, "unreadable"),
        ({"terminated": [True, False]}, "unreadable"),
    ],
    ids=str,
)
def test_an_episode_that_does_not_fit_is_left_out(tmp_path, changes, kind):
    (fault,) = read_episodes(write(tmp_path / "one.jsonl", GOOD | changes), SPEC)
    assert fault.kind == kind


def test_a_file_that_is_no_archive_is_left_out(tmp_path):
    (tmp_path / "one.npz").write_text("nothing")
    (fault,) = read_episodes(tmp_path / "one.npz", SPEC)
    assert fault.kind == "unreadable"


def test_episodes_are_imported_and_the_others_counted(tmp_path):
    file = write(tmp_path / "some.jsonl", GOOD, GOOD | {"actions": [5, 0]}, GOOD)
    found = import_games([file], load("cartpole").env, tmp_path / "records")
    assert (found.games, found.positions, found.left_out) == (2, 6, {"illegal": 1})


def test_files_of_games_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\.npz"):
        import_games([tmp_path / "game.sgf"], load("cartpole").env, tmp_path / "records")


def test_games_of_three_players_are_refused(three_players, tmp_path):
    games = tmp_path / "games.jsonl"
    games.write_text('{"moves": [0], "result": "1-0"}\n')
    with pytest.raises(ConfigError, match="zero-sum"):
        import_games([games], load(str(three_players)).env, tmp_path / "records")
