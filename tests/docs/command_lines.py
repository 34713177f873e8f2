"""Every command line that people are told to type: in the documents, in experiments, and by the program itself.

Not those of the changelog, which tells of commands as they were.

Documents and experiments show them in blocks of code, or in backticks; the program's messages, its help and the
docstrings of scripts in backticks, on lines of their own, or in a sentence.
"""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = (
    ".", ".ci/run", "bash", "curl", "docker", "echo", "export", "gcloud", "git", "jupyter", "kubectl", "pip", "pipx",
    "podzero", "pytest", "python", "python3.11", "python3.13", "ray", "ssh", "taskset", "tensorboard", "uv", "uvx",
)  # fmt: skip
"""What a command line begins with."""
VERBS = (
    "analyze", "bench", "compare", "compile", "configs", "demo", "diff", "doctor", "engine", "evaluate", "export",
    "import", "info", "launch", "logs", "new", "play", "push", "report", "review", "runs", "settings", "status", "stop",
    "tournament", "trace", "train", "zoo",
)  # fmt: skip
"""The commands of podzero, to tell `podzero train` from "podzero cannot"."""
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("[a-z]*/README.md")),
]
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
PACKAGES = [path.parent for path in sorted(ROOT.glob("*/__init__.py")) if path.parent.name != "tests"]

_PROGRAM = "|".join(map(re.escape, sorted(PROGRAMS, key=len, reverse=True)))
_BEGINS = re.compile(rf"^(?:[A-Z_]+=\S+ +)*(?:{_PROGRAM})(?: |$)")
_ARGUMENT = r"(?: (?:(?:⟦[^⟧]*⟧)+|(?:-|(?=\S*[=/@:])\w|[A-Z]{2})\S*(?<![,.;:)]))| (?:selfplay|learner))"
_UNQUOTED = re.compile(
    rf"(?<![\w`./-])((?:uv run )?podzero (?:{'|'.join(VERBS)})\b{_ARGUMENT}*|uv (?:sync|lock|pip) [^`\n)]*)"
)
"""In a sentence: `podzero VERB` and what looks like its arguments."""
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$|(?:^\n|\A)((?:^    [^\n]*\n|^\n(?=    ))+)", re.M | re.S)
"""A block between fences, with its language; or an indented one."""


class CommandLine(NamedTuple):
    """A command line, as it is shown."""

    text: str
    where: str
    """The file, with the line where it is known."""
    shown: str
    """`block`, `inline` or `message`."""


@cache
def command_lines() -> tuple[CommandLine, ...]:
    """All of them, each text once for each way in which it is shown."""
    found: dict[tuple[str, str], CommandLine] = {}
    for line in _everywhere():
        found.setdefault((line.text, line.shown), line)
    return tuple(found.values())


def _everywhere() -> Iterator[CommandLine]:
    for path in DOCUMENTS:
        yield from of_markdown(path.read_text(), str(path.relative_to(ROOT)))
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                yield from of_markdown("".join(cell["source"]), str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        yield from of_experiment(path.read_text(), str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "podzero" / "zoo").glob("*/card.yaml")):
        yield CommandLine(yaml.safe_load(path.read_text())["command"], str(path.relative_to(ROOT)), "inline")
    for path in sources():
        yield from of_source(path.read_text(), str(path.relative_to(ROOT)))


def sources() -> list[Path]:
    """The files of the product; `podzero/` holds links to its packages, which count once."""
    own = [*(ROOT / "podzero").glob("*.py"), *(ROOT / "podzero" / "config").rglob("*.py")]
    return sorted({*own, *(path for package in PACKAGES for path in package.rglob("*.py"))} - {ROOT / "podzero"})


def of_markdown(text: str, where: str) -> Iterator[CommandLine]:
    """The command lines of a page: of its blocks of code, and in backticks."""
    prose = text
    for block in _BLOCK.finditer(text):
        prose = prose.replace(block[0], "\n" * block[0].count("\n"), 1)
    for words, number in lines_of_blocks(text):
        if is_command_line(words):
            yield CommandLine(words, f"{where}:{number}", "block")
    for span in _SPAN.finditer(prose):
        words = " ".join(span[1].split()).replace("\\|", "|")
        if is_command_line(words):
            yield CommandLine(words, f"{where}:{prose[: span.start()].count(chr(10)) + 1}", "inline")


def lines_of_blocks(text: str) -> Iterator[tuple[str, int]]:
    """What is shown in the blocks of a page that have no other language, each line with the number of its block's
    first one; of a session only what follows the prompt `$ `.
    """
    for block in _BLOCK.finditer(text):
        if block[1] not in (None, "", "sh", "bash"):
            continue
        lines = [line.removeprefix("    ") for line in (block[2] or block[3]).replace("\\\n", " ").splitlines()]
        session = any(line.startswith("$ ") for line in lines)
        for line in lines:
            words = " ".join(re.sub(r"(?:^|\s)# .*", "", line).removeprefix("$ ").split())
            if words and (line.startswith("$ ") or not session):
                yield words, text[: block.start()].count("\n") + 1


def is_command_line(words: str) -> bool:
    """Whether it begins with one of `PROGRAMS`."""
    return _BEGINS.match(words) is not None


def of_experiment(text: str, where: str) -> Iterator[CommandLine]:
    """The commands of the comment at the top of an experiment."""
    for label, words in re.findall(r"^# (Run|Judge): +(.*)$", text, re.M):
        yield CommandLine(words, f"{where}, {label}", "block")


def of_source(text: str, where: str) -> Iterator[CommandLine]:
    """The command lines in the strings of a program; what it fills in stands there as `⟦expression⟧`."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):  # a node comes before its parts
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in ast.walk(node))
            string = "".join(
                part.value if isinstance(part, ast.Constant) else f"⟦{ast.unparse(part.value)}⟧" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            string = node.value
        else:
            continue
        for words in of_message(string):
            yield CommandLine(words, f"{where}:{node.lineno}", "message")


def of_message(text: str) -> Iterator[str]:
    """The command lines of a message: in backticks, on a line of their own, or in its sentences."""
    spans = [" ".join(span[1].split()) for span in _SPAN.finditer(text)]
    yield from (words for words in spans if is_command_line(words))
    text = _SPAN.sub("``", text).replace("\\\n", " ")
    for line in (re.sub(r"\s+# .*", "", line).strip() for line in text.splitlines()):
        if " " in line and re.match(r"(?:[A-Z_]+=\S+ |taskset -c \d+ )*(?:uv run |python |tensorboard )", line):
            yield line
        else:
            yield from (found.strip() for found in _UNQUOTED.findall(line))
