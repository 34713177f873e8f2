"""One contract for all gymnasium environments and all ways to vectorize them."""

import importlib.util

import numpy as np
import pytest

from podzero.config import GymnasiumConfig
from podzero.core.errors import ConfigError
from podzero.envs import make_env, spec_of

STACK = {"name": "FrameStackObservation", "kwargs": {"stack_size": 4}}
PONG = {"id": "ALE/Pong-v5", "module": "ale_py", "wrappers": [{"name": "GrayscaleObservation"}, STACK]}
PREPROCESSED = {**PONG, "kwargs": {"frameskip": 1},
                "wrappers": [{"name": "AtariPreprocessing", "kwargs": {"frame_skip": 4}}, STACK]}  # fmt: skip
CONTRACT = {
    "cartpole": ({"id": "CartPole-v1"}, (4,), "float32", 2),
    "cartpole-async": ({"id": "CartPole-v1", "vectorization": "async"}, (4,), "float32", 2),
    "cartpole-own": ({"id": "CartPole-v1", "vectorization": "own"}, (4,), "float32", 2),
    "frozen_lake": ({"id": "FrozenLake-v1"}, (16,), "float32", 4),
    "pendulum": ({"id": "Pendulum-v1"}, (3,), "float32", ((-2.0,), (2.0,))),
    "lunar_lander": ({"id": "LunarLander-v3"}, (8,), "float32", 4),
    "breakout": ({"id": "MinAtar/Breakout-v1", "module": "minatar"}, (10, 10, 4), "bool", 3),
    "pong": (PONG, (4, 210, 160), "uint8", 6),
    "pong-preprocessed": (PREPROCESSED, (4, 84, 84), "uint8", 6),
    "pong-own": ({"id": "ALE/Pong-v5", "module": "ale_py", "vectorization": "own"}, (4, 84, 84), "uint8", 6),
    "joint": ({"id": "toys/Joint-v0", "module": "gymnasium_toys"}, (2,), "float32", 6),
    "taxi": ({"id": "Taxi-v4"}, (500,), "float32", 6),
    "taxi-async": ({"id": "Taxi-v4", "vectorization": "async"}, (500,), "float32", 6),
    "masked-own": (
        {"id": "toys/Masked-v0", "module": "gymnasium_toys", "vectorization": "own"}, (3,), "float32", 3
    ),
    "parts": ({"id": "toys/Parts-v0", "module": "gymnasium_toys"}, (5,), "float32", ((0.0, -1.0), (4.0, 1.0))),
    "toy-own": ({"id": "toys/Toy-v0", "module": "gymnasium_toys", "vectorization": "own", "kwargs": {"fault": "none"}},
                (3,), "float32", 3),
}  # fmt: skip
COUNT = 3
"""Environments of each vector."""


def toy(**config):
    return {"id": "toys/Toy-v0", "module": "gymnasium_toys", **config}


def lacking(extra):
    return toy(id="toys/Lacking-v0", kwargs={"extra": extra})


def random_play(vector, steps, seed=5):
    """The reset and T random steps as one `VectorStep` of arrays `[T + 1, B, ...]`."""
    rng = np.random.default_rng(seed)
    seen = [vector.reset()]
    for _ in range(steps):
        if vector.spec.num_actions:
            choices = rng.random(seen[-1].legal.shape) * seen[-1].legal
            actions = choices.argmax(axis=1).astype(np.int32)
        else:
            actions = rng.uniform(-1, 1, (vector.count, *vector.spec.action_shape)).astype(np.float32)
        seen.append(vector.step(actions))
    return type(seen[0])(*map(np.stack, zip(*seen, strict=True)))


