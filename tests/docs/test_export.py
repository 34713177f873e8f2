"""The code of docs/export.md runs."""

import re
from pathlib import Path

import pytest

from podzero.tools.export.agent import export_agent

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", (ROOT / "docs" / "export.md").read_text(), re.M | re.S))


@pytest.mark.parametrize("kind", ["onnx", "stablehlo"])
def test_the_python_of_the_page_loads_an_exported_agent(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    export_agent("zoo:go_9x9", tmp_path / f"go.{kind}")
    exec(compile(BLOCKS[kind], "export.md", "exec"), {})
    assert capsys.readouterr().out == "go_9x9 (5, 82) (5,)\n"
