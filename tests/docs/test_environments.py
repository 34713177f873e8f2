"""The examples of docs/environments.md work."""

import re
from pathlib import Path

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


def test_the_gymnasium_section_is_valid():
    (text,) = [text for kind, name, text in BLOCKS if kind == "yaml" and not name and "wrappers" in text]
    experiment = parse({"name": "page", **yaml.safe_load(text)}, "page")
    assert experiment.env.wrappers[0].name == "TimeLimit"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section["env"]["name"])
def test_the_other_simulators_can_be_made(section):
    network = {"network": {"name": "mlp"}} if section["env"]["name"] == "gymnasium_simulator" else {}
    make_env(parse({"name": "page", **section, **network}, "page").env)
