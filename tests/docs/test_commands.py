"""Every command line in the documents, the experiments and the program's messages and help can be typed as it stands."""

import re

import pytest
from command_checks import EXPECTED, REFUSED, check
from command_lines import DOCUMENTS, command_lines, of_block, of_markdown, of_message

LINES = command_lines()


@pytest.fixture
def folder(tmp_path, monkeypatch):
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
    return here


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.where}: {line.text}"[:100])
def test_a_command_line_can_be_typed_as_it_is_shown(line):
    refusal = REFUSED.get(line.text)
    if refusal is None:
        check(line)
    else:
        with pytest.raises(EXPECTED, match=re.escape(refusal)):
            check(line)
