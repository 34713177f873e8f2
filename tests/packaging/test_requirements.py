"""The road of people who use pip: a full list of exact versions, in step with the lock file."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from podzero.benchmarks.licences_page import reached, read_lock
from podzero.importing import PINNED_EXTRAS

ROOT = Path(__file__).resolve().parents[2]
LINES = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def locked():
    """Name to version of everything in the lock file."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    return {package["name"]: package.get("version") for package in lock["package"]}


def test_every_line_pins_one_version():
    for line in LINES:
        assert re.fullmatch(r"[a-z0-9-]+==[^ ;]+( ; .+)?", line), line


def test_no_line_names_a_host_or_a_path():
    text = (ROOT / "requirements.txt").read_text()
    assert not re.search(r"://|--(extra-)?index|--find-links|@|file:", text)


def test_every_version_is_the_locked_one(locked):
    differing = [r for r in map(Requirement, LINES) if not r.specifier.contains(locked[r.name], prereleases=True)]
    assert differing == []


def test_the_list_is_everything_that_the_lock_file_reaches_from_podzero_and_the_extras_that_readme_shows():
    assert {Requirement(line).name for line in LINES} == reached(read_lock(ROOT / "uv.lock"), PINNED_EXTRAS)


def test_what_podzero_declares_is_what_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {r.name: str(r.specifier).removeprefix("==") for r in map(Requirement, LINES)}
    extras = project["optional-dependencies"]
    optional = [line for extra in PINNED_EXTRAS for line in extras[extra]]
    for declared in map(Requirement, [*project["dependencies"], *optional]):
        assert declared.specifier.contains(pinned[declared.name], prereleases=True), declared


def test_the_pins_hold_for_this_interpreter():
    environment = default_environment() | {"extra": ""}
    needed = [r for r in map(Requirement, LINES) if r.marker is None or r.marker.evaluate(environment)]
    assert len(needed) > 50
