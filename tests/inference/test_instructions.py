"""Which CPUs compute in int8 or in bfloat16."""

import pytest

from podzero.inference import has_bfloat16_instructions, has_int8_instructions


@pytest.mark.parametrize(
    ("flags", "int8", "bfloat16"),
    [
        ("fpu avx2 avx512_vnni", True, False),
        ("fpu avx_vnni", True, False),
        ("fpu avx2 avx512f", False, False),
        ("xavx_vnni2 xamx_bf16", False, False),
        ("fpu avx512_bf16 avx512_vnni", True, True),
        ("fpu amx_bf16", False, True),
    ],
)
def test_the_flags_of_the_cpu_decide(tmp_path, flags, int8, bfloat16):
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    assert has_int8_instructions(file) is int8
    assert has_bfloat16_instructions(file) is bfloat16


def test_a_machine_that_lists_no_flags_has_none(tmp_path):
    assert not has_int8_instructions(tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("Features : asimd\n")
    assert not has_int8_instructions(tmp_path / "cpuinfo")
    assert not has_bfloat16_instructions(tmp_path / "cpuinfo")
