"""Chips that JAX must find, and memory that must suffice: the learner ends with an error."""

from types import SimpleNamespace

import jax
import pytest

from podzero.core.chips import find_slice
from podzero.core.errors import ConfigError
from podzero.learner import check_chips, explained
from podzero.learner.devices import DoesNotFit


@pytest.fixture
def devices(monkeypatch):
    """Replaces the devices that JAX finds on this host."""

    def find(platform, count, jax_platforms="", slices=1):
        monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(platform=platform)] * count)
        everywhere = [SimpleNamespace(slice_index=number) for number in range(slices)] * count
        monkeypatch.setattr(jax, "devices", lambda: everywhere)
        monkeypatch.setenv("JAX_PLATFORMS", jax_platforms)

    return find


def test_a_host_with_missing_chips_is_refused(devices):
    devices("tpu", 4)
    check_chips(find_slice("v5e-16"))
    devices("tpu", 2)
    with pytest.raises(ConfigError, match=r"v5e-16 with 4 devices.* 2 .*another process"):
        check_chips(find_slice("v5e-16"))


def test_a_slice_that_jax_does_not_find_is_refused(devices):
    devices("tpu", 4, slices=2)
    check_chips(find_slice("v5e-16"), slices=2)
    for found, asked in ((1, 2), (2, 1)):
        devices("tpu", 4, slices=found)
        with pytest.raises(ConfigError, match=f"cluster.slices={asked} .* devices of {found}:"):
            check_chips(find_slice("v5e-16"), slices=asked)


def test_a_host_without_libtpu_is_refused(devices):
    devices("cpu", 1)
    with pytest.raises(ConfigError, match=r"only cpu devices.*install libtpu"):
        check_chips(find_slice("v5e-16"))


def test_other_devices_are_accepted_if_jax_platforms_names_them(devices):
    devices("cpu", 2, jax_platforms="cpu")
    check_chips(find_slice("v4-16"))


def test_out_of_memory_errors_name_config_fields_and_other_errors_are_unchanged():
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9876 bytes")
    found = explained(full)
    assert isinstance(found, DoesNotFit)
    for words in ("learner.mesh.fsdp=true", "network.remat=true", "learner.microbatches", "9876 bytes"):
        assert words in str(found)
    other = jax.errors.JaxRuntimeError("INTERNAL: something else")
    assert explained(other) is other
