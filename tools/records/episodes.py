"""Reads recorded episodes: one in each `.npz` file, or one in each line of a `.jsonl` file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from podzero.core.errors import ConfigError, described
from podzero.envs import Interface, is_truth
from podzero.replay import Episode
from podzero.tools.records.games import Fault

_KEYS = ("observations", "actions", "rewards", "terminated")


def read_episodes(file: Path, interface: Interface) -> Iterator[Episode | Fault]:
    """The episodes of a file.

    An episode of T steps is an object with the arrays `observations` (`[T + 1, *observation_shape]`, before each action
    and at the end), `actions` (`[T, ...]`, as the environment's `step` took them) and `rewards` (`[T]`), and with
    `terminated` (false if a limit truncated it). What would be a failure in a run is left out.

    Args:
      file: a file whose name ends in `.npz` or `.jsonl`.
      interface: that of the environment.
    """
    for where, content in _contents(file):
        try:
            yield _episode(where, content(), interface)
        # NumPy, zlib and json raise many kinds of errors on damaged files.
        except Exception as error:
            what = f"expected the arrays {', '.join(_KEYS)} ({described(error)})"
            yield Fault(where, "unreadable", what)


def _contents(file: Path) -> Iterator[tuple[str, Any]]:
    """Where each episode of a file is, and a function that reads it."""
    try:
        if file.suffix.lower() == ".npz":
            yield str(file), lambda: np.load(file, allow_pickle=False)
            return
        with file.open(encoding="utf-8-sig", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{file}, line {number}", lambda line=line: json.loads(line)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None


def _episode(where: str, tree: Mapping[str, Any], interface: Interface) -> Episode | Fault:
    """The episode of an object; raises anything if the object is not that of an episode."""
    observations, actions, rewards, terminated = (np.asarray(tree[key]) for key in _KEYS)
    steps = len(actions)
    if rewards.shape != (steps,) or rewards.dtype.kind not in "biuf":
        raise ValueError(f"rewards are {rewards.dtype} of shape {list(rewards.shape)}; expected [{steps}] numbers")
    if terminated.size != 1 or not is_truth(terminated):
        raise ValueError(f"terminated is {tree['terminated']!r:.80}; expected true or false")
    if not steps:
        return Fault(where, "unfinished", "it has no step to learn from")
    expected = (steps + 1, *interface.observations.shape)
    if observations.shape != expected:
        return Fault(where, "foreign", f"observations have shape {list(observations.shape)}; expected {list(expected)}")
    with np.errstate(over="ignore"):
        rewards = rewards.astype(np.float32)
    if not np.isfinite(rewards).all():
        return Fault(where, "illegal", "a reward is not finite")
    try:
        seen, taken = interface.observations.recorded(observations), interface.actions.encode(actions)
    except ValueError as error:
        return Fault(where, "illegal", str(error))
    return Episode(seen, taken, rewards, bool(terminated.item()))
