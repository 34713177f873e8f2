"""Whether this CPU multiplies int8 or bfloat16 faster than float32."""

from __future__ import annotations

from pathlib import Path

INT8_INSTRUCTIONS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Flags of /proc/cpuinfo, of which one suffices."""
BFLOAT16_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16"})
"""Flags of /proc/cpuinfo, of which one suffices."""
CPUINFO = Path("/proc/cpuinfo")


def has_int8_instructions(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the CPU has one of `INT8_INSTRUCTIONS`; False where there is no such file or it lists no flags."""
    return not INT8_INSTRUCTIONS.isdisjoint(_flags(cpuinfo))


def has_bfloat16_instructions(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the CPU has one of `BFLOAT16_INSTRUCTIONS`; False where there is no such file or it lists no flags."""
    return not BFLOAT16_INSTRUCTIONS.isdisjoint(_flags(cpuinfo))


def _flags(cpuinfo: Path) -> list[str]:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    return next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split()
