"""The size of the repository as a reader meets it: folders, files, lines, floors of imports, settings, words.

    uv run --group dev python benchmarks/layout.py [--sizes]

With `--sizes` only what is read from files, without playing and training.
Product files leave out benches, studies and tests, product lines generated code too. A room is a folder of the package,
or a loose file beside them; an arrow leads from a room to one that it imports. Files that import each other, also for
types alone, are a circle. The floors are the longest chain of folders of which each imports the next; folders that
import each other count as one. Settings count where they are declared. The files of a position are those whose
functions run while an actor, a replay server and a learner take connect four through 30 training steps in this process.
The files that start an actor are the shortest chain of imports from the supervisor to the module that makes a
`SelfPlayActor`. The functions that start one run from `make_actor` to its constructor: those of `actors/`, and those of
other rooms that these call.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, cast, get_args

from pydantic import BaseModel

from podzero.actors import ActorClients
from podzero.actors.build import make_actor
from podzero.config import Experiment, load
from podzero.core.protocols import ReplayWriter
from podzero.learner import Learner
from podzero.learner.build import learner_parts
from podzero.replay import ShardedWriter, make_reader
from podzero.replay.server import ReplayServer
from podzero.runtime.params import LocalParams

ROOT = Path(__file__).resolve().parents[1]
GENERATED = (
    "docs/settings.md",
    "docs/results.md",
    "docs/licences.md",
    "docs/compile.md",
    "docs/gallery.md",
    "CHANGELOG.md",
)
"""Pages that are reference or lists, which are not counted as prose."""
STUDIES = ("benchmarks/", "tools/bench/", "tests/", "docs/")
LIMITS = {
    "product lines": 53_823,
    "words of prose": 18_000,
    "product files": 267,
    "rooms": 15,
    "arrows between rooms": 77,
    "circles of files": 0,
    "imports of podzero inside functions": 80,
    "settings": 208,
    "settings in no experiment, page or test": 0,
}
"""The largest values that tests allow. What adds more is paid for elsewhere, or raises a limit for a stated reason."""


def main() -> None:
    """Prints each measure on a line, and its limit if it has one."""
    measures = sizes() if "--sizes" in sys.argv[1:] else sizes() | walks()
    for what, value in measures.items():
        limit = f"{LIMITS[what]:>8,}" if what in LIMITS else ""
        print(f"{what:58} {value:>8,} {limit}".rstrip())


def sizes() -> dict[str, int]:
    """The measures that only read files, by their names."""
    product = product_files()
    rooms = room_imports(product)
    return {
        "folders at the top": len({path.split("/")[0] for path in tracked() if "/" in path and path[0] != "."}),
        "product files": len(product),
        "product lines": sum(source(path).count("\n") for path in product if not path.endswith("_pb2.py")),
        "rooms": len(rooms),
        "arrows between rooms": sum(map(len, rooms.values())),
        "circles of files": len(circles(file_imports(product))),
        "floors of the import graph": floors(folder_imports(product)),
        "imports of podzero inside functions": sum(map(late_imports, product)),
        "settings": sum(map(len, declared_settings().values())),
        "settings in no experiment, page or test": len(unused_settings()),
        "words of prose": sum(len(source(path).split()) for path in prose()),
    }


def walks() -> dict[str, int]:
    """The measures that follow a program, by their names."""
    return {
        "files from rules to rules that a position passes": len(position_files()),
        "files that start an actor": len(import_chain(product_files(), "runtime/supervisor.py", "SelfPlayActor(")),
        "functions that start an actor": len(starting_functions()),
    }


@cache
def tracked() -> tuple[str, ...]:
    """The paths of all files of the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    return tuple(path for path in listed.stdout.splitlines() if not (ROOT / path).is_symlink())


