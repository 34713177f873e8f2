"""Licences: every dependency has one, and what is always installed is free of copyleft."""

import pytest

from podzero.benchmarks.licences_page import (
    SERVER,
    LicenceUnknown,
    is_copyleft,
    licence_of,
    licences_page,
    reached,
    read_lock,
)
from podzero.benchmarks.pages import ROOT
from podzero.replay import server_python

LOCK = {
    "podzero": {"version": "1", "dependencies": [{"name": "a"}], "optional-dependencies": {"x": [{"name": "c"}]}},
    "a": {"version": "2", "dependencies": [{"name": "b", "extra": ["fast"]}]},
    "b": {"version": "3", "optional-dependencies": {"fast": [{"name": "d"}]}},
    "c": {"version": "4", "dependencies": [{"name": "a"}]},
    "d": {"version": "5"},
}


def test_nothing_that_is_always_installed_is_copyleft():
    always = reached(read_lock(ROOT / "uv.lock"), ())
    assert len(always) > 50
    assert {name: licence_of(name) for name in always if is_copyleft(licence_of(name))} == {}


def test_nothing_in_the_environment_of_the_replay_server_is_copyleft():
    server = reached(read_lock(ROOT / "replay" / "reverb_server" / "uv.lock"), (), SERVER)
    folder = [str(server_python().parents[1] / "lib" / "python3.11" / "site-packages")]
    licences = {name: licence_of(name, folder) for name in server}
    assert len(licences) > 10
    assert not [name for name, licence in licences.items() if is_copyleft(licence)]


@pytest.mark.parametrize("licence", ["GPL-2.0-only", "AGPL-3.0", "GNU Library or Lesser General Public License (LGPL)"])
def test_the_gnu_licences_are_copyleft(licence):
    assert is_copyleft(licence)


def test_the_licences_of_bsd_and_mozilla_are_not():
    assert not any(map(is_copyleft, ["BSD-3-Clause", "MPL-2.0", "Apache-2.0", "MIT"]))


def test_dependencies_are_followed_through_the_extras_that_they_name():
    assert reached(LOCK, ()) == {"a", "b", "d"}
    assert reached(LOCK, ("x",)) == {"a", "b", "c", "d"}


def test_each_extra_lists_what_it_adds():
    server = {SERVER: {"version": "0", "dependencies": [{"name": "e"}]}, "e": {"version": "6"}}
    page = licences_page(LOCK, ["x"], lambda name: f"licence of {name}", server, lambda name: f"server's {name}")
    assert "| e | 6 | server's e |" in page
    assert page.index("| d | 5 | licence of d |") < page.index("Extra `x`") < page.index("| c | 4 | licence of c |")
    assert page.count("licence of a") == 1


def test_a_package_whose_licence_is_unknown_is_named():
    with pytest.raises(LicenceUnknown, match=r"no-such-package .* STATED"):
        licence_of("no-such-package")
