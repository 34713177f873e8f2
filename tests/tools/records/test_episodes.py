"""Files of episodes: what is read, and what is left out and why."""

import io
import json
import re
from zipfile import ZipFile

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.envs.gymnasium_envs.interface import Interface, Masks
from podzero.envs.gymnasium_envs.spaces import Actions, Observations
from podzero.tools.records import command
from podzero.tools.records.command import import_games, read_episodes


def interface(observations=Box(-np.inf, np.inf, (4,), np.float32), actions=Discrete(2)):  # noqa: B008
    actions = Actions(actions, "toy")
    return Interface("toy", Observations(observations, "toy"), actions, Masks(actions.count))


CARTPOLE = interface()
GOOD = {"observations": [[0.0] * 4, [0.1] * 4, [0.2] * 4], "actions": [1, 0], "rewards": [1.0, 1.0], "terminated": True}


def write(file, *trees):
    file.write_text("".join(json.dumps(tree) + "\n" for tree in trees))
    return file


def test_lines_and_archives_hold_the_same_episode(tmp_path):
    (line,) = read_episodes(write(tmp_path / "one.jsonl", GOOD), CARTPOLE)
    np.savez(tmp_path / "one.npz", **GOOD)
    (archive,) = read_episodes(tmp_path / "one.npz", CARTPOLE)
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
        ({"rewards": [1.0, 1e39]}, "illegal"),
        ({"rewards": ["1", "1"]}, "unreadable"),
        ({"observations": [[0.0] * 4, [0.0] * 4, [1e39] * 4]}, "illegal"),
        ({"observations": [["a"] * 4] * 3}, "illegal"),
        ({"terminated": [True, False]}, "unreadable"),
        ({"terminated": "false"}, "unreadable"),
        ({"terminated": None}, "unreadable"),
    ],
    ids=str,
)
def test_an_episode_that_does_not_fit_is_left_out(tmp_path, changes, kind):
    (fault,) = read_episodes(write(tmp_path / "one.jsonl", GOOD | changes), CARTPOLE)
    assert fault.kind == kind


IMAGES, UNIT = Box(0, 255, (2,), np.uint8), Box(-1, 1, (2,), np.float32)
PARTS = Dict({"a": Discrete(2), "b": Box(-1, 1, (1,), np.float32)})


@pytest.mark.parametrize(
    ("space", "last", "expected"),
    [
        (IMAGES, [0, 255], [0, 255]),
        (IMAGES, [200 / 255, 0.5], "dtype float64 instead of uint8"),
        (IMAGES, [1.0, 0.0], "dtype float64 instead of uint8"),
        (IMAGES, [-1, 0], "-1 is outside its bounds 0.0 to 255.0"),
        (IMAGES, [300, 0], "300 is outside its bounds 0.0 to 255.0"),
        (UNIT, [0, 1], [0, 1]),
        (UNIT, [0.0, 1.001], [0.0, 1.001]),
        (UNIT, [0.0, 1e6], "observation 1 contains 1000000.0, outside the range -21 to 21"),
        (UNIT, [0.0, 1e300], "observation 1 contains inf"),
        (UNIT, [0.0, float("nan")], "observation 1 contains nan"),
        (Box(0, 9, (2,), np.int16), [70000, 0], "70000 is outside its bounds 0.0 to 9.0"),
        (PARTS, [0, 1, 0.5], [0, 1, 0.5]),
        (PARTS, [0, 2, 0.5], "[0.0, 2.0, 0.5] is not an element of Dict"),
        (PARTS, [0, 0, 0.5], "is not an element of Dict"),
        (PARTS, [0, 1, 1e6], "observation 1 contains 1000000.0"),
    ],
    ids=str,
)
@pytest.mark.parametrize("suffix", ["jsonl", "npz"])
def test_recorded_observations_are_checked_as_those_of_a_run(tmp_path, space, last, expected, suffix):
    first = [1, 0, 0] if space is PARTS else [0, 0]
    episode = {"observations": [first, last], "actions": [0], "rewards": [0], "terminated": True}
    file = tmp_path / f"one.{suffix}"
    write(file, episode) if suffix == "jsonl" else np.savez(file, **episode)
    (found,) = read_episodes(file, interface(space))
    if isinstance(expected, list):
        np.testing.assert_array_equal(found.observation[1], np.array(expected, np.float32))
    else:
        assert found.kind == "illegal"
        assert expected in str(found)


