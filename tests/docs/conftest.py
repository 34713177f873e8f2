"""What the tests of command lines share: a folder in which people might type them."""

import importlib.util
import re
from pathlib import Path

import pytest
from command_lines import DOCUMENTS

from podzero.launch.targets import machines


def loaded(name):
    """The module `docs/NAME.py`, which no package holds."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def alphazero():
    return loaded("alphazero")


@pytest.fixture(scope="module")
def ppo():
    return loaded("ppo")


@pytest.fixture
def beside_pages(tmp_path, monkeypatch):
    """An empty present directory below another, with the files that the pages tell people to write."""
    here = tmp_path / "here"
    here.mkdir()
    for page in DOCUMENTS:
        text = page.read_text()
        for name, content in re.findall(r"^```\w+ (\S+\.(?:py|yaml))\n(.*?)^```$", text, re.M | re.S):
            (here / name).write_text(content)
        for name in re.findall(r"Save this as `(\w+\.py)`", text):
            (here / name).touch()
    monkeypatch.chdir(here)
    monkeypatch.setattr(machines, "sample_bytes", lambda experiment: 1000)
    return here
