"""What the tests of command lines share: a folder in which people might type them."""

import re

import pytest
from command_lines import DOCUMENTS

from podzero.launch.targets import machines


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
