"""Pictures of gymnasium environments."""

import numpy as np
import pytest

from podzero.config import GymnasiumConfig
from podzero.core.errors import ConfigError
from podzero.envs import EnvironmentFailed, VectorEnv, observed_picture, rendering

pytestmark = pytest.mark.usefixtures("toys")


def config(name="Drawn", **fields):
    return GymnasiumConfig(name="gymnasium", id=f"toys/{name}-v0", module="gymnasium_toys", **fields)


@pytest.fixture
def made():
    """Makes environments that render."""
    vectors = []

    def make(count=1, fields=None, **kwargs):
        vectors.append(VectorEnv(rendering(config(kwargs=kwargs, **(fields or {}))).config, count, seed=0))
        vectors[-1].reset()
        return vectors[-1]

    yield make
    for vector in vectors:
        vector.close()


def test_each_environment_has_its_frame_and_the_last_one_is_that_of_the_end(made):
    vector = made(2, length=2)
    assert [frame.tolist() for frame in vector.render()] == [np.zeros((4, 6, 3)).tolist()] * 2
    step = None
    for _ in range(2):
        step = vector.step(np.zeros(2, np.int32))
    assert step.terminated.all()
    (first, second) = vector.render()
    assert first.dtype == np.uint8
    assert (first == 20).all()
    assert (second == 20).all()


def test_colours_between_zero_and_one_become_bytes(made):
    vector = made(drawn="colours")
    vector.step(np.zeros(1, np.int32))
    assert (vector.render()[0] == 64).all()


def test_an_environment_says_how_fast_it_is_shown_and_runs_in_this_process():
    found = rendering(config(vectorization="async"))
    assert (found.steps_per_second, found.renders, found.config.vectorization) == (7.0, True, "sync")
    assert found.config.kwargs == {"render_mode": "rgb_array"}


def test_a_registered_vector_environment_renders_itself():
    found = rendering(GymnasiumConfig(name="gymnasium", id="CartPole-v1", vectorization="own"))
    vector = VectorEnv(found.config, 2, seed=0)
    try:
        vector.reset()
        assert [frame.shape for frame in vector.render()] == [(400, 600, 3)] * 2
    finally:
        vector.close()


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        ("gray", r"render\(\) returned ndarray of shape \[4, 6\]; expected pixels \[height, width, 3\]"),
        ("nothing", r"render\(\) returned NoneType of shape \[\]"),
        ("lacking", r"rendering needs a package .*pip install .gymnasium\[box2d\].*uv sync --inexact --extra envs"),
        ("broken", "toys/Drawn-v0 cannot be rendered: ZeroDivisionError: the toy broke"),
    ],
)
def test_what_cannot_be_shown_is_explained(made, drawn, message):
    with pytest.raises(ConfigError, match=message):
        made(drawn=drawn).render()


def test_rendering_has_a_time_limit(made):
    vector = made(drawn="slow", fields={"step_timeout_s": 0.2})
    with pytest.raises(EnvironmentFailed, match=r"rendering: .*0\.2 s.*env\.step_timeout_s"):
        vector.render()


def test_an_environment_without_pixels_is_refused():
    with pytest.raises(ConfigError, match=r"Toy-v0 .*'rgb_array' .*none"):
        rendering(config("Toy"))
    with pytest.raises(ConfigError, match="has no render mode 'rgb_array'"):
        rendering(config("Toy", vectorization="own"))


def test_vectors_that_observe_images_are_shown_by_them():
    found = rendering(GymnasiumConfig(name="gymnasium", id="ALE/Pong-v5", module="ale_py", vectorization="own"))
    assert not found.renders
    stack = np.stack([np.full((2, 5), shade, np.uint8) for shade in (1, 2, 3, 4)])
    assert observed_picture(stack).tolist() == np.full((2, 5, 3), 4).tolist()
    coloured = np.arange(30, dtype=np.uint8).reshape(2, 5, 3)
    assert observed_picture(coloured).tolist() == coloured.tolist()
