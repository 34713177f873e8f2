"""Which CPUs compute in int8."""

import pytest

from podzero.inference import has_int8_instructions


@pytest.mark.parametrize(
    ("flags", "has"),
    [("fpu avx2 avx512_vnni", True), ("fpu avx_vnni", True), ("fpu avx2 avx512f", False), ("xavx_vnni2", False)],
)
def test_the_flags_of_the_cpu_decide(tmp_path, flags, has):
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    assert has_int8_instructions(file) is has


def test_a_machine_that_lists_no_flags_has_none(tmp_path):
    assert not has_int8_instructions(tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("Features : asimd\n")
    assert not has_int8_instructions(tmp_path / "cpuinfo")
