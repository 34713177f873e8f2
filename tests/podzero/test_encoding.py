"""Text files are UTF-8 in every locale: the default encoding of Python below 3.15 is that of the machine."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.files.workdir import Workdir, WorkdirError

ROOT = Path(__file__).resolve().parents[2]
NAMED = {"read_text", "write_text", "open", "fdopen", "TextIOWrapper", "NamedTemporaryFile", "TemporaryFile"}
"""Functions that read or write text unless their mode says otherwise. ruff's PLW1514 knows no Path in an attribute."""


def implicit(source: str) -> Iterator[int]:
    """The lines of the calls in `source` that leave the encoding of text to the machine."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        piped = any(isinstance(given.get(name), ast.Constant) for name in ("text", "universal_newlines"))
        name = getattr(call.func, "attr", getattr(call.func, "id", None))
        if not given.keys() & {"encoding", None} and (piped or is_text(name, call)):
            yield call.lineno


def is_text(name: str | None, call: ast.Call) -> bool:
    """Whether this call of a function in `NAMED` reads or writes text."""
    if name not in NAMED or name in {"read_text", "write_text", "TextIOWrapper"}:
        return name in NAMED
    places = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    mode = next((m.value for m in places if isinstance(m, ast.Constant) and set(str(m.value)) <= set("rwaxbt+")), None)
    if name.endswith("TemporaryFile"):
        return mode is not None and "b" not in mode
    # Other methods are called open too: of working directories, images and `os`.
    is_file = isinstance(call.func, ast.Name) or name == "fdopen" or not call.args
    return "b" not in mode if mode else is_file


@pytest.mark.parametrize(
    "call",
    ["f.read_text()", "self.f.open()", "f.open('a')", "open(f)", "open(f, mode='w')", "os.fdopen(d, 'w')",
     "f.write_text(text, errors='replace')", "run(c, text=True)", "NamedTemporaryFile('w')", "TextIOWrapper(b)"],
)  # fmt: skip
def test_a_call_without_an_encoding_is_found(call):
    assert list(implicit(call)) == [1]


@pytest.mark.parametrize(
    "call",
    ["f.read_text(encoding='utf-8')", "f.open('rb')", "open(f, 'ab')", "os.open(f, os.O_RDONLY)", "run(c)",
     "workdir.open(experiment)", "TemporaryFile()", "f.read_bytes()", "open(f, **options)",
     "Response(text=page)"],
)  # fmt: skip
def test_a_call_that_needs_none_is_not(call):
    assert list(implicit(call)) == []


def test_each_text_file_is_opened_with_its_encoding():
    listed = subprocess.run(["git", "ls-files", "*.py", ":!tests"], cwd=ROOT, capture_output=True, check=True)
    files = [file for file in listed.stdout.decode().split() if not file.endswith("_pb2.py")]
    found = {file: lines for file in files if (lines := list(implicit((ROOT / file).read_text(encoding="utf-8"))))}
    assert len(files) > 250
    assert found == {}, "expected encoding='utf-8' in these lines"


def test_an_experiment_is_read_in_an_ascii_locale(tmp_path):
    config = tmp_path / "own.yaml"
    config.write_text("# Größe ± é\nenv: {name: tic_tac_toe}\n", encoding="utf-8")
    locale = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    program = f"from podzero.config import load; print(load({str(config)!r}).env.name)"
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | locale, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"tic_tac_toe\n", b"")


def test_a_file_in_another_encoding_is_refused_by_name(tmp_path):
    file = tmp_path / "experiment.yaml"
    file.write_bytes("# Größe\nenv: {name: tic_tac_toe}\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"experiment.yaml is not valid YAML.*utf-8"):
        load(str(file))
    with pytest.raises(WorkdirError, match=r"experiment.yaml is not valid YAML.*utf-8"):
        Workdir(tmp_path).experiment()
