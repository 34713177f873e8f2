"""Windows cut out of scripted episodes, compared with the definition of `Window`."""

import numpy as np
import pytest

from podzero.actors.environments import Position, WindowCutter, window_priorities
from podzero.config import parse
from podzero.core.types import EnvSpec
from podzero.envs import VectorStep
from podzero.replay.reader import priorities_of

SPEC = EnvSpec("scripted", (1,), "float32", 3, players=1)


def experiment_of(unroll=2, td=2, stride=1, discount=0.5, **sections):
    tree = {
        "name": "t",
        "env": {"name": "gymnasium", "id": "CartPole-v1", "discount": discount},
        "network": {"name": "muzero_mlp"},
        "muzero": {"unroll_steps": unroll, "td_steps": td, "stride": stride, **sections.pop("muzero", {})},
        **sections,
    }
    return parse(tree, "test")


def position(numbers, spec=SPEC):
    """Environment b at its position `numbers[b]`, from which all fields are derived."""
    numbers = np.asarray(numbers)
    size = len(numbers)
    policy = np.full((size, 3), 0.25, np.float32)
    policy[:, 0] = 0.5
    continuous = spec.action_bounds is not None
    return Position(
        observation=numbers[:, None].astype(np.float32),
        action=np.full((size, 2), 0.5, np.float32) if continuous else (numbers % 3).astype(np.int32),
        policy=policy,
        candidates=np.ones((size, 3, 2), np.float32) if continuous else np.zeros((size, 0), np.float32),
        value=10.0 * numbers.astype(np.float32),
        version=numbers.astype(np.int32),
    )


def outcome(reward, terminated=False, truncated=False, started=False):
    ends = (np.atleast_1d(field) for field in (terminated, truncated, started))
    return VectorStep(None, np.atleast_1d(np.asarray(reward, np.float32)), *ends, failed=None, legal=None)


def play(cutter, steps, **end):
    """One environment for `steps` steps with the rewards 1, 2, ..., then `end`; returns all windows."""
    cuts = []
    for number in range(steps):
        cuts.append(cutter.add_position(position([number])))
        cutter.add_step(outcome(number + 1.0, **(end if number == steps - 1 else {})))
    cuts.append(cutter.add_position(position([steps])))
    return [cut[0] for cut in cuts if cut is not None]


def test_a_window_is_cut_when_all_of_its_positions_have_been_searched():
    cutter = WindowCutter(experiment_of(), SPEC, 1)
    (window,) = play(cutter, 4)  # K + n = 4: position 4 completes the window of position 0
    np.testing.assert_array_equal(window.observation, [[[0.0]]])
    np.testing.assert_array_equal(window.action, [[0, 1]])
    np.testing.assert_array_equal(window.reward, [[1, 2, 3, 4]])
    np.testing.assert_array_equal(window.value, [[0, 10, 20, 30, 40]])
    np.testing.assert_array_equal(window.policy.sum(axis=-1), [[1, 1, 1]])
    assert (window.length, window.terminated, window.version) == (4, False, 0)
    assert window.candidates.shape == (1, 3, 0)


def test_termination_cuts_all_remaining_windows_and_has_value_zero():
    cutter = WindowCutter(experiment_of(), SPEC, 1)
    (windows,) = play(cutter, 3, terminated=True)
    np.testing.assert_array_equal(windows.length, [3, 2, 1])
    np.testing.assert_array_equal(windows.terminated, [True] * 3)
    np.testing.assert_array_equal(windows.reward, [[1, 2, 3, 0], [2, 3, 0, 0], [3, 0, 0, 0]])
    np.testing.assert_array_equal(windows.value, [[0, 10, 20, 0, 0], [10, 20, 0, 0, 0], [20, 0, 0, 0, 0]])
    np.testing.assert_array_equal(windows.policy.sum(axis=-1), [[1, 1, 1], [1, 1, 0], [1, 0, 0]])


def test_truncation_keeps_the_value_of_the_last_position():
    cutter = WindowCutter(experiment_of(), SPEC, 1)
    (windows,) = play(cutter, 2, truncated=True)
    np.testing.assert_array_equal(windows.length, [2, 1])
    np.testing.assert_array_equal(windows.terminated, [False] * 2)
    np.testing.assert_array_equal(windows.value, [[0, 10, 20, 0, 0], [10, 20, 0, 0, 0]])
    np.testing.assert_array_equal(windows.policy.sum(axis=-1), [[1, 1, 0], [1, 0, 0]])


