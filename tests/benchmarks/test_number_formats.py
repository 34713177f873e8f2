"""The table of number formats, and what the chips say of it."""

import json

import pytest

from podzero.benchmarks.number_formats import CHANNELS, RESULTS, SLICES, convolutions_of, formats_table
from podzero.core.chips import CHIPS, find_slice


def test_cells_hold_the_cycles_of_a_format_in_those_of_bfloat16_or_say_that_they_are_unknown():
    cycles = {"v4-8": {"bfloat16": 200.0, "int8": 250.0, "float8_e4m3fn": None}}
    _, (row,) = formats_table({"cycles": {"products": cycles}})
    assert row == ("products", "v4", "1.25", "-")


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize("channels", CHANNELS)
def test_int8_is_refused_where_the_table_shows_no_gain(name, channels):
    what = convolutions_of(channels)
    _, (row,) = formats_table({"cycles": {what: {name: json.loads(RESULTS.read_text())["cycles"][what][name]}}})
    assert (channels < find_slice(name).chip.int8_channels) == (float(row[2]) >= 0.99)


def test_every_chip_with_slices_is_in_the_table():
    assert [find_slice(name).chip.name for name in SLICES] == [chip.name for chip in CHIPS.values() if chip.dimensions]