@pytest.mark.parametrize(
    ("space", "taken", "expected"),
    [
        (Discrete(3, start=-1), [-1, 1], [0, 2]),
        (Discrete(3, start=-1), [0, 2], r"the action 2 is not in Discrete\(3, start=-1\)"),
        (MultiDiscrete([2, 3]), [[1, 0], [0, 2]], [3, 2]),
        (MultiDiscrete([2, 3]), [3, 2], "expected integers of shape"),
        (MultiDiscrete([2, 3]), [[2, 0], [0, 0]], r"the action \[2 0\] is not in"),
    ],
    ids=str,
)
def test_recorded_actions_are_those_of_the_environment(tmp_path, space, taken, expected):
    (found,) = read_episodes(write(tmp_path / "one.jsonl", GOOD | {"actions": taken}), interface(actions=space))
    if isinstance(expected, list):
        assert found.action.tolist() == expected
    else:
        assert re.search(expected, str(found))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.sampled_from([*GOOD, "x"]), part, max_size=4),
    max_leaves=12,
)
LINES = JSON | st.builds(lambda changes: GOOD | changes, st.dictionaries(st.sampled_from([*GOOD]), JSON, max_size=2))


def check_lines(tmp_path_factory, tree):
    """A line is an episode of finite numbers, or left out with a reason; what was written is what is read."""
    file = write(tmp_path_factory.mktemp("lines") / "one.jsonl", tree)
    (found,) = read_episodes(file, CARTPOLE)
    if hasattr(found, "kind"):
        assert str(found)
        return
    np.testing.assert_array_equal(found.observation, np.array(tree["observations"], np.float32))
    assert (found.action.tolist(), found.terminated) == (list(tree["actions"]), np.array(tree["terminated"]).item())
    assert np.isfinite(found.observation).all()
    assert np.isfinite(found.reward).all()


@settings(max_examples=100, deadline=None)
@given(LINES)
def test_any_line_is_an_episode_or_left_out(tmp_path_factory, tree):
    check_lines(tmp_path_factory, tree)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(LINES)
def test_thousands_of_lines_are_episodes_or_left_out(tmp_path_factory, tree):
    check_lines(tmp_path_factory, tree)


def check_archive(tmp_path_factory, damage):
    """An archive with some bytes overwritten is an episode of the right form, or left out."""
    file = tmp_path_factory.mktemp("archives") / "one.npz"
    np.savez(file, **GOOD)
    content = bytearray(file.read_bytes())
    for place, byte in damage:
        content[place % len(content)] = byte
    file.write_bytes(content)
    (found,) = read_episodes(file, CARTPOLE)
    assert hasattr(found, "kind") or (found.observation.shape, found.action.shape) == ((3, 4), (2,))


DAMAGE = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(DAMAGE)
def test_a_damaged_archive_is_left_out(tmp_path_factory, damage):
    check_archive(tmp_path_factory, damage)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(DAMAGE)
def test_thousands_of_damaged_archives_are_left_out(tmp_path_factory, damage):
    check_archive(tmp_path_factory, damage)


def test_a_file_that_is_no_archive_is_left_out(tmp_path):
    (tmp_path / "one.npz").write_text("nothing")
    (fault,) = read_episodes(tmp_path / "one.npz", CARTPOLE)
    assert fault.kind == "unreadable"


def test_an_archive_that_unpacks_to_more_than_an_episode_can_have_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "LARGEST_EPISODE", 2**20)
    np.savez_compressed(tmp_path / "one.npz", **GOOD | {"observations": np.zeros(2**18)})
    assert (tmp_path / "one.npz").stat().st_size < 2**13
    (fault,) = read_episodes(tmp_path / "one.npz", CARTPOLE)
    assert (fault.kind, "bytes" in str(fault)) == ("unreadable", True)


def test_an_archive_whose_header_claims_more_than_memory_holds_is_left_out(tmp_path):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)})
    with ZipFile(tmp_path / "one.npz", "w") as archive:
        archive.writestr("observations.npy", file.getvalue() + bytes(100))
    (fault,) = read_episodes(tmp_path / "one.npz", CARTPOLE)
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
