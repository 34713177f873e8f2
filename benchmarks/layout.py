"""The size of the repository as a reader meets it: folders, files, lines, floors of imports, settings, words.

    uv run --group dev python benchmarks/layout.py

Product files leave out benches, studies and tests. The floors are the longest chain of folders of which each
imports the next; folders that import each other count as one. The files of a position are those whose functions run
while an actor, a replay server and a learner take connect four through 30 training steps in this process. The files
that start an actor are the shortest chain of imports from the supervisor to the module that makes a `SelfPlayActor`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import threading
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, get_args

from pydantic import BaseModel

from podzero.actors import ActorClients
from podzero.actors.build import make_actor
from podzero.config import Experiment, load
from podzero.learner import Learner
from podzero.learner.build import learner_parts
from podzero.replay import make_reader, make_writer
from podzero.replay.server import ReplayServer
from podzero.runtime.params import LocalParams

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ("docs/settings.md", "docs/results.md", "docs/licences.md", "docs/compile.md", "CHANGELOG.md")
"""Pages that are reference or lists, which are not counted as prose."""
STUDIES = ("benchmarks/", "tools/bench/", "tests/", "docs/")


def main() -> None:
    """Prints each measure on a line."""
    for what, value in measures().items():
        print(f"{what:58} {value:>8,}")


def measures() -> dict[str, int]:
    """Each measure by its name."""
    product = product_files()
    return {
        "folders at the top": len({path.split("/")[0] for path in tracked() if "/" in path and path[0] != "."}),
        "product files": len(product),
        "product lines": sum(len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in product),
        "floors of the import graph": floors(folder_imports(product)),
        "files from rules to rules that a position passes": len(position_files()),
        "files that start an actor": len(import_chain(product, "runtime/supervisor.py", "SelfPlayActor(")),
        "settings": len(settings()),
        "settings in no experiment, page or test": len(unused_settings()),
        "words of prose": sum(len((ROOT / path).read_text(encoding="utf-8").split()) for path in prose()),
    }


@cache
def tracked() -> tuple[str, ...]:
    """The paths of all files of the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    return tuple(path for path in listed.stdout.splitlines() if not (ROOT / path).is_symlink())


def product_files() -> list[str]:
    """Python files of the product."""
    return [path for path in tracked() if path.endswith(".py") and "/" in path and not path.startswith(STUDIES)]


def prose() -> list[str]:
    """The pages that people read from beginning to end."""
    return [path for path in tracked() if path.endswith(".md") and path not in GENERATED]


def folder_imports(files: Iterable[str]) -> dict[str, set[str]]:
    """By folder, the other folders that its files import, wherever in the file the import stands."""
    modules = {module_of(path): str(Path(path).parent) for path in files}
    found: dict[str, set[str]] = {folder: set() for folder in modules.values()}
    for path in modules_below_the_face(files):
        for name in imported(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            module = name if name in modules else name.rpartition(".")[0]  # `name` may be one of the module's names
            if module in modules and module != "podzero":
                found[modules[module_of(path)]].add(modules[module])
    return {folder: others - {folder} for folder, others in found.items()}


def modules_below_the_face(files: Iterable[str]) -> list[str]:
    """The files without `podzero/__init__.py`, which gives names of the top to people."""
    return [path for path in files if path != "podzero/__init__.py"]


def module_of(path: str) -> str:
    """The dotted name of the module in a file."""
    name = path.removesuffix(".py").removesuffix("/__init__").removeprefix("podzero/").replace("/", ".")
    return "podzero" if name == "podzero" else f"podzero.{name}"


def imported(tree: ast.AST) -> Iterable[str]:
    """The absolute names that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def floors(imports: Mapping[str, set[str]]) -> int:
    """The length of the longest chain of imports, folders that import each other taken as one."""
    reached = {folder: reachable(folder, imports) for folder in imports}
    circle = {folder: frozenset({o for o in reached[folder] if folder in reached[o]} | {folder}) for folder in imports}

    @cache
    def height(group: frozenset[str]) -> int:
        below = {circle[other] for folder in group for other in imports[folder]} - {group}
        return 1 + max(map(height, below), default=0)

    return max(height(group) for group in set(circle.values()))


def reachable(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    """The folders that `start` imports, directly or not."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for folder in imports[waiting.pop()] - found:
            found.add(folder)
            waiting.append(folder)
    return found


def import_chain(files: Iterable[str], start: str, text: str) -> list[str]:
    """The shortest chain of files from `start`, each imported by the one before, to one that contains `text`."""
    paths = {module_of(path): path for path in files}
    chains, known = [[start]], {start}
    for chain in chains:
        source = (ROOT / chain[-1]).read_text(encoding="utf-8")
        if text in source:
            return chain
        for name in imported(ast.parse(source)):
            path = paths.get(name) or paths.get(name.rpartition(".")[0])
            if path and path not in known:
                known.add(path)
                chains.append([*chain, path])
    raise ValueError(f"no chain of imports leads from {start} to {text}")


def position_files() -> set[str]:
    """The files whose functions run while positions are played, stored, read, trained on, and parameters published."""
    tiny = ("replay.min_size=64", "learner.batch_size=32", "stop.steps=30", "actors.games=8", "search.simulations=4")
    experiment, params = load("connect_four", tiny), LocalParams()
    network, spec, symmetries = learner_parts(experiment)
    with ReplayServer(experiment, spec, 0) as server:
        addresses = [server.address()]
        learner = Learner(
            experiment, network, spec, symmetries,
            reader=make_reader(lambda: addresses, spec, experiment), sink=None, local_sink=params, report=_unheard,
        )  # fmt: skip
        clients = ActorClients(params, make_writer(lambda: addresses, spec, experiment), _unheard, None)
        actor = make_actor(experiment, "actor-0", 0, [clients])
        acting, found = threading.Thread(target=actor.run, daemon=True), set[str]()

        def called(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and not frame.f_code.co_name.startswith("<module"):
                found.add(frame.f_code.co_filename)

        threading.setprofile_all_threads(called)
        acting.start()
        learner.run()
        actor.stop()
        acting.join(30)
        threading.setprofile_all_threads(None)
    called_paths = {Path(name).resolve() for name in found}
    return {path for path in product_files() if ROOT / path in called_paths}


def _unheard(worker: str, metrics: Mapping[str, float]) -> None:
    """A report that nobody reads."""


def settings(section: type[BaseModel] = Experiment, prefix: str = "") -> set[str]:
    """The dotted names of all settings below a section of an experiment."""
    found: set[str] = set()
    for name, field in section.model_fields.items():
        inner = sections(field.annotation)
        found |= {f"{prefix}{name}"} if not inner else set()
        for kind in inner:
            found |= settings(kind, f"{prefix}{name}.")
    return found


def sections(annotation: object) -> list[type[BaseModel]]:
    """The sections among the types of a field."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for part in get_args(annotation) for kind in sections(part)]


def unused_settings() -> set[str]:
    """The settings whose last name stands in no experiment, page or test."""
    users = [
        path
        for path in tracked()
        if path.startswith(("configs/", "docs/", "tests/")) and path not in GENERATED and not path.endswith(".json")
    ]
    words = {
        word
        for path in users
        for word in re.findall(r"\w+", (ROOT / path).read_text(errors="ignore", encoding="utf-8"))
    }
    return {name for name in settings() if name.rpartition(".")[2] not in words}


if __name__ == "__main__":
    main()