@pytest.mark.parametrize(("config", "shape", "dtype", "actions"), CONTRACT.values(), ids=CONTRACT)
def test_contract(make_vector, config, shape, dtype, actions):
    if config is PREPROCESSED and importlib.util.find_spec("cv2") is None:
        pytest.skip("gymnasium's AtariPreprocessing needs OpenCV")
    steps = 25 if "ALE" in config["id"] else 120
    vector = make_vector(**config)
    spec = vector.spec
    assert spec == spec_of(GymnasiumConfig(name="gymnasium", **config))
    assert spec.name == f"gymnasium/{config['id']}"
    assert (spec.observation_shape, spec.observation_dtype, spec.players) == (shape, dtype, 1)
    assert (spec.action_bounds or spec.num_actions) == actions

    played = random_play(vector, steps)
    assert played.observation.shape == (steps + 1, COUNT, *shape)
    assert played.observation.dtype == dtype
    assert played.reward.dtype == np.float32
    legal = played.legal
    assert legal.shape == (steps + 1, COUNT, spec.num_actions)
    assert legal.dtype == bool
    assert (legal.any(axis=-1) | bool(spec.action_bounds)).all()
    assert spec.masked or legal.all()
    for flags in played[2:-1]:
        assert flags.dtype == bool
        assert flags.shape == (steps + 1, COUNT)
    ended = played.terminated | played.truncated
    assert not (played.terminated & played.truncated).any()
    assert played.started[0].all()
    np.testing.assert_array_equal(played.started[1:], ended[:-1])
    assert (played.reward[played.started] == 0).all()
    assert not ended[played.started].any()
    assert vector.failures == 0

    again = random_play(make_vector(**config), steps)
    for one, other in zip(played, again, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("vectorization", ["sync", "async", "own"])
def test_seeds_and_environments_start_differently(make_vector, vectorization):
    starts = np.concatenate([
        make_vector(seed=seed, id="CartPole-v1", vectorization=vectorization).reset().observation for seed in (0, 1)
    ])  # fmt: skip
    assert len(np.unique(starts, axis=0)) == 2 * COUNT


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_step_after_the_final_observation_starts_a_new_episode(make_vector, vectorization):
    vector = make_vector(**toy(vectorization=vectorization, kwargs={"length": 2}))
    first = vector.reset()
    np.testing.assert_array_equal(first.observation, [[0, -1, 1]] * COUNT)
    steps = [vector.step(np.ones(COUNT, np.int32)) for _ in range(4)]
    np.testing.assert_array_equal(
        [step.observation[0] for step in steps], [[1, 1, 1], [2, 1, 1], [0, -1, 2], [1, 1, 2]]
    )
    np.testing.assert_array_equal([step.reward[0] for step in steps], [1, 1, 0, 1])
    np.testing.assert_array_equal([step.terminated[0] for step in steps], [False, True, False, False])
    np.testing.assert_array_equal([step.started[0] for step in steps], [False, False, True, False])


def test_a_registered_vector_environment_ends_episodes_in_the_same_way(make_vector):
    """Its episodes last two, three and four steps, and it returns the same buffer in every step."""
    vector = make_vector(**toy(vectorization="own"))
    vector.reset()
    steps = [vector.step(np.ones(COUNT, np.int32)) for _ in range(5)]
    np.testing.assert_array_equal(
        [step.observation[:, 0] for step in steps], [[1, 1, 1], [2, 2, 2], [0, 3, 3], [1, 0, 4], [2, 1, 0]]
    )
    np.testing.assert_array_equal([step.terminated.tolist() for step in steps][1], [True, False, False])
    np.testing.assert_array_equal(steps[2].started, [True, False, False])


def test_a_time_limit_truncates_and_does_not_terminate(make_vector):
    """With a limit of three steps, an episode of five is truncated and one of three terminates at the limit."""
    for length, truly in ((5, False), (3, True)):
        vector = make_vector(1, **toy(id="toys/Limited-v0", kwargs={"length": length}))
        vector.reset()
        steps = [vector.step(np.zeros(1, np.int32)) for _ in range(4)]
        assert [bool(step.terminated[0]) for step in steps] == [False, False, truly, False]
        assert [bool(step.truncated[0]) for step in steps] == [False, False, not truly, False]
        assert [bool(step.started[0]) for step in steps] == [False, False, False, True]


@pytest.mark.parametrize("vectorization", ["sync", "async", "own"])
def test_callers_may_keep_and_change_the_arrays_of_a_step(make_vector, vectorization):
    vector = make_vector(**toy(vectorization=vectorization))
    steps = [vector.reset()] + [vector.step(np.zeros(COUNT, np.int32)) for _ in range(2)]
    np.testing.assert_array_equal([step.observation[:, 0] for step in steps], [[0] * 3, [1] * 3, [2] * 3])
    expected = vector.step(np.zeros(COUNT, np.int32))

    changed = make_vector(**toy(vectorization=vectorization))
    for _ in range(3):
        for field in changed.reset():
            field[...] = 1
    for _ in range(2):
        for field in changed.step(np.zeros(COUNT, np.int32)):
            field[...] = 1
    for one, other in zip(changed.step(np.zeros(COUNT, np.int32)), expected, strict=True):
        np.testing.assert_array_equal(one[..., :2], other[..., :2])  # it is in its third episode, not the first


def test_joint_actions_are_numbered_in_c_order_from_their_start(make_vector):
    vector = make_vector(6, id="toys/Joint-v0", module="gymnasium_toys")
    vector.reset()
    shown = vector.step(np.arange(6, dtype=np.int32)).observation
    np.testing.assert_array_equal(shown, [[0, 5], [0, 6], [0, 7], [1, 5], [1, 6], [1, 7]])


def test_actions_in_minus_one_to_one_are_scaled_to_the_bounds_of_each_dimension(make_vector):
    """The bounds are 0 to 4 and -1 to 1. The Dict is flattened: the number 1 of 1 to 3 becomes one-hot."""
    vector = make_vector(id="toys/Parts-v0", module="gymnasium_toys")
    np.testing.assert_array_equal(vector.reset().observation[:, 2:], [[1, 0, 0]] * COUNT)
    shown = vector.step(np.array([[-1, -1], [0, 0.5], [3, 1]], np.float32)).observation
    np.testing.assert_array_equal(shown, [[0, -1, 0, 1, 0], [2, 0.5, 0, 1, 0], [4, 1, 0, 1, 0]])


def test_the_first_wrapper_is_the_innermost(make_vector):
    wrappers = [
        {"name": "gymnasium_toys:Doubled", "kwargs": {"factor": 3.0}},
        {"name": "ClipReward", "kwargs": {"max_reward": 2.0}},
    ]
    vector = make_vector(**toy(wrappers=wrappers))
    vector.reset()
    assert vector.step(np.ones(COUNT, np.int32)).reward.tolist() == [2.0] * COUNT


def test_subprocesses_of_environments_do_not_import_jax(make_vector):
    here = make_vector(1, id="toys/Imported-v0", module="gymnasium_toys", kwargs={"module": "jax"})
    there = make_vector(
        1, id="toys/Imported-v0", module="gymnasium_toys", kwargs={"module": "jax"}, vectorization="async"
    )  # fmt: skip
    assert here.reset().observation.all()
    assert not there.reset().observation.any()


def test_the_number_of_actions_is_checked(make_vector):
    vector = make_vector(**toy())
    vector.reset()
    with pytest.raises(ValueError, match="2 actions for 3 environments"):
        vector.step(np.zeros(2, np.int32))
    vector.close()
    vector.close()
    with pytest.raises(RuntimeError, match="are closed"):
        vector.step(np.zeros(3, np.int32))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id": "cartpole-v1"}, "unknown gymnasium id 'cartpole-v1' .did you mean 'CartPole-v1'"),
        ({"id": "MinAtar/Breakout-v7", "module": "minatar"}, "did you mean 'MinAtar/Breakout-v.*did not register it"),
        ({"id": "ALE/Pung-v9"}, "set env.module: ale_py"),
        ({"id": "toys/Toy-v0", "module": "gymnasium_tois"}, "gymnasium_tois cannot be imported: ModuleNotFoundError"),
        ({"id": "toys/Toy-v0", "module": "toys.py"}, "env.module: toys.py cannot be imported: FileNotFoundError"),
        ({"id": "CartPole-v1", "kwargs": {"gravity": 1}}, "cannot be made with kwargs .'gravity': 1.: TypeError"),
        (toy(id="toys/Lacking-v0"), r"needs a package .*pip install .gymnasium\[box2d\].*uv sync .*--extra envs"),
        (lacking("classic_control"), "uv sync --inexact --extra envs"),
        (lacking("toy-text"), "uv sync --inexact --extra envs"),
        (lacking("mujoco"), r"gymnasium\[mujoco\].*uv sync --inexact --extra mujoco"),
        (lacking("other"), r"gymnasium\[other\]..$"),
        ({"id": "CartPole-v1", "wrappers": [{"name": "TimeLimits"}]}, "has no 'TimeLimits' .did you mean 'TimeLimit'"),
        ({"id": "CartPole-v1", "wrappers": [{"name": "TimeLimit", "kwargs": {"n": 1}}]}, "'TimeLimit' cannot be made"),
        ({"id": "CartPole-v1", "wrappers": [{"name": "Autoreset"}]}, "leave out 'Autoreset'"),
        ({"id": "CartPole-v1", "wrappers": [{"name": "nowhere:A"}]}, "'nowhere:A': nowhere cannot be imported"),
        ({"id": "CartPole-v1", "wrappers": [{"name": "json:loads"}]}, "json has no class 'loads'"),
        (
            {"id": "CartPole-v1", "wrappers": [{"name": "json:JSONDecoder"}]},
            "'json:JSONDecoder' is not a gymnasium.Wrapper",
        ),
        (
            {"id": "Acrobot-v1", "vectorization": "own"},
            "'Acrobot-v1' registers no vector environment",
        ),
        (
            toy(vectorization="own", kwargs={"mode": "SameStep"}),
            "SAME_STEP.*supports only AutoresetMode.NEXT_STEP",
        ),
        (toy(id="toys/Words-v0"), r"observation space contains Text\("),
        (toy(id="toys/Reaching-v0"), "must contain floats between bounds"),
        (toy(id="toys/Reaching-v0", kwargs={"count": 6}), "has 15625 combinations, but podzero supports at most 4096"),
        (toy(id="toys/Parts-v0", kwargs={"first": 4}), r"first observation.*\['where'\]: 4 is not in Discrete"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_environments_that_cannot_be_made_are_refused(make_vector, config, message):
    with pytest.raises(ConfigError, match=message):
        make_vector(**config)


def test_tree_search_cannot_play_a_gymnasium_environment():
    with pytest.raises(ConfigError, match=r"CartPole-v1 .*cannot be cloned"):
        make_env(GymnasiumConfig(name="gymnasium", id="CartPole-v1"))


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_numbers_of_info_at_the_end_of_episodes_are_averaged(make_vector, vectorization):
    vector = make_vector(**toy(vectorization=vectorization, metrics=["last", "square", "not", "absent"]))
    vector.reset()
    for actions in ([0, 1, 0], [0, 1, 0], [0, 1, 0], [1, 1, 0]):  # an episode has four steps
        assert vector.measured() == {}
        vector.step(np.array(actions, np.int32))
    # What is no number, and what info does not have, is left out.
    assert vector.measured() == {"last": pytest.approx(2 / 3), "square": 16}
    assert vector.measured() == {}
