"""Imports only go down the layers (docs/architecture.md), and heavy libraries stay in their packages."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {
    "cluster": 1, "envs": 1, "networks": 1, "search": 1,
    "inference": 2, "monitoring": 2, "params": 2, "replay": 2,
    "actors": 3, "evaluation": 3, "export": 3, "learner": 3,
    "driver": 4, "play": 4,
    "aot": 5, "benchmarks": 5, "report": 5,
    "api": 6, "configs": 6, "launch": 6,
}  # fmt: skip
"""Layer of each package; the modules of `podzero/` itself are layer 0."""
LARGEST_SHARE = 0.20
"""The most of all product code that one package may hold."""
ONLY_IN = {
    "PIL": {"play"},
    "aiohttp": {"report"},
    "cv2": {"play"},
    "mlflow": {"monitoring"},
    "nicegui": {"play"},
    "onnx": {"export"},
    "onnxruntime": {"export"},
    "openvino": {"inference"},
    "prometheus_client": {"monitoring"},
    "ray": {"benchmarks", "cluster", "params"},
    "grpc": {"benchmarks", "replay"},
    "reverb": set(),
    "tensorflow": set(),
    "wandb": {"monitoring"},
}
"""The packages that may import a library at all."""
EXCEPTIONS = {
    (program, library)
    for program in ("replay/reverb_server/serve.py", "benchmarks/reverb_client.py")
    for library in ("reverb", "tensorflow")
}
"""Programs of the replay server's environment: the server, and the client that the bench of replay compares with."""

FACE = ("podzero/__init__.py", "api")
"""`import podzero` gives the names of the package on top, which it imports when they are used."""


def violations(root: Path) -> list[str]:
    """Every import below `root` that breaks a rule, as `file:line: why`."""
    return [
        f"{file}:{line}: {why}"
        for file, line, module in imports(root)
        if (why := broken_rule(file, module)) is not None
    ]


def broken_rule(file: str, module: str) -> str | None:
    """Why the package of `file` may not import `module`, or None if it may."""
    package = file.split("/", maxsplit=1)[0]
    top, *rest = module.split(".")
    if top in LAYERS:
        return f"bare package name '{top}': import podzero.{top}"
    if top in ONLY_IN and package not in ONLY_IN[top] and (file, top) not in EXCEPTIONS:
        return f"{package} may not import {top}"
    if top == "podzero" and rest and rest[0] in LAYERS and rest[0] != package and (file, rest[0]) != FACE:
        return broken_layer(package, rest[0], whole_package=len(rest) == 1)
    return None


def broken_layer(package: str, other: str, whole_package: bool) -> str | None:
    """Why `package` may not import another package, or None if it may."""
    layer, above = LAYERS.get(package, 0), LAYERS[other]
    if above > layer:
        return f"{package} (layer {layer}) imports {other} (layer {above}): imports only go down"
    if above == layer and layer > 1:
        return f"{package} imports its neighbour {other}"
    if above == layer and not whole_package:
        return f"{package} looks inside its neighbour {other}"
    return None


def imports(root: Path) -> Iterator[tuple[str, int, str]]:
    """(file relative to `root`, line, absolute module) of every import, wherever in the file it stands."""
    for folder in ("podzero", *LAYERS):
        for path in sorted((root / folder).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            if folder == "podzero" and file.count("/") > 1:
                continue  # a package seen through its link
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
    if base == "podzero":
        return [f"podzero.{alias.name}" for alias in node.names]
    return [base]


def plant(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)


def test_no_import_of_the_project_goes_up_a_layer():
    assert violations(ROOT) == []


def test_every_package_has_a_layer_and_is_linked_into_the_package():
    links = {path.name: path.readlink().as_posix() for path in (ROOT / "podzero").iterdir() if path.is_symlink()}
    assert links == {package: f"../{package}" for package in LAYERS}


def test_the_walk_sees_the_whole_project():
    seen = {file.split("/")[0] for file, _, _ in imports(ROOT)}
    assert seen >= {"podzero", *LAYERS} - {"configs"}


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("search/a.py", "from podzero.replay import make_writer", "search (layer 1) imports replay (layer 2)"),
        ("podzero/a.py", "import podzero.envs", "podzero (layer 0) imports envs (layer 1)"),
        ("podzero/a.py", "import podzero.api", "podzero (layer 0) imports api (layer 6)"),
        ("podzero/__init__.py", "from podzero.envs import x", "podzero (layer 0) imports envs (layer 1)"),
        ("actors/a.py", "from podzero import learner", "actors imports its neighbour learner"),
        ("actors/deep/a.py", "from ...launch import cli", "actors (layer 3) imports launch (layer 6)"),
        ("actors/a.py", "from ..evaluation import Arena", "actors imports its neighbour evaluation"),
        ("search/a.py", "from podzero.envs.pgx_games import x", "search looks inside its neighbour envs"),
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
        ("search/a.py", "from podzero.envs import make_env\nfrom podzero.types import Sample"),
        ("actors/a.py", "from podzero.search import make_search\nfrom .core import Core\nfrom podzero.params import x"),
        ("cluster/a.py", "import ray\nfrom podzero.config import Experiment"),
        ("launch/a.py", "from podzero.driver.train import train\nfrom podzero.learner import Learner"),
        ("replay/reverb_server/serve.py", "import reverb"),
        ("envs/a.py", "import raycast\nimport podzero.envs.registry"),
        ("podzero/__init__.py", "from podzero.api.agent import load"),
    ],
)
def test_what_goes_down_is_left_alone(tmp_path, file, text):
    plant(tmp_path, file, text)
    assert violations(tmp_path) == []


def product_lines():
    """Lines of each file of product code, by its path."""
    folders = [path for name in LAYERS for path in (ROOT / name).rglob("*.py")]
    own = [*(ROOT / "podzero").glob("*.py"), *(ROOT / "podzero" / "config").glob("*.py")]
    return {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in [*folders, *own]}


def test_no_package_holds_more_than_a_fifth_of_the_code():
    lines = product_lines()
    total = sum(lines.values())
    for package in LAYERS:
        assert sum(n for file, n in lines.items() if file.startswith(f"{package}/")) <= LARGEST_SHARE * total, package
