"""Conversion of gymnasium's spaces: observations to arrays, actions from integers and [-1, 1]."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Sequence, Text, Tuple

from podzero.core.errors import ConfigError
from podzero.envs.gymnasium_envs.spaces import Actions, Observations, mismatch

PARTS = Dict({"a": Discrete(3, start=1), "b": Tuple((MultiBinary(2), MultiDiscrete([2, 2]), Box(-1, 1, (1, 2))))})


@pytest.mark.parametrize(
    ("space", "shape", "dtype", "given", "converted"),
    [
        (Box(-1, 1, (2,), np.float32), (2,), "float32", [0.5, 1.0], [0.5, 1.0]),
        (Box(-1, 1, (1, 2), np.float64), (1, 2), "float32", [[0.5, 1.0]], [[0.5, 1.0]]),
        (Box(-1, 1, (), np.float16), (1,), "float16", np.float16(0.5), [0.5]),
        (Box(0, 255, (2,), np.uint8), (2,), "uint8", np.array([0, 255], np.uint8), [0, 255]),
        (Box(0, 9, (2,), np.int64), (2,), "float32", [3, 9], [3, 9]),
        (Box(0, 9, (2,), np.int16), (2,), "int16", np.array([3, 9], np.int8), [3, 9]),
        (Box(0, 255, (2,), np.uint8), (2,), "uint8", [0, 255], [0, 255]),
        (Box(0, 1, (2,), np.bool_), (2,), "bool", [0, 1], [False, True]),
        (Discrete(3, start=1), (3,), "float32", 2, [0, 1, 0]),
        (PARTS, (11,), "float32", {"a": 3, "b": (np.array([0, 1], np.int8), np.array([1, 0]), [[0.5, 0.25]])},
         [0, 0, 1, 0, 1, 0, 1, 1, 0, 0.5, 0.25]),
    ],
    ids=str,
)  # fmt: skip
def test_observations_become_arrays_of_one_shape_and_dtype(space, shape, dtype, given, converted):
    observations = Observations(space, "toy")
    assert (observations.shape, observations.dtype) == (shape, dtype)
    one = observations.convert(given)
    assert one.dtype == dtype
    np.testing.assert_array_equal(one, converted)
    assert observations.box.contains(one)


@pytest.mark.parametrize(
    ("space", "given", "wrong"),
    [
        (Box(-1, 1, (2,)), [0.0], r"shape \[1\] instead of \[2\]"),
        (Box(0, 255, (1,), np.uint8), np.array([0.5]), "dtype float64 instead of uint8"),
        (Box(0, 9, (1,), np.int64), [10], "10 is outside its bounds 0.0 to 9.0"),
        (Box(0, 255, (1,), np.uint8), [-1], "-1 is outside its bounds 0.0 to 255.0"),
        (Box(0, 9, (1,), np.int16), np.array([65537]), "65537 is outside its bounds 0.0 to 9.0"),
        (Box(0, 1, (1,), np.bool_), [2], "2 is outside its bounds 0.0 to 1.0"),
        (Discrete(3, start=1), 0, r"0 is not in Discrete\(3, start=1\)"),
        (MultiDiscrete([2, 2]), np.array([0, 2]), "is not in MultiDiscrete"),
        (PARTS, {"a": 1}, "does not have the keys"),
        (Tuple((Discrete(2), Discrete(2))), (0,), "does not have 2 parts"),
        (Tuple((Discrete(2), Discrete(2))), (0, 5), r"\[1\]: 5 is not in Discrete\(2\)"),
    ],
)
def test_values_outside_their_space_are_described(space, given, wrong):
    with pytest.raises(AssertionError, match=wrong):
        raise AssertionError(mismatch(space, given, bounds=True))


def test_conversion_checks_shapes_dtypes_and_integers():
    for space, given in (
        (Box(-1, 1, (2,)), [0.0]),
        (Box(0, 255, (1,), np.uint8), np.array([0.5])),
        (Box(0, 9, (1,), np.int64), np.array([2.0], np.float32)),
        (Box(0, 9, (1,), np.int16), np.array([65536 + 5])),
        (PARTS, {"a": 4, "b": (np.zeros(2, np.int8), np.zeros(2, int), [[0, 0]])}),
    ):
        with pytest.raises(ValueError, match=r"shape \[1\]|float|65541|\['a'\]: 4"):
            Observations(space, "toy").convert(given)


def test_first_observations_may_exceed_their_bounds_only_by_rounding():
    space = Box(-1, 1, (1,))
    assert mismatch(space, np.array([1.001]), bounds=True) is None
    assert "1.1 is outside its bounds -1.0 to 1.0" in mismatch(space, np.array([1.1]), bounds=True)
    assert mismatch(space, np.array([1.1]), bounds=False) is None
    assert "NaN or infinity" in mismatch(Box(-np.inf, np.inf, (1,)), np.array([np.nan]), bounds=True)


def test_later_observations_must_be_finite_and_within_ten_widths_of_their_bounds():
    """The first dimension has the bounds -1 and 1 (width 2), the second no upper bound, the third no bound."""
    space = Box(np.array([-1, 0, -np.inf]), np.array([1, np.inf, np.inf]), dtype=np.float32)
    observations = Observations(space, "toy")
    batch = np.array([
        [0, 0, 0], [21, 1e30, -1e30], [-21, -1e30, 1e30], [21.5, 0, 0], [-21.5, 0, 0],
        [np.nan, 0, 0], [0, np.inf, 0], [0, 0, -np.inf],
    ], np.float32)  # fmt: skip
    np.testing.assert_array_equal(observations.valid(batch), [True] * 3 + [False] * 5)
    assert observations.invalid_value(batch[3]) == "21.5, outside the range -21 to 21"
    assert observations.invalid_value(batch[0]) is None


def test_integers_must_be_within_their_bounds():
    small = Observations(Box(0, 3, (2,), np.uint8), "toy")
    np.testing.assert_array_equal(small.valid(np.array([[0, 3], [0, 4]], np.uint8)), [True, False])
    wide = Observations(Box(0, 3, (1,), np.int64), "toy")
    np.testing.assert_array_equal(wide.valid(np.array([[3], [4]], np.float32)), [True, False])
    images = Observations(Box(0, 255, (2,), np.uint8), "toy")
    np.testing.assert_array_equal(images.valid(np.array([[0, 255], [9, 9]], np.uint8)), [True, True])


@pytest.mark.parametrize("part", [Text(3), Graph(Box(-1, 1), None), Sequence(Discrete(2))], ids=str)
def test_spaces_without_a_fixed_shape_are_refused_by_name(part):
    with pytest.raises(ConfigError, match=rf"observation space .*{type(part).__name__}\("):
        Observations(Dict({"a": Discrete(2), "b": Tuple((part,))}), "toy")


def test_actions_are_decoded_into_those_of_the_space():
    discrete = Actions(Discrete(3, start=5), "toy")
    assert (discrete.count, discrete.bounds) == (3, None)
    np.testing.assert_array_equal(discrete.decode(np.array([0, 2], np.int32)), [5, 7])

    joint = Actions(MultiDiscrete([[2, 3]], start=[[0, -1]]), "toy")
    assert joint.count == 6
    np.testing.assert_array_equal(joint.decode(np.array([0, 4], np.int32)), [[[0, -1]], [[1, 0]]])

    bits = Actions(MultiBinary(3), "toy")
    assert bits.count == 8
    np.testing.assert_array_equal(bits.decode([6]), [[1, 1, 0]])

    floats = Actions(Box(np.array([[0.0], [-3.0]]), np.array([[4.0], [1.0]]), (2, 1), np.float64), "toy")
    assert (floats.count, floats.bounds) == (0, ((0.0, -3.0), (4.0, 1.0)))
    decoded = floats.decode(np.array([[-1, 1], [0, 0], [0.5, -7]], np.float32))
    np.testing.assert_array_equal(decoded, [[[0], [1]], [[2], [-1]], [[3], [-3]]])


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Box(-1, np.inf, (1,)), "must contain floats between bounds"),
        (Box(0, 3, (1,), np.int32), "must contain floats between bounds"),
        (MultiDiscrete([64, 65]), "has 4160 combinations, but podzero supports at most 4096"),
        (Tuple((Discrete(2), Discrete(2))), "supported: Discrete, MultiDiscrete, MultiBinary, Box"),
    ],
    ids=str,
)
def test_unsupported_action_spaces_are_refused(space, message):
    with pytest.raises(ConfigError, match=f"toy: its action.* {message}"):
        Actions(space, "toy")


def test_actions_of_the_environment_are_encoded_as_podzeros():
    for space in (Discrete(3, start=-1), MultiDiscrete([[2, 3]], start=[[0, -1]]), MultiBinary(3)):
        actions = Actions(space, "toy")
        numbers = np.arange(actions.count, dtype=np.int32)
        taken = actions.decode(numbers)
        np.testing.assert_array_equal(actions.encode(taken), numbers)
        for wrong in (taken + 9, taken - 1, taken.astype(float), taken[..., None]):
            with pytest.raises(ValueError, match=r"is not in|expected integers of shape"):
                actions.encode(wrong)


WIDE = [
    Box(0, 3, (2,), np.int64), Box(-9, 9, (), np.int8), Box(-np.inf, np.inf, (2,)), Box(5, np.inf, (1,), np.float64),
    Box(-3.4e38, 3.4e38, (3,)), Box(np.array([0, -np.inf], np.float32), np.array([4, 0], np.float32)),
    Box(-(2**62), 2**62, (1,), np.int64),
]  # fmt: skip


@pytest.mark.parametrize("space", WIDE, ids=str)
def test_the_wrapper_that_a_message_shows_bounds_the_actions(space):
    class Wide(gymnasium.Env):
        action_space, observation_space = space, Box(-1, 1, (1,))

        def step(self, action):
            assert space.contains(action)
            return action

    with pytest.raises(ConfigError) as refused:
        Actions(space, "toy")
    code = str(refused.value).partition("\n\n")[2]
    names = {}
    exec(code, names)
    wrapped = names["Bounded"](Wide())
    actions = Actions(wrapped.action_space, "toy")
    chosen = np.array([[-1.0], [0.3], [1.0]]).repeat(len(actions.bounds[0]), axis=1)
    taken = [wrapped.step(one) for one in actions.decode(chosen)]
    assert not np.array_equal(taken[0], taken[-1])
