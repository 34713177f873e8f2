"""Published peak performance of TPU chips and GPUs, and the TPU slices of Google Cloud by their names.

The numbers of TPUs are Google's (https://docs.cloud.google.com/tpu/docs/v4, .../v5e, .../v5p, .../v6e, .../tpu7x, read
in November 2026); those of TPU8i and TPU8t are JAX's (jax/_src/tpu_info.py of 0.12.0.1).
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from podzero.core.errors import ConfigError, nearest


class Chip(NamedTuple):
    """Peak performance of one chip."""

    name: str
    flops: float
    """bfloat16 floating point operations per second."""
    int8_ops: float
    """Operations in int8 per second; nan if unknown."""
    hbm_bytes: float
    hbm_bandwidth: float
    """Bytes/s."""
    link_bandwidth: float = math.nan
    """Bytes/s over all inter-chip links of the chip, both directions together; nan if unknown."""
    cores: int = 1
    """Cores that a chip counts in a slice's short name: v4, v5p and TPU7x count their two TensorCores."""
    dimensions: int = 0
    """Dimensions of the torus; 0 if libtpu cannot compile for the chip, whose slices are then unknown."""
    clock: float = math.nan
    """Cycles per second: the published peak divided by the operations per cycle, two per cell of each matrix unit; nan
    if unknown."""
    devices: int = 1
    """JAX devices per chip: on TPU7x each of the two TensorCores is a device with half of the chip's memory."""
    int8_channels: float = 0
    """The channels from which 3x3 convolutions gain by int8 according to docs/compile.md; inf if none do, or if int8 is
    none of the formats that JAX lists for the chip's products."""
    watts: float | None = None
    """Measured mean power; None where Google publishes none."""

    @property
    def device_word(self) -> str:
        """What one JAX device is: a core or a chip."""
        return "core" if self.devices > 1 else "chip"

    @property
    def device(self) -> Chip:
        """The part of the chip that is one JAX device."""
        shared = ("flops", "int8_ops", "hbm_bytes", "hbm_bandwidth", "link_bandwidth")
        return self._replace(devices=1, **{name: getattr(self, name) / self.devices for name in shared})


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        # Clocks follow from eight matrix units of 128 x 128 on v4 and v5p, from four on v5e. The pages of v4 and v5p
        # give the links in Gbit/s of one direction (2,400 and 4,800), the others in bytes/s of both.
        Chip("v4", 275e12, 275e12, 32 * 2**30, 1200e9, 600e9, cores=2, dimensions=3, clock=1.05e9, watts=170.0),
        Chip("v5e", 197e12, 394e12, 16 * 2**30, 819e9, 400e9, dimensions=2, clock=1.5e9),
        Chip("v5p", 459e12, 918e12, 95 * 2**30, 2765e9, 1200e9, cores=2, dimensions=3, clock=1.75e9),
        # Google says two matrix units of 256 x 256, which would need 3.5 GHz; the compiler's own estimates imply four.
        Chip("v6e", 918e12, 1836e12, 32 * 2**30, 1638e9, 800e9, dimensions=2, clock=1.75e9, int8_channels=math.inf),
        # Four units in each TensorCore by the compiler's estimates, in which int8 is as fast as bfloat16: Google's page
        # has a rate for FP8 (4614e12) and none for int8.
        Chip(
            "tpu7x", 2307e12, 2307e12, 192 * 2**30, 7380e9, 1200e9, cores=2, dimensions=3, clock=2.2e9,
            devices=2, int8_channels=256,
        ),
        Chip("tpu8i", 1101e12, math.nan, 309e9, 8600e9, cores=2, devices=2, int8_channels=math.inf),
        Chip("tpu8t", 996.1e12, 996.1e12, 231e9, 6400e9, int8_channels=math.inf),
    )
}  # fmt: skip
"""The known generations by name."""

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")

_KINDS = {
    # Without a letter, `TPU v5` is v5p; v5e is called lite.
    "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p",
    "TPU v6 lite": "v6e", "TPU v6e": "v6e", "TPU7x": "tpu7x", "TPU8i": "tpu8i", "TPU8t": "tpu8t",
}  # fmt: skip
"""Chip names by `jax.Device.device_kind`, which differs between versions of libtpu."""


