"""Action masks: `info["action_mask"]` of gymnasium environments."""

import re

import numpy as np
import pytest

from podzero.errors import ConfigError

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
    ("mask", "message"), [("none", "allows no action"), ("long", r"\[4\]|shape"), ("missing", "has no 'action_mask'")]
)
def test_a_wrong_mask_is_a_failure_of_its_environment(make_vector, mask, message, vectorization, caplog):
    vector = make_vector(2, **TOY, vectorization=vectorization, kwargs={"mask": mask})
    step = steps(vector, 1)[-1]
    assert step.failed.all()
    assert vector.failures == 2
    assert step.legal.tolist() == ([[True] * 3] * 2 if mask in ("none", "long") else [[False, True, True]] * 2)
    assert re.search(message, caplog.text)


def test_a_first_mask_that_is_wrong_is_refused(make_vector):
    with pytest.raises(ConfigError, match=r"allows no action.*wrapper"):
        make_vector(**TOY, kwargs={"mask": "none at first"})
