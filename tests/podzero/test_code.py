"""No file of podzero executes what it reads: pickle, code in text and shells are named here, or not used."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALLOWED = {
    ("envs/gymnasium_envs/batches.py", "cloudpickle"): "sends functions to processes that it starts itself",
    ("runtime/cluster/services.py", "cloudpickle"): "handles of Ray's, which the driver gives the agent of a node",
    ("tools/sweep/tuning.py", "cloudpickle"): "reads the error that Ray Tune wrote for a trial of this same process",
}
"""What is allowed, and why."""
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "xml", "pty", "code"}
"""Modules whose readers run code, or expand what they read without bound."""
CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.execv"),
    *("yaml.unsafe_load", "yaml.full_load", "torch.load", "shutil.unpack_archive", "tarfile.open", "importlib.reload"),
}  # fmt: skip
METHODS = {"extractall", "extract", "load_module"}


def product():
    """The Python files of podzero, without tests and studies."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in (".venv", "tests", "docs", ".git")]
    return [file for folder in folders for file in folder.rglob("*.py") if not file.is_symlink()]


def dotted(node):
    """`a.b.c` of such an expression."""
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def found_in(tree):
    """What is forbidden in a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (name.name for name in node.names if name.name.partition(".")[0] in MODULES)
            case ast.ImportFrom():
                names = [node.module or "", *(name.name for name in node.names)]
                yield from (name for name in names if name.partition(".")[0] in MODULES and not node.level)
            case ast.Call():
                name = dotted(node.func)
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                if name in CALLS or name.rpartition(".")[2] in METHODS:
                    yield name
                if name in ("yaml.load", "yaml.load_all"):
                    loader = given.get("Loader") or (node.args[1:] or [None])[0]
                    if loader is None or ast.unparse(loader) not in SAFE:
                        yield name
                for switch in ("shell", "allow_pickle"):
                    if switch in given and not (
                        isinstance(given[switch], ast.Constant) and given[switch].value is False
                    ):
                        yield f"{switch}={ast.unparse(given[switch])}"


SAFE = {"yaml.SafeLoader", "_PlainValues"}
"""Loaders of plain values; the second is one of podzero's own over the first."""


def test_no_file_executes_what_it_reads():
    found = {
        (file.relative_to(ROOT).as_posix(), what)
        for file in product()
        for what in found_in(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert len(product()) > 200
    assert {each for each in found if each not in ALLOWED} == set()
    assert {each for each in ALLOWED if each not in found} == set()  # what is no longer there is no longer allowed


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from ray import cloudpickle",
        "import xml.etree.ElementTree as x",
        "eval(text)",
        "os.system(command)",
        "subprocess.run(command, shell=True)",
        "np.load(file, allow_pickle=wanted)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "archive.extractall(folder)",
    ],
)
def test_what_is_forbidden_is_found(code):
    assert [*found_in(ast.parse(code))]


@pytest.mark.parametrize(
    "code", ["yaml.load(text, yaml.SafeLoader)", "np.load(file, allow_pickle=False)", "re.compile(x)"]
)
def test_what_is_not_forbidden_is_not(code):
    assert not [*found_in(ast.parse(code))]