def test_no_window_spans_two_episodes():
    cutter = WindowCutter(experiment_of(), SPEC, 1)
    play(cutter, 2, terminated=True)
    cutter.add_step(outcome(0.0, started=True))  # the step that starts the next episode
    for number in range(100, 104):
        assert cutter.add_position(position([number])) is None
        cutter.add_step(outcome(1.0))
    windows, _ = cutter.add_position(position([104]))
    np.testing.assert_array_equal(windows.observation, [[[100.0]]])
    np.testing.assert_array_equal(windows.reward, [[1, 1, 1, 1]])


def test_a_failed_episode_gives_no_windows():
    cutter = WindowCutter(experiment_of(), SPEC, 1)
    for number in range(3):
        assert cutter.add_position(position([number])) is None
        cutter.add_step(outcome(1.0, started=number == 2))
    assert cutter.add_position(position([50])) is None
    cutter.add_step(outcome(1.0, terminated=True))
    np.testing.assert_array_equal(cutter.add_position(position([51]))[0].observation, [[[50.0]]])


def test_the_stride_counts_from_the_beginning_of_each_episode():
    cutter = WindowCutter(experiment_of(stride=2), SPEC, 1)
    windows = play(cutter, 7, terminated=True)
    assert [int(number) for window in windows for number in window.observation[:, 0, 0]] == [0, 2, 4, 6]


def test_parallel_environments_are_independent():
    cutter = WindowCutter(experiment_of(), SPEC, 2)
    neither = [False] * 2
    for number in range(2):
        cutter.add_position(position([number, 100 + number]))
        cutter.add_step(outcome([1.0, 2.0], [number == 1, False], neither, neither))
    windows, _ = cutter.add_position(position([2, 102]))
    np.testing.assert_array_equal(windows.observation[:, 0, 0], [0, 1])
    cutter.add_step(outcome([0.0, 2.0], neither, neither, [True, False]))
    cutter.add_position(position([200, 103]))
    cutter.add_step(outcome([5.0, 2.0], neither, neither, neither))
    windows, _ = cutter.add_position(position([201, 104]))
    np.testing.assert_array_equal(windows.observation[:, 0, 0], [100])
    np.testing.assert_array_equal(windows.reward, [[2, 2, 2, 2]])


@pytest.mark.parametrize(("sections", "kept"), [({}, 1), ({"muzero": {"consistency_weight": 2.0}}, 3)])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_windows_have_only_the_observations_that_the_loss_or_reanalysis_needs(sections, kept, share):
    cutter = WindowCutter(experiment_of(**sections, reanalyse={"share": share}), SPEC, 1)
    for number in range(4):
        assert cutter.add_position(position([number])) is None
        cutter.add_step(outcome(number + 1.0))
    windows, states = cutter.add_position(position([4]))
    np.testing.assert_array_equal(windows.observation[0, :, 0], np.arange(kept))
    assert (states is None) == (share == 0)
    if states is not None:
        np.testing.assert_array_equal(states.observation[0, :, 0], np.arange(5))
        for field in set(states._fields) - {"observation"}:
            np.testing.assert_array_equal(getattr(states, field), getattr(windows, field))


def test_actions_after_the_end_are_uniformly_random():
    seen = set()
    for seed in range(20):
        (windows,) = play(WindowCutter(experiment_of(), SPEC, 1, seed), 2, terminated=True)
        assert windows.action[0].tolist() == [0, 1]
        seen.add(int(windows.action[1, 1]))
    assert seen == {0, 1, 2}


def test_continuous_actions_keep_their_candidates():
    spec = SPEC._replace(num_actions=0, action_bounds=((-2.0, -2.0), (2.0, 2.0)))
    cutter = WindowCutter(experiment_of(), spec, 1)
    for number in range(4):
        assert cutter.add_position(position([number], spec)) is None
        cutter.add_step(outcome(1.0))
    windows = cutter.add_position(position([4], spec))[0]
    assert windows.candidates.shape == (1, 3, 3, 2)
    np.testing.assert_array_equal(windows.action, np.full((1, 2, 2), 0.5))


def test_priorities_are_the_differences_between_search_values_and_nstep_returns():
    """The returns are 1 + 0.5 * 2 + 0.25 * 20 from position 0, 2 + 0.5 * 3 from 1 and 3 from 2."""
    experiment = experiment_of(td=2, discount=0.5)
    cutter = WindowCutter(experiment, SPEC, 1)
    for number in range(3):
        cutter.add_position(position([number]))
        cutter.add_step(outcome(number + 1.0, terminated=number == 2))
    windows, _ = cutter.add_position(position([3]))
    expected = priorities_of(np.array([7.0 - 0.0, 10.0 - 3.5, 20.0 - 3.0]))
    np.testing.assert_allclose(window_priorities(windows, experiment), expected)
