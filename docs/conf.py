"""The site of this folder's pages, with navigation, search and the reference of the Python interface.

    uv run --group dev sphinx-build -W docs build/site

Sphinx with MyST, as JAX, Flax and Optax have it: the pages stay Markdown that reads well where it is stored, and the
site needs no network.
"""

import re
from pathlib import Path

project = html_title = "podzero"
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
# In docstrings a name between backticks is code.
default_role = "code"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
html_theme = "furo"
html_static_path = html_css_files = ["site.css"]
html_show_sphinx = html_show_copyright = html_copy_source = False
# Diagrams of Mermaid are shown as text.
suppress_warnings = ["misc.highlighting_failure"]

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./[^)]*|[A-Z]+(?:\.md)?)\)")
"""Links to files that are not on the site."""


def complete(_app, docname, source):
    """Makes README the first page, and leaves only the text of links to files that are not on the site."""
    page = source[0].replace("](../README.md", "](index.md")
    if docname == root_doc:
        page = README.replace("](docs/", "](").replace('src="docs/', 'src="') + page
    source[0] = OUTSIDE.sub(r"\1", page)


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", complete)