@cache
def source(path: str) -> str:
    """The text of a file of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def parsed(path: str) -> ast.Module:
    """The syntax tree of a Python file of the repository."""
    return ast.parse(source(path))


def product_files() -> list[str]:
    """Python files of the product."""
    return [path for path in tracked() if path.endswith(".py") and "/" in path and not path.startswith(STUDIES)]


def prose() -> list[str]:
    """The pages that people read from beginning to end."""
    return [path for path in tracked() if path.endswith(".md") and path not in GENERATED]


def file_imports(files: Iterable[str]) -> dict[str, set[str]]:
    """By file, the other files that it imports, wherever in the file the import stands."""
    # `podzero/__init__.py` gives names of the top to people: it imports late, and is imported by all.
    paths = {module_of(path): path for path in files if path != "podzero/__init__.py"}
    found: dict[str, set[str]] = {}
    for path in paths.values():
        # A name may be that of a module, or one of the module's names.
        names = (name if name in paths else name.rpartition(".")[0] for name in imported(parsed(path)))
        found[path] = {paths[name] for name in names if name in paths} - {path}
    return found


def folder_imports(files: Iterable[str]) -> dict[str, set[str]]:
    """By folder, the other folders that its files import."""
    return grouped(file_imports(files), lambda path: str(Path(path).parent))


def room_imports(files: Iterable[str]) -> dict[str, set[str]]:
    """By room, the other rooms that its files import."""
    return grouped(file_imports(files), room_of)


def grouped(imports: Mapping[str, set[str]], group_of: Callable[[str], str]) -> dict[str, set[str]]:
    """Imports between groups of files."""
    found: dict[str, set[str]] = {}
    for path, others in imports.items():
        found.setdefault(group_of(path), set()).update(map(group_of, others))
    return {group: others - {group} for group, others in found.items()}


def room_of(path: str) -> str:
    """The folder of the package that holds a file, or the file itself."""
    return path.removeprefix("podzero/").split("/")[0]


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


def late_imports(path: str) -> int:
    """The number of statements inside the functions of a file that import a part of podzero."""
    functions = (node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inside = {node for function in functions for node in ast.walk(function)}
    return sum(isinstance(node, ast.ImportFrom) and str(node.module).startswith("podzero") for node in inside)


def floors(imports: Mapping[str, set[str]]) -> int:
    """The length of the longest chain of imports, folders that import each other taken as one."""
    group = {folder: frozenset({folder}) for folder in imports}
    group |= {folder: circle for circle in circles(imports) for folder in circle}

    @cache
    def height(circle: frozenset[str]) -> int:
        below = {group[other] for folder in circle for other in imports[folder]} - {circle}
        return 1 + max(map(height, below), default=0)

    return max(map(height, group.values()))


def circles(imports: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The largest groups of which each imports every other, directly or not."""
    reached = {name: reachable(name, imports) for name in imports}
    return {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in imports
        if name in reached[name]
    }


def reachable(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    """What `start` imports, directly or not."""
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
        if text in source(chain[-1]):
            return chain
        for name in imported(parsed(chain[-1])):
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
        clients = ActorClients(params, ShardedWriter(lambda: addresses, spec, experiment), _unheard, None)
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


def starting_functions() -> set[tuple[str, str]]:
    """The files and names of functions that run from `make_actor` to the constructor of a local actor."""
    paths = {str(ROOT / path): path for path in product_files() if room_of(path) not in ("core", "config")}
    where = cache(lambda code: paths.get(str(Path(code.co_filename).resolve()), ""))
    found: list[tuple[str, str]] = []

    def called(frame: FrameType, event: str, _: Any) -> None:
        code, caller = frame.f_code, frame.f_back
        # Of what makes the rules, the network and the search only the functions that the builder itself calls.
        if event == "call" and caller and "actors" in (room_of(where(code)), room_of(where(caller.f_code))):
            found.append((where(code), code.co_qualname))

    clients = ActorClients(LocalParams(), cast("ReplayWriter", None), _unheard, None)
    experiment = load("connect_four")
    sys.setprofile(called)
    try:
        make_actor(experiment, "actor-0", 0, [clients])
    finally:
        sys.setprofile(None)
    constructor = next(index for index, (_, name) in enumerate(found) if name == "SelfPlayActor.__post_init__")
    return {(path, name) for path, name in found[: constructor + 1] if path and "<" not in name.rpartition(".")[2]}


def _unheard(worker: str, metrics: Mapping[str, float]) -> None:
    """A report that nobody reads."""


def declared_settings() -> dict[str, set[str]]:
    """By class, the names of the settings that it declares, for all sections of an experiment."""
    classes = {base for kind in kinds(Experiment) for base in kind.__mro__ if issubclass(base, BaseModel)}
    # `each.__annotations__` may be those of a base.
    return {each.__qualname__: {*vars(each).get("__annotations__", ())} & {*each.model_fields} for each in classes}


def kinds(section: type[BaseModel]) -> set[type[BaseModel]]:
    """A section's class, and those of all sections below it."""
    inner = [kind for field in section.model_fields.values() for kind in sections(field.annotation)]
    return {section}.union(*map(kinds, inner))


def sections(annotation: object) -> list[type[BaseModel]]:
    """The sections among the types of a field."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for part in get_args(annotation) for kind in sections(part)]


def unused_settings() -> set[str]:
    """The settings whose name stands in no experiment, page or test."""
    users = [
        path
        for path in tracked()
        if path.startswith(("configs/", "docs/", "tests/")) and path not in GENERATED and not path.endswith(".json")
    ]
    texts = ((ROOT / path).read_text(encoding="utf-8", errors="ignore") for path in users)
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    return {f"{each}.{name}" for each, names in declared_settings().items() for name in names - words}


if __name__ == "__main__":
    main()
