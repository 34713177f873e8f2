"""Recorded games and episodes in a folder: `podzero import` writes them, the learner reads batches of them.

    positions.bin   one row of bytes for each position
    records.json    what the rows hold, how many there are, and which games they come from

For AlphaZero a sample is one position of a game: bits are packed, and the policy is the move that was played unless the
positions were searched at the import, so that a row takes a quarter (connect four) to a twentieth (chess) of one in
replay. For MuZero it is a window of an episode.
"""

from __future__ import annotations

import json
import math
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from podzero.config import Experiment
from podzero.config.samples import UNSEARCHED, stored_observations, window_steps, windows_of
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec, PackedBatch, Sample, Window
from podzero.envs import SamplePacking
from podzero.envs.packing import form_bytes, from_bytes, to_bytes
from podzero.files.store import store_of
from podzero.files.workdir import read_json, write_atomically

_POSITIONS = "positions.bin"
_RECORDS = "records.json"


class PositionLayout:
    """The row of one position of a game; `text` says what rows hold: folders with equal texts are interchangeable."""

    def __init__(self, spec: EnvSpec, discount: float, searched: bool = False) -> None:
        """`discount` is per move, of values. If `searched`, policies are a search's, in float16, not the moves."""
        self._shape, self._dtype = spec.observation_shape, np.dtype(spec.observation_dtype)
        self._actions, self._squares = spec.num_actions, spec.squares
        shape = ",".join(map(str, self._shape))
        self.text = f"{spec.name} observation:{self._dtype}[{shape}] actions:{self._actions} discount:{discount:g}"
        self._searched = searched
        if searched:
            self.text += " policy:searched"
        self.row = np.dtype(
            [
                ("observation", np.uint8, (form_bytes(self._shape, self._dtype),)),
                ("legal", np.uint8, (form_bytes((self._actions,), np.bool_),)),
                ("policy", np.float16, (self._actions,)) if searched else ("action", np.int32),
                ("value_target", np.float32),
                ("outcome", np.int32),
                ("moves_left", np.int32),
                ("reply", np.int32),
            ]
        )

    def pack(self, samples: Sample) -> NDArray[Any]:
        """Rows `[T]` of samples `[T, ...]` with auxiliary targets; policies not searched choose one action."""
        rows = np.empty(len(samples.legal), self.row)
        rows["observation"] = to_bytes(np.asarray(samples.observation, self._dtype), np)
        rows["legal"] = to_bytes(np.asarray(samples.legal), np)
        if self._searched:
            rows["policy"] = samples.policy_target
        else:
            rows["action"] = np.argmax(samples.policy_target, axis=1)
        for name in ("value_target", "outcome", "moves_left", "reply"):
            rows[name] = getattr(samples, name)
        return rows

    def unpack(self, rows: NDArray[Any], auxiliary: bool, ownership: bool = False) -> Sample:
        """The samples `[T, ...]` of rows `[T]`, with the targets of auxiliary heads if `auxiliary` and `ownership`.

        The policy target is that of the search, or chooses the move played.
        """
        if self._searched:
            policy = rows["policy"].astype(np.float32)
            policy /= policy.sum(axis=1, keepdims=True)  # float16 rounds the sum
        else:
            policy = _chosen(rows["action"], self._actions)
        targets = {name: rows[name].copy() for name in ("outcome", "moves_left", "reply")} if auxiliary else {}
        if ownership:
            targets["ownership"] = np.full((len(rows), self._squares), -1, np.int8)  # records do not tell
        return Sample(
            observation=from_bytes(rows["observation"], self._shape, self._dtype, np),
            legal=from_bytes(rows["legal"], (self._actions,), np.bool_, np),
            policy_target=policy,
            value_target=rows["value_target"].copy(),
            version=np.full(len(rows), UNSEARCHED, np.int32),
            **targets,
        )


