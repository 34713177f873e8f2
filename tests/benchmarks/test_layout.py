"""The repository stays as small and as simple as it has become."""

import pytest

from podzero.benchmarks import layout


@pytest.fixture(scope="module")
def sizes():
    return layout.sizes()


@pytest.mark.parametrize(("measure", "limit"), layout.LIMITS.items())
def test_a_measure_stays_within_its_limit(sizes, measure, limit):
    """What adds more is paid for elsewhere; a higher limit in benchmarks/layout.py needs a reason."""
    assert sizes[measure] <= limit


def test_circles_of_imports_are_found():
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert layout.circles(imports) == {frozenset("bc")}
    assert layout.floors(imports) == 3


def test_rooms_are_folders_of_the_package_and_loose_files():
    imports = {"podzero/core/a.py": {"tools/play/b.py", "podzero/loose.py"}, "tools/play/b.py": {"tools/report/c.py"}}
    assert layout.grouped(imports, layout.room_of) == {"core": {"tools", "loose.py"}, "tools": set()}
