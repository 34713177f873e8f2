"""The page about environments: its environment of one's own is learned in, its other sections can be made."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from podzero.config import load, parse
from podzero.envs import make_env, make_vector_env, spec_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "environments.md").read_text()
BLOCKS = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SECTIONS = [yaml.safe_load(line) for kind, name, text in BLOCKS[-1:] for line in text.splitlines()]


@pytest.fixture
def folder(tmp_path):
    """The files of the page."""
    for _, name, text in BLOCKS:
        if name:
            (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_environment_of_ones_own_is_found_beside_its_experiment(folder, vectorization):
    experiment = load(str(folder / "guess.yaml"), [f"env.vectorization={vectorization}"])
    assert experiment.env.module == str(folder / "guess.py")
    assert spec_of(experiment.env).num_actions == 16
    vector = make_vector_env(experiment.env, 1, 0)
    vector.reset()
    ends = [step.terminated | step.truncated for step in (vector.step(np.array([guess])) for guess in range(8))]
    vector.close()
    # Found on the way, or given up after eight guesses; after the end comes the first step of the next episode.
    assert ends[int(np.argmax(ends))].all()


def test_the_section_of_a_gymnasium_environment_is_an_experiment():
    (text,) = [text for kind, name, text in BLOCKS if kind == "yaml" and not name and "wrappers" in text]
    experiment = parse({"name": "page", **yaml.safe_load(text)}, "page")
    assert experiment.env.wrappers[0].name == "TimeLimit"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section["env"]["name"])
def test_the_other_families_need_no_code(section):
    network = {"network": {"name": "mlp"}} if section["env"]["name"] == "gymnasium_simulator" else {}
    make_env(parse({"name": "page", **section, **network}, "page").env)
