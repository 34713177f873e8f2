"""Published peaks of TPU chips, and the slices that can be rented, by the names that people use for them.

The figures are Google's (https://docs.cloud.google.com/tpu/docs/v4, .../v5e, .../v5p, .../v6e, read in November 2026).
Where those pages give the interconnect in Gbit/s of one direction (v4: 2,400, v5p: 4,800), it is doubled here to the
bytes/s of both directions that the pages of v5e and v6e give. Clocks are the published peak divided by what one cycle
can do: two operations in each cell of all matrix units, which are eight of 128 x 128 in v4 and v5p and four in v5e. The
page of v6e says two of 256 x 256, which would need 3.5 GHz; the compiler's own estimates of matrix products need four.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from podzero.errors import ConfigError, nearest


class Chip(NamedTuple):
    """What one chip can do at most."""

    name: str
    flops: float
    """bfloat16 floating point operations per second."""
    hbm_bytes: float
    hbm_bandwidth: float
    """Bytes/s."""
    link_bandwidth: float
    """Bytes/s over all links of the chip to its neighbours, both directions together."""
    cores: int
    """What a short slice name counts for one chip: v4 and v5p count TensorCores, two in a chip."""
    chips_per_host: int
    dimensions: int
    """Of the torus."""
    clock: float
    """Cycles per second."""


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("v4", 275e12, 32 * 2**30, 1200e9, 600e9, cores=2, chips_per_host=4, dimensions=3, clock=1.05e9),
        Chip("v5e", 197e12, 16 * 2**30, 819e9, 400e9, cores=1, chips_per_host=4, dimensions=2, clock=1.5e9),
        Chip("v5p", 459e12, 95 * 2**30, 2765e9, 1200e9, cores=2, chips_per_host=4, dimensions=3, clock=1.75e9),
        Chip("v6e", 918e12, 32 * 2**30, 1638e9, 800e9, cores=1, chips_per_host=4, dimensions=2, clock=1.75e9),
    )
}
"""The known generations. Slices of several hosts have four chips on each."""

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")

_KINDS = {
    "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p",
    "TPU v6 lite": "v6e", "TPU v6e": "v6e",
}  # fmt: skip
"""Chips by what `jax.Device.device_kind` calls them; newer libraries use the second name of each."""


def chip_of_kind(device_kind: str) -> Chip | None:
    """The chip that jax calls `device_kind`; None for anything else than a known TPU."""
    name = _KINDS.get(device_kind)
    return None if name is None else CHIPS[name]


class Slice(NamedTuple):
    """A slice of a pod: chips that are linked to one another."""

    chip: Chip
    shape: tuple[int, ...]
    """Chips along each dimension of the torus."""

    @property
    def chips(self) -> int:
        """How many chips it has."""
        return math.prod(self.shape)

    @property
    def hops(self) -> int:
        """Steps from neighbour to neighbour in which a sum along all dimensions, one after the other, is complete.

        A dimension whose ends are linked is a ring that is used in both directions. That is so for the 16 chips of a
        whole pod's side (two dimensions) and for sides of whole cubes of four (three dimensions).
        """
        rings = (
            [side == 16 for side in self.shape]
            if self.chip.dimensions == 2
            else [all(side % 4 == 0 for side in self.shape)] * 3
        )
        return sum(side // 2 if ring else side - 1 for side, ring in zip(self.shape, rings, strict=True))

    @property
    def hosts(self) -> int:
        """How many machines hold them: eight chips of a flat torus are one machine of their own kind."""
        if self.chips == 8 and self.chip.dimensions == 2:
            return 1
        return max(1, self.chips // self.chip.chips_per_host)

    @property
    def topology(self) -> str:
        """As `v5e:4x4`, the compiler's name."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def short_name(self) -> str:
        """As `v5e-16`, the name on the bill."""
        return f"{self.chip.name}-{self.chips * self.chip.cores}"


def slices() -> tuple[Slice, ...]:
    """All known slices, the smaller before the larger."""
    return tuple(
        Slice(chip, tuple(map(int, shape.split("x"))))
        for chip in CHIPS.values()
        for shape in (_FLAT if chip.dimensions == 2 else _CUBES)
    )


def find_slice(name: str) -> Slice:
    """The slice called `name`, which is a short name (`v4-16`, `v5litepod-256`) or a topology (`v5e:4x4`).

    Raises:
      ConfigError: there is none; names the nearest, and all known.
    """
    wanted = re.sub(r"^v5lite(pod)?(?=[-:])", "v5e", name.strip().lower())
    for known in slices():
        if wanted in (known.short_name, known.topology):
            return known
    names = [known.short_name for known in slices()]
    listed = "; ".join(
        ", ".join(f"{known.short_name} ({known.topology})" for known in slices() if known.chip is chip)
        for chip in CHIPS.values()
    )
    raise ConfigError(f"unknown slice '{name}'{nearest(wanted, names)}; known: {listed}")
