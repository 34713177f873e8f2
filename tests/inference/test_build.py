"""The network of an experiment, as it is built for accelerators."""

import jax

from podzero.config import load
from podzero.inference.build import placed_network


def test_a_gpu_evaluates_without_int8_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert placed_network(load("tic_tac_toe", ["actors.inference=device", "int8.on_tpu=true"])).int8 is None
    assert "int8.on_tpu is for TPUs" in caplog.text
