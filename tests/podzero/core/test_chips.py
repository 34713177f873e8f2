import pytest

from podzero.core.chips import chip_of_kind, find_slice, peak_flops, slices
from podzero.core.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "topology", "chips", "hosts"),
    [
        ("v4-16", "v4:2x2x2", 8, 2),
        ("v5p-16", "v5p:2x2x2", 8, 2),
        ("v5e-16", "v5e:4x4", 16, 4),
        ("v5litepod-16", "v5e:4x4", 16, 4),
        ("v5e-256", "v5e:16x16", 256, 64),
        ("v6e-16", "v6e:4x4", 16, 4),
        ("v5e:4x4", "v5e:4x4", 16, 4),
        ("v5e-1", "v5e:1x1", 1, 1),
        ("tpu7x-8", "tpu7x:2x2x1", 4, 1),
        ("tpu7x-16", "tpu7x:2x2x2", 8, 2),
    ],
)
def test_a_slice_is_found_by_both_of_its_names(name, topology, chips, hosts):
    found = find_slice(name)
    assert (found.topology, found.chips, found.hosts) == (topology, chips, hosts)


def test_every_slice_is_found_by_its_topology_and_its_short_name():
    for known in slices():
        assert find_slice(known.topology) == find_slice(known.short_name) == known


@pytest.mark.parametrize(
    ("topology", "hops"),
    [
        ("v5e:1x1", 0),
        ("v5e:2x2", 1 + 1),
        ("v5e:4x4", 3 + 3),  # dimensions of four chips do not wrap around
        ("v5e:8x16", 7 + 8),  # a dimension of sixteen chips is a ring, used in both directions
        ("v5e:16x16", 8 + 8),
        ("v4:2x2x4", 1 + 1 + 3),
        ("v5p:4x4x8", 2 + 2 + 4),  # with sides that are multiples of four, all dimensions are rings
    ],
)
def test_an_all_reduce_takes_the_hops_of_all_dimensions(topology, hops):
    assert find_slice(topology).hops == hops


@pytest.mark.parametrize("name", ["v5e-17", "v9-16", "v5e:3x3", ""])
def test_an_unknown_slice_lists_the_known_ones(name):
    with pytest.raises(ConfigError, match=r"'.*v4-8 \(v4:2x2x1\), .*v6e-256 .*tpu7x-8"):
        find_slice(name)


@pytest.mark.parametrize("name", ["tpu8i-16", "TPU8t:2x2x2"])
def test_a_chip_that_libtpu_does_not_compile_for_is_refused_by_its_name(name):
    with pytest.raises(ConfigError, match=rf"'{name}'.* for tpu8[it].*v4, v5e, v5p, v6e, tpu7x$"):
        find_slice(name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v4", "v4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("TPU7x", "tpu7x"),
        ("TPU8i", "tpu8i"),
        ("TPU8t", "tpu8t"),
    ],
)
def test_a_chip_is_found_by_its_device_kind(kind, name):
    chip = chip_of_kind(kind)
    assert chip is not None
    assert chip.name == name


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA H200", "TPU v9"])
def test_other_devices_are_not_chips(kind):
    assert chip_of_kind(kind) is None


def test_a_chip_of_two_devices_gives_each_of_them_half():
    where = find_slice("tpu7x-8")
    assert (where.devices, where.chip.device.hbm_bytes) == (8, 96 * 2**30)
    assert where.chip.device.flops * where.devices == 4 * 2307e12


@pytest.mark.parametrize(
    ("kind", "flops"),
    [
        ("TPU v5e", 197e12),
        ("TPU7x", 2307e12 / 2),
        ("TPU8i", 1101e12 / 2),
        ("TPU8t", 996.1e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("cpu", None),
        ("NVIDIA T4", None),
    ],
)
def test_the_peak_of_a_device(kind, flops):
    assert peak_flops(kind) == flops