class RecordsWriter:
    """Writes a folder of records as a whole: leaving the context by an exception leaves nothing behind."""

    def __init__(self, folder: Path, layout: PositionLayout | EpisodeLayout) -> None:
        """Raises ConfigError if the folder exists, and OSError if it cannot be written; so do `add` and `finish`."""
        self._folder, self._layout = folder, layout
        self._unfinished = folder.with_name(f".{folder.name}.unfinished")
        if folder.exists():
            raise ConfigError(f"{folder} exists, and is not overwritten; give another folder with --to, or remove it")
        shutil.rmtree(self._unfinished, ignore_errors=True)
        self._unfinished.mkdir(parents=True)
        self._file = (self._unfinished / _POSITIONS).open("wb")
        self.positions = 0
        """The number of positions written so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        shutil.rmtree(self._unfinished, ignore_errors=True)

    def add(self, content: Any) -> None:
        """Adds the positions of one game or episode, as the layout packs them."""
        rows = self._layout.pack(content)
        self._file.write(rows.tobytes())
        self.positions += len(rows)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Completes the folder; `facts` say where the positions come from."""
        self._file.close()
        tree = {"layout": self._layout.text, "positions": self.positions, **facts}
        write_atomically(self._unfinished / _RECORDS, json.dumps(tree, indent=1) + "\n")
        store_of(self._unfinished).put(self._unfinished)
        self._unfinished.rename(self._folder)


def open_records(experiment: Experiment, spec: EnvSpec) -> RecordedPositions | RecordedEpisodes:
    """The positions of `data.records`, or the episodes if the experiment learns a model; `ConfigError` if none fit."""
    return (RecordedEpisodes if experiment.learns_model else RecordedPositions)(experiment, spec)


def _open_rows[Kind: (PositionLayout, EpisodeLayout)](records: str | None, *layouts: Kind) -> tuple[Kind, NDArray[Any]]:
    """The layout of the folder `records`, one of `layouts`, and its rows `[N]`, mapped into memory."""
    folder = Path(records or "")
    what, tree = f"data.records = '{folder}'", read_json(folder / _RECORDS)
    if not tree:
        raise ConfigError(
            f"{what}: this folder holds no records on {socket.gethostname()}; `podzero import` writes one, and all "
            "learner hosts must see it at the same path"
        )
    layout = next((one for one in layouts if one.text == tree.get("layout")), None)
    if layout is None:
        raise ConfigError(f"{what} holds '{tree.get('layout')}'; this experiment needs '{layouts[0].text}'")
    file = folder / _POSITIONS
    positions = found if isinstance(found := tree.get("positions"), int) else 0
    size, expected = file.stat().st_size if file.is_file() else 0, positions * layout.row.itemsize
    if size != expected or not size:
        raise ConfigError(f"{what} is damaged: {file} has {size:,} bytes, not {expected:,}; import the games again")
    return layout, np.memmap(file, layout.row, "r")


_DAMAGED = "the folder is damaged; import the games again"


def _chosen(action: NDArray[np.int32], actions: int) -> NDArray[np.float32]:
    """`[*action.shape, actions]`: 1 for the action, 0 for the others."""
    if action.min() < 0 or action.max() >= actions:
        raise ConfigError(f"data.records: a row has an action outside 0 to {actions - 1}: {_DAMAGED}")
    return np.eye(actions, dtype=np.float32)[action]


class RecordedPositions:
    """The positions of `data.records`: their `layout`, and their `rows` `[N]`, which are mapped into memory."""

    def __init__(self, experiment: Experiment, spec: EnvSpec) -> None:
        discount = experiment.env.discount
        played, searched = PositionLayout(spec, discount), PositionLayout(spec, discount, searched=True)
        self.layout, self.rows = _open_rows(experiment.data.records, played, searched)
        self._targets = (experiment.has_auxiliary_heads, experiment.predicts_ownership)

    def draw(self, random: np.random.Generator, count: int) -> Sample:
        """Samples `[count, ...]`, drawn uniformly with replacement."""
        rows = self.rows[random.integers(len(self.rows), size=count)]
        return self.layout.unpack(rows, *self._targets)


class Episode(NamedTuple):
    """A recorded episode of T steps."""

    observation: NDArray[Any]
    """`[T + 1, *observation_shape]`, before each action and at the end."""
    action: NDArray[np.int32]
    """`[T]`."""
    reward: NDArray[np.float32]
    """`[T]`."""
    terminated: bool
    """Whether the episode terminated; otherwise a limit truncated it, or the recording stopped."""