def chip_of_kind(device_kind: str) -> Chip | None:
    """The chip with this `jax.Device.device_kind`, or None if it is not a known TPU."""
    return CHIPS.get(_KINDS.get(device_kind, ""))


_GPUS = {
    "NVIDIA A100-SXM4-40GB": 312e12, "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12,
}  # fmt: skip
"""bfloat16 operations per second without sparsity, from NVIDIA's data sheets, by `jax.Device.device_kind`."""


def peak_flops(device_kind: str) -> float | None:
    """bfloat16 operations per second of a JAX device of this kind, or None if they are not known."""
    chip = chip_of_kind(device_kind)
    return _GPUS.get(device_kind) if chip is None else chip.device.flops


class Slice(NamedTuple):
    """A TPU slice: chips connected by an interconnect."""

    chip: Chip
    shape: tuple[int, ...]
    """Chips along each dimension of the torus."""

    @property
    def chips(self) -> int:
        """The number of chips."""
        return math.prod(self.shape)

    @property
    def hops(self) -> int:
        """Hops of an all-reduce that sums along one dimension after another."""
        # A dimension with wrap-around links is a ring, used in both directions: on a two-dimensional torus those of 16
        # chips, on a three-dimensional one all dimensions if every side is a multiple of four.
        rings = (
            [side == 16 for side in self.shape]
            if self.chip.dimensions == 2
            else [all(side % 4 == 0 for side in self.shape)] * 3
        )
        return sum(side // 2 if ring else side - 1 for side, ring in zip(self.shape, rings, strict=True))

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        # Hosts have four chips. Eight of a two-dimensional torus share one host, a machine type of its own.
        if self.chips == 8 and self.chip.dimensions == 2:
            return 1
        return max(1, self.chips // 4)

    @property
    def chips_of_host(self) -> int:
        """The number of chips of each host."""
        return self.chips // self.hosts

    @property
    def devices(self) -> int:
        """The number of JAX devices."""
        return self.chips * self.chip.devices

    @property
    def topology(self) -> str:
        """The compiler's name, for example `v5e:4x4`."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def short_name(self) -> str:
        """Google Cloud's name, for example `v5e-16`."""
        return f"{self.chip.name}-{self.chips * self.chip.cores}"


def slices() -> tuple[Slice, ...]:
    """All known slices, ordered by generation and size."""
    return tuple(
        Slice(chip, tuple(map(int, shape.split("x"))))
        for chip in CHIPS.values()
        for shape in {2: _FLAT, 3: _CUBES}.get(chip.dimensions, ())
    )


def find_slice(name: str) -> Slice:
    """The slice with this short name (`v4-16`, `v5litepod-256`) or topology (`v5e:4x4`); a `ConfigError` lists all."""
    # Only v5e has another name in Google Cloud's accelerator types: v5litepod-16.
    wanted = re.sub(r"^v5lite(pod)?(?=[-:])", "v5e", name.strip().lower())
    for known in slices():
        if wanted in (known.short_name, known.topology):
            return known
    chip = CHIPS.get(re.split("[-:]", wanted)[0])
    if chip is not None and not chip.dimensions:
        compiled = ", ".join(dict.fromkeys(known.chip.name for known in slices()))
        raise ConfigError(f"slice '{name}': libtpu cannot compile for {chip.name}, only for {compiled}")
    names = [known.short_name for known in slices()]
    listed = "; ".join(
        ", ".join(f"{known.short_name} ({known.topology})" for known in slices() if known.chip is chip)
        for chip in CHIPS.values()
        if chip.dimensions
    )
    raise ConfigError(f"unknown slice '{name}'{nearest(wanted, names)}; known: {listed}")


def useless_int8(chip: Chip | None, channels: int) -> str | None:
    """The message that refuses `int8.on_tpu` where a tower of so many channels gains nothing by it, or None."""
    if chip is None or channels >= chip.int8_channels:
        return None
    wider = "" if math.isinf(chip.int8_channels) else f" or network.channels={chip.int8_channels} or more"
    return (
        f"int8.on_tpu gains nothing over bfloat16 on {chip.name} with network.channels {channels} (docs/compile.md); "
        f"set int8.on_tpu=false{wider}"
    )
