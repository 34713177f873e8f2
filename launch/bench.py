"""The command `bench`: one stage, with lines that tell what it is doing."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

from podzero.config import builtin_configs, load
from podzero.errors import ConfigError
from podzero.launch.platforms import keep_compiled_programs

TOLD = logging.getLogger("podzero.tools.bench")
"""Where the benches log what they start, compile, wait for and measure."""


def run_stage(stage: str, config: str, overrides: list[str], seconds: float, tell: bool) -> dict[str, Any]:
    """Measures `stage` for about `seconds`; returns its figures.

    Args:
      stage: the module of `podzero.benchmarks`.
      config: the experiment whose sizes are used.
      overrides: settings that replace its own.
      seconds: how long to measure.
      tell: whether what it is doing is told on the error output.

    Raises:
      ConfigError: no such experiment or setting, or one that the stage does not measure.
      BenchError: a process of the bench ended or did not answer in time.
    """
    for override in overrides:
        _check_setting(override, stage)
    experiment = load(config, overrides)
    keep_compiled_programs()
    with _told() if tell else nullcontext():
        measure = getattr(import_module(f"podzero.tools.bench.{stage}"), f"bench_{stage}")
        found: dict[str, Any] = measure(experiment, seconds)
    return found


@contextmanager
def _told() -> Iterator[None]:
    """Shows what the benches log, each line with the seconds since the start of the command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_SinceStart("[%(since)6.1f s] %(message)s"))
    TOLD.addHandler(handler)
    TOLD.setLevel(logging.INFO)
    try:
        yield
    finally:
        TOLD.removeHandler(handler)


class _SinceStart(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.since = record.relativeCreated / 1000
        return super().format(record)


def _check_setting(override: str, stage: str) -> None:
    """Refuses an experiment in the place of a setting, where other commands have it."""
    if "=" in override:
        return
    if override in builtin_configs() or override.endswith((".yaml", ".yml")):
        raise ConfigError(
            f"'{override}' is an experiment, which the option --config names: "
            f"`podzero bench {stage} --config {override}`"
        )
