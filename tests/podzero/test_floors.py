"""Imports only go down the floors of the house (docs/architecture.md), and heavy libraries stay in their rooms."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = {
    "envs": 1, "networks": 1, "search": 1,
    "params": 2, "replay": 2,
    "actors": 3, "evaluation": 3, "learner": 3,
    "configs": 4, "launch": 4,
}  # fmt: skip
"""Floor of each room; the modules of `podzero/` itself are floor 0."""
ONLY_IN = {
    "ray": {"launch", "params"},
    "reverb": {"replay"},
    "tensorflow": {"replay"},
}
"""The rooms that may import a library at all."""
EXCEPTIONS = {("launch/bench/replay.py", "reverb"), ("launch/bench/replay.py", "tensorflow")}
"""The bench of replay measures the bare Reverb client beside it."""


def violations(root: Path) -> list[str]:
    """Every import below `root` that breaks a rule, as `file:line: why`."""
    return [
        f"{file}:{line}: {why}"
        for file, line, module in imports(root)
        if (why := broken_rule(file, module)) is not None
    ]


def broken_rule(file: str, module: str) -> str | None:
    """Why the room of `file` may not import `module`, or None if it may."""
    room = file.split("/", maxsplit=1)[0]
    top, *rest = module.split(".")
    if top in FLOORS:
        return f"bare room name '{top}': import podzero.{top}"
    if top in ONLY_IN and room not in ONLY_IN[top] and (file, top) not in EXCEPTIONS:
        return f"{room} may not import {top}"
    if top == "podzero" and rest and rest[0] in FLOORS and rest[0] != room:
        return broken_floor(room, rest[0], at_the_door=len(rest) == 1)
    return None


def broken_floor(room: str, other: str, at_the_door: bool) -> str | None:
    """Why `room` may not import another room, or None if it may."""
    floor, above = FLOORS.get(room, 0), FLOORS[other]
    if above > floor:
        return f"{room} (floor {floor}) imports {other} (floor {above}): imports only go down"
    if above == floor and floor > 1:
        return f"{room} imports its neighbour {other}"
    if above == floor and not at_the_door:
        return f"{room} looks inside its neighbour {other}"
    return None


def imports(root: Path) -> Iterator[tuple[str, int, str]]:
    """(file relative to `root`, line, absolute module) of every import, wherever in the file it stands."""
    for folder in ("podzero", *FLOORS):
        for path in sorted((root / folder).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            if folder == "podzero" and file.count("/") > 1:
                continue  # a room seen through its link
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


def test_no_import_of_the_project_goes_up_a_floor():
    assert violations(ROOT) == []


def test_every_room_is_on_a_floor_and_is_linked_into_the_package():
    links = {path.name: path.readlink().as_posix() for path in (ROOT / "podzero").iterdir() if path.is_symlink()}
    assert links == {room: f"../{room}" for room in FLOORS}


def test_the_walk_sees_the_whole_project():
    seen = {file.split("/")[0] for file, _, _ in imports(ROOT)}
    assert seen >= {"podzero", *FLOORS} - {"configs"}


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("search/a.py", "from podzero.replay import make_writer", "search (floor 1) imports replay (floor 2)"),
        ("podzero/a.py", "import podzero.envs", "podzero (floor 0) imports envs (floor 1)"),
        ("actors/a.py", "from podzero import learner", "actors imports its neighbour learner"),
        ("actors/deep/a.py", "from ...launch import cli", "actors (floor 3) imports launch (floor 4)"),
        ("actors/a.py", "from ..evaluation import Arena", "actors imports its neighbour evaluation"),
        ("search/a.py", "from podzero.envs.pgx_games import x", "search looks inside its neighbour envs"),
        ("learner/a.py", "def f():\n    import ray.util", "learner may not import ray"),
        ("learner/a.py", "import tensorflow as tf", "learner may not import tensorflow"),
        ("envs/a.py", "from reverb import Client", "envs may not import reverb"),
        ("actors/a.py", "from envs import make_env", "bare room name 'envs'"),
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
        ("launch/a.py", "import ray\nfrom podzero.learner import Learner"),
        ("replay/a.py", "import reverb"),
        ("envs/a.py", "import raycast\nimport podzero.envs.registry"),
    ],
)
def test_what_goes_down_is_left_alone(tmp_path, file, text):
    plant(tmp_path, file, text)
    assert violations(tmp_path) == []
