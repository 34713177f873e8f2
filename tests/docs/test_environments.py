"""The examples of docs/environments.md work."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import yaml

from podzero.config import load, parse
from podzero.envs import VectorEnv, make_env, spec_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "environments.md").read_text()
BLOCKS = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SECTIONS = [yaml.safe_load(line) for kind, name, text in BLOCKS[-1:] for line in text.splitlines()]


@pytest.fixture
def folder(tmp_path):
    """A folder with the files of the page."""
    for _, name, text in BLOCKS:
        if name:
            (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_environment_of_the_page_is_found_next_to_its_experiment(folder, vectorization):
    experiment = load(str(folder / "guess.yaml"), [f"env.vectorization={vectorization}"])
    assert experiment.env.module == str(folder / "guess.py")
    assert spec_of(experiment.env).num_actions == 16
    vector = VectorEnv(experiment.env, 1, 0)
    vector.reset()
    ends = [step.terminated | step.truncated for step in (vector.step(np.array([guess])) for guess in range(8))]
    vector.close()
    # The number was found, or the eighth guess ended the episode. Later steps belong to the next episode.
    assert ends[int(np.argmax(ends))].all()


class FakePool:
    """What the page uses of an environment of EnvPool: counters that end at 3, and start again at the next step."""

    observation_space, action_space = gymnasium.spaces.Box(0.0, 3.0, (1,), np.float32), gymnasium.spaces.Discrete(2)

    def __init__(self, num_envs):
        self.counts = np.zeros((num_envs, 1), np.float32)

    def reset(self):
        self.counts[:] = 0
        return self.counts.copy(), {"elapsed_step": None}

    def step(self, actions):
        started = self.counts[:, 0] == 3
        self.counts = np.where(started[:, None], 0, self.counts + 1)
        rewards = np.where(started, 0.0, actions).astype(np.float32)
        return self.counts.copy(), rewards, self.counts[:, 0] == 3, np.zeros(len(actions), bool), {}


def test_the_adapter_of_the_page_makes_an_environment_of_envpool_a_vector(folder, monkeypatch):
    made = []
    fake = SimpleNamespace(make_gymnasium=lambda task, num_envs: made.append(task) or FakePool(num_envs))
    monkeypatch.setitem(sys.modules, "envpool", fake)
    experiment = load(str(folder / "envpool.yaml"))
    vector = VectorEnv(experiment.env, 2, 0)
    assert vector.reset().observation.tolist() == [[0], [0]]
    steps = [vector.step(np.array([1, 0])) for _ in range(4)]
    vector.close()
    assert set(made) == {"CartPole-v1"}
    assert [step.observation[0, 0] for step in steps] == [1, 2, 3, 0]
    assert [step.reward.tolist() for step in steps] == [[1, 0]] * 3 + [[0, 0]]
    assert [bool(step.terminated.all()) for step in steps] == [False, False, True, False]
    assert steps[-1].started.all()


def test_the_gymnasium_section_is_valid():
    (text,) = [text for kind, name, text in BLOCKS if kind == "yaml" and not name and "wrappers" in text]
    experiment = parse({"name": "page", **yaml.safe_load(text)}, "page")
    assert experiment.env.wrappers[0].name == "TimeLimit"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section["env"]["name"])
def test_the_other_simulators_can_be_made(section):
    network = {"network": {"name": "mlp"}} if section["env"]["name"] == "gymnasium_simulator" else {}
    make_env(parse({"name": "page", **section, **network}, "page").env)
