"""Imports go from right to left in the rings of pyproject.toml, and heavy libraries stay in their packages."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUND = PROJECT["tool"]["podzero"]["ground"]
"""The packages that stand in `podzero/` itself."""
RINGS = [package for ring in PROJECT["tool"]["podzero"]["rings"] for package in ring]
ORDER = [*GROUND, *RINGS]
"""All packages: each may import those before it."""
FOLDERS = list(dict.fromkeys(package.split(".")[0] for package in RINGS))
ONLY_IN = {
    "PIL": {"tools.play"},
    "aiohttp": {"tools.report"},
    "cv2": {"tools.play"},
    "mlflow": {"runtime.monitoring"},
    "nicegui": {"tools.play"},
    "onnx": {"tools.export"},
    "onnxruntime": {"tools.export"},
    "openvino": {"inference"},
    "prometheus_client": {"runtime.monitoring"},
    "ray": {"benchmarks", "runtime", "runtime.cluster", "tools.bench", "tools.sweep"},
    "grpc": {"benchmarks", "replay", "tools.bench"},
    "reverb": set(),
    "tensorflow": set(),
    "wandb": {"runtime.monitoring"},
}
"""The packages that may import a library at all."""
EXCEPTIONS = {
    (program, library)
    for program in ("replay/reverb_server/serve.py", "tools/bench/reverb_client.py")
    for library in ("reverb", "tensorflow")
}
"""Programs of the replay server's environment: the server, and the client that the bench of replay compares with."""
FACE = {("podzero/__init__.py", "core"), ("podzero/__init__.py", "tools.api")}
"""`import podzero` gives the names of `tools.api`, which it imports when they are used."""


def violations(root: Path) -> list[str]:
    """Every import below `root` that breaks a rule, as `file:line: why`."""
    return [
        f"{file}:{line}: {why}"
        for file, line, module in imports(root)
        if (why := broken_rule(file, module)) is not None
    ]


def broken_rule(file: str, module: str) -> str | None:
    """Why `file` may not import `module`, or None if it may."""
    package = package_of(file.removesuffix(".py").replace("/", "."))
    top, *rest = module.split(".")
    if top in FOLDERS:
        return f"bare package name '{top}': import podzero.{top}"
    if top in ONLY_IN and package not in ONLY_IN[top] and (file, top) not in EXCEPTIONS:
        return f"{package} may not import {top}"
    other = package_of(".".join(rest)) if top == "podzero" else "podzero"
    if rank(other) > rank(package) and (file, other) not in FACE:
        return f"{package} imports {other}, which stands to the right of it"
    return None


def package_of(path: str) -> str:
    """The package of `ORDER` that holds the module of a dotted path, or `podzero`."""
    parts = path.removeprefix("podzero.").split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((prefix for prefix in prefixes if prefix in ORDER), "podzero")


def rank(package: str) -> int:
    """The place of a package in the order; that of `podzero` is before all."""
    return ORDER.index(package) if package in ORDER else -1


def imports(root: Path) -> Iterator[tuple[str, int, str]]:
    """(file relative to `root`, line, absolute module) of every import, wherever in the file it stands."""
    for folder in ("podzero", *FOLDERS):
        for path in sorted((root / folder).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            for node in ast.walk(ast.parse(path.read_text(), file)):
                for module in modules(node, file):
                    yield file, getattr(node, "lineno", 0), module


def modules(node: ast.AST, file: str) -> list[str]:
    """The absolute names that an import statement reaches for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        inside = ("podzero", *file.removeprefix("podzero/").split("/")[:-1])
        base = ".".join([*inside[: len(inside) - node.level + 1], *filter(None, [base])])
    if base == "podzero" or base.removeprefix("podzero.") in FOLDERS:
        return [f"{base}.{alias.name}" for alias in node.names]
    return [base]


def plant(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)


def test_imports_go_from_right_to_left():
    assert violations(ROOT) == []


def test_every_package_is_registered_in_the_rings_and_nowhere_else_by_hand():
    """The links below `podzero/` and the lists of ruff follow from the rings, as do those of wheel and image."""
    links = {path.name: path.readlink().as_posix() for path in (ROOT / "podzero").iterdir() if path.is_symlink()}
    assert links == {folder: f"../{folder}" for folder in FOLDERS}
    ruff = PROJECT["tool"]["ruff"]
    assert {path for path in ruff["extend-exclude"] if path.startswith("podzero/")} == {f"podzero/{f}" for f in FOLDERS}
    banned = ruff["lint"]["flake8-tidy-imports"]["banned-api"]
    assert banned == {folder: {"msg": f"podzero.{folder}"} for folder in FOLDERS}
    kept = (ROOT / "launch" / "targets" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{folder}" for folder in (*FOLDERS, "podzero") if folder != "benchmarks"} <= set(kept)


def test_the_walk_sees_the_whole_project():
    seen = {package_of(file.removesuffix(".py").replace("/", ".")) for file, _, _ in imports(ROOT)}
    assert seen >= {"podzero", *ORDER} - {"configs"}


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("search/a.py", "from podzero.replay import ShardedWriter", "search imports replay"),
        ("podzero/a.py", "import podzero.envs", "podzero imports envs"),
        ("podzero/core/a.py", "from podzero.config import load", "core imports config"),
        ("podzero/config/a.py", "import podzero.tools.api", "config imports tools.api"),
        ("podzero/__init__.py", "from podzero.envs import x", "podzero imports envs"),
        ("actors/a.py", "from podzero import learner", "actors imports learner"),
        ("actors/deep/a.py", "from ...launch import cli", "actors imports launch"),
        ("runtime/cluster/a.py", "from ..train import train", "runtime.cluster imports runtime"),
        ("tools/play/a.py", "from podzero.tools import report", "tools.play imports tools.report"),
        ("learner/a.py", "def f():\n    import ray.util", "learner may not import ray"),
        ("learner/a.py", "import tensorflow as tf", "learner may not import tensorflow"),
        ("replay/a.py", "from reverb import Client", "replay may not import reverb"),
        ("actors/a.py", "from envs import make_env", "bare package name 'envs'"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, file, text, why):
    plant(tmp_path, file, text)
    (found,) = violations(tmp_path)
    assert found.startswith(f"{file}:")
    assert why in found


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("search/a.py", "from podzero.envs import make_env\nfrom podzero.core.types import Sample"),
        ("actors/a.py", "from podzero.search import make_search\nfrom .core import Core"),
        ("runtime/cluster/a.py", "import ray\nfrom podzero.config import Experiment"),
        ("launch/a.py", "from podzero.runtime.train import train\nfrom podzero.learner import Learner"),
        ("replay/reverb_server/serve.py", "import reverb"),
        ("envs/a.py", "import raycast\nimport podzero.envs.registry"),
        ("podzero/files/a.py", "from podzero.config import load\nimport podzero.core.types"),
        ("podzero/__init__.py", "from podzero.tools.api.agent import load"),
    ],
)
def test_what_goes_to_the_left_is_left_alone(tmp_path, file, text):
    plant(tmp_path, file, text)
    assert violations(tmp_path) == []
