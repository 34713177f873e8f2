"""Action masks of gymnasium environments: where they are, and what is one."""

import re

import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.core.errors import ConfigError
from podzero.envs.gymnasium_envs.interface import Masks, find_masks
from podzero.envs.gymnasium_envs.spaces import Actions

ELSEWHERE = {"id": "toys/MaskedElsewhere-v0", "module": "gymnasium_toys"}
TOY = {"id": "toys/Masked-v0", "module": "gymnasium_toys"}


def steps(vector, count):
    """The reset and `count` steps with the first legal actions."""
    seen = [vector.reset()]
    for _ in range(count):
        seen.append(vector.step(seen[-1].legal.argmax(axis=1).astype(np.int32)))
    return seen


@pytest.mark.parametrize("vectorization", ["sync", "async", "own"])
def test_masks_arrive_with_their_observations_and_the_end_of_an_episode_allows_all(make_vector, vectorization):
    vector = make_vector(2, **TOY, vectorization=vectorization)
    assert vector.spec.masked
    for step in steps(vector, 12):
        for time, ended, legal in zip(step.observation[:, 0], step.terminated, step.legal, strict=True):
            np.testing.assert_array_equal(legal, np.full(3, True) if ended else np.arange(3) != time % 3)
    assert vector.failures == 0


@pytest.mark.parametrize("vectorization", ["sync", "own"])
def test_no_action_need_be_legal_at_the_end(make_vector, vectorization):
    vector = make_vector(2, **TOY, vectorization=vectorization, kwargs={"mask": "none at the end"})
    assert any(step.terminated.any() for step in steps(vector, 9))
    assert vector.failures == 0


@pytest.mark.parametrize("vectorization", ["sync", "own"])
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("none", "allows no action"),
        ("long", r"has the shape \[.*4\]"),
        ("missing", r"there is no info\['action_mask'\]"),
    ],
)
def test_a_wrong_mask_is_a_failure_of_its_environment(make_vector, mask, message, vectorization, caplog):
    vector = make_vector(2, **TOY, vectorization=vectorization, kwargs={"mask": mask})
    step = steps(vector, 1)[-1]
    assert step.failed.all()
    assert vector.failures == 2
    assert step.legal.tolist() == ([[True] * 3] * 2 if mask in ("none", "long") else [[False, True, True]] * 2)
    assert re.search(message, caplog.text)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("none at first", "allows no action"),
        ("logits", r"is \[0.0, -inf, -inf\]; expected bool, or 1"),
        ("indices", r"is \[2, 2, 2\]; expected bool"),
        ("words", r"is \['a', 'b', 'c'\]; expected bool"),
        ("nan", r"is \[1.0, nan, 0.0\]; expected bool"),
        ("short", r"has the shape \[2\]; expected \[3\]"),
        ("tuple", r"has parts of different lengths; expected \[3\]: .* each combination"),
    ],
)
def test_a_first_mask_that_is_none_is_refused(make_vector, mask, message):
    with pytest.raises(ConfigError, match=rf"info\['action_mask'\] {message}.*wrapper"):
        make_vector(**TOY, kwargs={"mask": mask})


def test_masks_may_be_numbers_that_are_exactly_zero_and_one(make_vector):
    vector = make_vector(1, **TOY, kwargs={"mask": "numbers"})
    assert [step.legal[0].tolist() for step in steps(vector, 1)] == [[False, True, True], [True, False, True]]


@pytest.mark.parametrize("place", ["method", "action_mask"])
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_masks_in_observations_and_behind_the_method_are_read(make_vector, place, vectorization):
    vector = make_vector(2, **ELSEWHERE, kwargs={"place": place}, vectorization=vectorization)
    assert vector.spec.masked
    for step in steps(vector, 6):
        times = step.observation[:, -3]
        for time, ended, legal in zip(times, step.terminated, step.legal, strict=True):
            np.testing.assert_array_equal(legal, np.full(3, True) if ended else np.arange(3) != time % 3)
    assert vector.failures == 0


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"place": "legal_actions"}, r"'legal_actions', which is not read as a mask; podzero reads masks from info"),
        ({"place": "nested"}, r"'action_mask', which is not read as a mask"),
        ({"place": "method", "joint": True}, r"one mask for each part of MultiDiscrete.*\[3\] bool"),
    ],
)
def test_masks_that_are_not_read_are_refused(make_vector, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        make_vector(**ELSEWHERE, kwargs=kwargs)


def test_masks_of_continuous_actions_are_refused():
    space = Box(-1, 1, (2,), np.float32)
    with pytest.raises(ValueError, match=r"info\['action_mask'\], but masks of continuous actions are not supported"):
        find_masks(None, np.zeros(2), {"action_mask": np.ones(2)}, space, Actions(space, "toy"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([0, 1, True, False, 2, -1, 0.5, np.nan, -np.inf, "1", None]), max_size=4))
def test_a_mask_is_read_as_written_or_refused(values):
    masks = Masks(3, "info['action_mask']")
    plain = len(values) == 3 and all(isinstance(one, int) and one in (0, 1) for one in values) and any(values)
    try:
        legal = masks.read(None, None, {"action_mask": values}, np.array(False))["action_mask"]
    except ValueError:
        assert not plain
    else:
        assert plain
        assert legal.tolist() == [bool(one) for one in values]
