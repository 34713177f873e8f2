from types import SimpleNamespace

import jax
import pytest

from podzero.chips import find_slice
from podzero.errors import ConfigError
from podzero.learner import check_chips, explained
from podzero.learner.devices import DoesNotFit


@pytest.fixture
def devices(monkeypatch):
    """Lets JAX find some devices on this host."""

    def find(platform, count, asked_for=""):
        monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(platform=platform)] * count)
        monkeypatch.setenv("JAX_PLATFORMS", asked_for)

    return find


def test_the_chips_of_a_host_are_counted(devices):
    devices("tpu", 4)
    check_chips(find_slice("v5e-16"))
    devices("tpu", 2)
    with pytest.raises(ConfigError, match="a host of v5e-16 with 4 chips, but JAX finds 2 of them: another process"):
        check_chips(find_slice("v5e-16"))


def test_a_host_without_libtpu_does_not_train_on_its_cpu_unnoticed(devices):
    devices("cpu", 1)
    with pytest.raises(ConfigError, match=r"JAX finds only cpu devices there: install libtpu"):
        check_chips(find_slice("v5e-16"))


def test_devices_that_stand_in_for_chips_must_be_asked_for(devices):
    devices("cpu", 2, asked_for="cpu")
    check_chips(find_slice("v4-16"))


def test_a_lack_of_memory_names_the_switches_and_other_failures_stay_what_they_are():
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9876 bytes")
    found = explained(full)
    assert isinstance(found, DoesNotFit)
    for words in ("learner.mesh.fsdp=true", "network.remat=true", "learner.microbatches", "9876 bytes"):
        assert words in str(found)
    other = jax.errors.JaxRuntimeError("INTERNAL: something else")
    assert explained(other) is other
