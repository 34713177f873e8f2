"""Links between the pages resolve, and the files and functions that the pages name exist."""

import ast
import re

import pytest
from command_lines import DOCUMENTS, ROOT

FOLDERS = "|".join(sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))) + "|configs|docs|tests|podzero"
STOPS = re.findall(r"^\| \d+\. [^|]*\| `(\S+)` \| `(\S+)` \|", (ROOT / "docs" / "architecture.md").read_text(), re.M)


def prose_of(page):
    """Its text without blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


def anchors_of(page):
    """The anchors of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose_of(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def defined_in(file):
    """The names of its functions and classes, and of their methods as `Class.method`."""
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
            inner = node.body if isinstance(node, ast.ClassDef) else []
            yield from (f"{node.name}.{method.name}" for method in inner if isinstance(method, ast.FunctionDef))


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_resolve(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if not link.startswith(("http://", "https://")):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page):
    named = re.findall(rf"`((?:{FOLDERS})/(?:[\w./-]*/|[\w./-]*\.\w+)?)`", prose_of(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(("file", "function"), STOPS)
def test_the_walk_through_the_loop_names_functions_that_exist(file, function):
    assert function in set(defined_in(file))


def test_the_walk_has_ten_stops():
    assert len(STOPS) == 10
