"""Memory that compilations have freed goes back to the system, once, when no more programs are compiled."""

from __future__ import annotations

import ctypes

import jax
import numpy as np
import pytest

from podzero.runtime.freed_memory import FreedMemory


@pytest.fixture
def trims(clock):
    """A clock, the times at which memory was given back, and what gives it back."""
    times = []
    return clock, times, FreedMemory(lambda: times.append(clock[0]))


def compile_something(factor):
    jax.jit(lambda x: x * factor)(np.ones(3))


def test_nothing_is_given_back_while_programs_are_compiled(trims):
    clock, times, memory = trims
    for step in range(5):
        clock[0] += 8.0
        compile_something(float(step))
        memory.give_back()
    assert times == []
    clock[0] += 11.0
    memory.give_back()
    assert times == [1051.0]


def test_it_is_given_back_once_for_each_time_of_compiling(trims):
    clock, times, memory = trims
    clock[0] = 1020.0
    for _ in range(3):
        memory.give_back()
    compile_something(0.125)
    clock[0] = 1040.0
    for _ in range(3):
        memory.give_back()
    assert times == [1020.0, 1040.0]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_free_pages_between_used_ones_are_given_back(clock):
    memory = FreedMemory()
    clock[0] += 11.0
    blocks = [np.ones(2**14, np.uint8) for _ in range(4000)]  # 64 MB in blocks too small for pages of their own
    del blocks[:-1]
    before = resident_mb()
    memory.give_back()
    assert resident_mb() < before - 40


def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20
