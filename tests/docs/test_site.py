"""The site: it is built without a warning, has each page in its navigation, and finds words."""

import json
import re

import pytest
from command_lines import ROOT
from sphinx.cmd.build import build_main

import podzero

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; a page outside of the navigation, or a link without a target, is a warning."""
    folder = tmp_path_factory.mktemp("site")
    assert (
        build_main(["-q", "-W", "--keep-going", "-d", str(folder / "doctrees"), str(ROOT / "docs"), str(folder)]) == 0
    )
    return folder


def test_each_page_has_a_place_and_its_title(site):
    for page in PAGES:
        text = (site / page.with_suffix(".html").name).read_text()
        title = re.search(r"^# (.+)$", page.read_text(), re.M)
        assert title is None or f"<h1>{title[1]}" in text.replace("&amp;", "&"), page


def test_the_first_page_is_readme_with_its_pictures(site):
    first = (site / "index.html").read_text()
    assert "<h1>podzero" in first
    assert 'href="watching.html"' in first
    for picture in re.findall(r"docs/([\w.]+\.(?:png|svg))", (ROOT / "README.md").read_text()):
        assert (site / "_images" / picture).is_file()


def test_the_reference_tells_all_public_names(site):
    reference = (site / "reference.html").read_text()
    for name in podzero.__all__:
        assert f'id="podzero.{name}"' in reference, name


def test_words_are_found_without_a_network(site):
    index = (site / "searchindex.js").read_text()
    assert "katrain" in json.dumps(index)
    for page in site.glob("*.html"):
        assert not re.search(r'(?:src|<link[^>]*href)="https?://', page.read_text()), page
