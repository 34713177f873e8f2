"""Reads recorded episodes: one in each `.npz` file, or one in each line of a `.jsonl` file."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from podzero.errors import ConfigError
from podzero.replay import Episode
from podzero.tools.records.games import Fault
from podzero.types import EnvSpec

_KEYS = ("observations", "actions", "rewards", "terminated")


def read_episodes(file: Path, spec: EnvSpec) -> Iterator[Episode | Fault]:
    """The episodes of a file.

    An episode of T steps is an object with the arrays `observations` (`[T + 1, *observation_shape]`, before each action
    and at the end), `actions` (`[T]`, numbered from 0) and `rewards` (`[T]`), and with `terminated` (false if a limit
    truncated it).

    Args:
      file: a file whose name ends in `.npz` or `.jsonl`.
      spec: the environment.

    Raises:
      ConfigError: the file cannot be read.
    """
    for where, content in _contents(file):
        try:
            yield _episode(where, content(), spec)
        except (ValueError, LookupError, TypeError, zipfile.BadZipFile):
            yield Fault(where, "unreadable", f"expected the arrays {', '.join(_KEYS)}")


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


def _episode(where: str, tree: Mapping[str, Any], spec: EnvSpec) -> Episode | Fault:
    """The episode of an object.

    Raises:
      ValueError, LookupError, TypeError: the object is not that of an episode.
    """
    observations, actions, rewards = (np.asarray(tree[key]) for key in _KEYS[:3])
    terminated = bool(np.asarray(tree["terminated"]).item())
    steps = len(actions)
    if actions.shape != (steps,) or rewards.shape != (steps,):
        raise ValueError("actions and rewards do not have one number for each step")
    if not steps:
        return Fault(where, "unfinished", "it has no step to learn from")
    expected = (steps + 1, *spec.observation_shape)
    if observations.shape != expected:
        return Fault(where, "foreign", f"observations have shape {list(observations.shape)}; expected {list(expected)}")
    if not np.can_cast(actions.dtype, np.int64) or not ((actions >= 0) & (actions < spec.num_actions)).all():
        return Fault(where, "illegal", f"an action is not a number from 0 to {spec.num_actions - 1}")
    if not (np.isfinite(rewards).all() and np.isfinite(observations).all()):
        return Fault(where, "illegal", "a reward or an observation is not finite")
    return Episode(
        observations.astype(spec.observation_dtype),
        actions.astype(np.int32),
        rewards.astype(np.float32),
        terminated,
    )
