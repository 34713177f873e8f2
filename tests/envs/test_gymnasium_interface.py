"""What environments return is checked: in random episodes before a run, and in the run, in the same words."""

import pytest

from podzero.config import GymnasiumConfig
from podzero.core.errors import ConfigError
from podzero.envs import check_env, check_steps


def config(returned, **kwargs):
    place = {"name": "gymnasium", "id": "toys/Returning-v0", "module": "gymnasium_toys"}
    return GymnasiumConfig(**place, kwargs={"returned": returned, **kwargs})


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("four", "step returned 4 values; expected 5 values: observation, reward, terminated, truncated, info"),
        ("three", "step returned 3 values"),
        ("nothing", "step returned NoneType"),
        ("no info", "the info that step returned is None; expected a dict"),
        ("word", "its terminated is 'False'; expected True or False"),
        ("no end", "its terminated is None; expected True or False"),
        ("late mask", "info has 'action_mask', although there was no mask after the first reset"),
        ("late list", "info has 'legal_actions', although there was no mask"),
    ],
)
@pytest.mark.usefixtures("toys")
def test_what_a_step_may_not_return_is_named(returned, message):
    with pytest.raises(
        ConfigError, match=rf"Returning-v0: after action \d, the last of 1 random ones: .*{message}.*wrapper"
    ):
        check_env(config(returned), games=2, max_plies=5)


@pytest.mark.usefixtures("toys")
def test_the_number_of_legal_actions_is_no_mask():
    assert check_env(config("count"), games=2, max_plies=5).num_actions == 3


@pytest.mark.parametrize(
    ("reset", "message"),
    [
        ("alone", "reset returned ndarray; expected 2 values: observation, info"),
        ("no info", "the info that reset returned is None"),
    ],
)
@pytest.mark.usefixtures("toys")
def test_what_a_reset_may_not_return_is_named(reset, message):
    with pytest.raises(ConfigError, match=f"after its first reset: {message}"):
        check_env(config("count", reset=reset), games=1, max_plies=1)


@pytest.mark.parametrize("vectorization", ["sync", "own"])
@pytest.mark.usefixtures("toys")
def test_rewards_are_checked_in_random_episodes(vectorization):
    """The action 2 of three causes the fault."""
    place = {"name": "gymnasium", "id": "toys/Toy-v0", "module": "gymnasium_toys"}
    toy = GymnasiumConfig(**place, kwargs={"fault": "no reward"}, vectorization=vectorization)
    with pytest.raises(ConfigError, match=r"after action 2, .*reward"):
        check_env(toy, games=32, max_plies=8)


@pytest.mark.usefixtures("toys")
def test_rare_failures_are_allowed_before_a_run_but_not_faults_of_every_step():
    place = {"name": "gymnasium", "id": "toys/Toy-v0", "module": "gymnasium_toys"}
    check_steps(GymnasiumConfig(**place), 1, 8, max_failures=7)
    with pytest.raises(ConfigError, match="step returned 4 values"):
        check_steps(config("four"), 1, 8, max_failures=4)
