"""The network of an experiment, as it is built for accelerators."""

from types import SimpleNamespace

import jax
import pytest

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.inference.build import placed_network


def test_a_gpu_evaluates_without_int8_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert placed_network(load("tic_tac_toe", ["actors.inference=device", "int8.on_tpu=true"])).int8 is None
    assert "int8.on_tpu is for TPUs" in caplog.text


def test_int8_is_refused_on_a_tpu_that_gains_nothing_by_it(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="TPU7x")])
    with pytest.raises(ConfigError, match=r"tpu7x.*int8\.on_tpu=false"):
        placed_network(load("tic_tac_toe", ["actors.inference=device", "int8.on_tpu=true"]))