class EpisodeLayout:
    """The row of one position of an episode; `text` as in `PositionLayout`.

    `value` is the discounted sum of the later rewards of the episode, `left` the number of steps until its end.
    """

    def __init__(self, spec: EnvSpec, discount: float) -> None:
        """`discount` is per step. Raises ConfigError if the environment has continuous actions or action masks."""
        if spec.action_bounds is not None or spec.masked:
            what = "action masks" if spec.masked else "continuous actions"
            raise ConfigError(f"{spec.name} has {what}; only episodes of discrete actions, all legal, are learned from")
        shape, dtype = spec.observation_shape, np.dtype(spec.observation_dtype)
        self._discount = discount
        self.text = (
            f"{spec.name} episodes observation:{dtype}{list(shape)} actions:{spec.num_actions} discount:{discount:g}"
        )
        self.row = np.dtype(
            [
                ("observation", dtype, shape),
                ("action", np.int32),
                ("reward", np.float32),
                ("value", np.float32),
                ("left", np.int32),
                ("terminated", np.bool_),
            ]
        )

    def pack(self, episode: Episode) -> NDArray[Any]:
        """The rows `[T + 1]` of an episode."""
        steps = len(episode.action)
        rows = np.zeros(steps + 1, self.row)
        rows["observation"] = episode.observation
        rows["action"][:-1], rows["reward"][:-1] = episode.action, episode.reward
        rows["left"], rows["terminated"] = np.arange(steps, -1, -1), episode.terminated
        for step in reversed(range(steps)):
            rows["value"][step] = rows["reward"][step] + np.float32(self._discount) * rows["value"][step + 1]
        return rows


class RecordedEpisodes:
    """The episodes of `data.records`, of which windows are drawn, which begin at any step.

    The policy target is the action that was taken, the value of a position its return. Neither is the result of a
    search, so what is learned is the recorded behaviour; a search with the learned model improves on it.
    """

    def __init__(self, experiment: Experiment, spec: EnvSpec) -> None:
        _, self._rows = _open_rows(experiment.data.records, EpisodeLayout(spec, experiment.env.discount))
        left = self._rows["left"]
        if left.min() < 0 or (np.arange(len(left)) + left).max() >= len(left):
            raise ConfigError(f"data.records: an episode ends outside of the file: {_DAMAGED}")
        self._starts = np.flatnonzero(left > 0)
        self._experiment, self._steps, self._actions = experiment, window_steps(experiment), spec.num_actions

    def draw(self, random: np.random.Generator, count: int) -> Window:
        """Windows `[count, ...]`, drawn uniformly with replacement."""
        starts = self._starts[random.integers(len(self._starts), size=count)]
        left = self._rows["left"][starts]
        # Positions after the end stay at the last row of the episode; `windows_of` clears them.
        index = starts[:, None] + np.minimum(np.arange(self._steps + 1), left[:, None])

        def gathered(name: str, entries: int) -> NDArray[Any]:
            match name:
                case "policy":
                    return _chosen(self._rows["action"][index[:, :entries]], self._actions)
                case "candidates":
                    return np.zeros((count, entries, 0), np.float32)
                case "version":
                    return np.full((count, entries), UNSEARCHED, np.int32)
            found: NDArray[Any] = self._rows[name][index[:, :entries]]
            return found

        terminated = self._rows["terminated"][starts] & (left <= self._steps)
        drawn = random.integers(self._actions, size=(count, self._experiment.muzero.unroll_steps))
        kept = stored_observations(self._experiment)
        return windows_of(self._experiment, gathered, np.minimum(left, self._steps), terminated, drawn, kept)


def recorded_batches(
    records: RecordedPositions | RecordedEpisodes,
    packing: SamplePacking,
    leading: tuple[int, ...],
    seed: int | None = None,
) -> Iterator[PackedBatch]:
    """Endless batches of recorded samples, `[*leading, row_bytes]`; without `seed`, each process draws others."""
    random = np.random.default_rng(seed)
    while True:
        rows = packing.pack(records.draw(random, math.prod(leading)))
        yield PackedBatch(rows.reshape(*leading, packing.row_bytes))
