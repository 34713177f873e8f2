"""The signature of a table's samples: names, shapes and dtypes of their fields, checks, and the items that they become.

A sample is one row of bytes (`podzero.envs.SamplePacking`) instead of one tensor per field: every tensor costs Reverb a
chunk, a compression and a copy. The remaining cost is per item and exceeds that of a small sample's bytes, so
`replay.samples_per_item` rows make one item.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from podzero.core.types import Sample, StoredState, Window
from podzero.envs import SamplePacking, Stored
from podzero.replay.errors import SignatureError

_SUM_TOLERANCE = 1e-3
"""Largest difference from one of the sum of a float32 policy."""


class SampleSignature:
    """The fields of a table's samples, and the number of samples in an item."""

    def __init__(self, name: str, packing: SamplePacking, samples_per_item: int) -> None:
        """Takes the environment's name, and how samples become rows."""
        self.packing = packing
        self._kind = type(packing.like)
        leaves = {field: leaf for field, leaf in packing.like._asdict().items() if leaf is not None}
        self.fields = {field: np.dtype((leaf.dtype, tuple(leaf.shape))) for field, leaf in leaves.items()}
        """The dtype of each field with its shape, in the order of `Sample`, `Window` or `StoredState`."""
        self.samples_per_item = samples_per_item
        self.layout = f"{name} {packing.layout} samples_per_item:{samples_per_item}"
        """The signature as one line of text; tables with equal layouts hold interchangeable items."""
        self.row_bytes = packing.row_bytes
        self.item_bytes = samples_per_item * self.row_bytes
        # The fields of a sample one after the other: what rows were before they were packed.
        self._older = None if packing.holds_states or self._kind is StoredState else np.dtype([*self.fields.items()])
        texts = [f"{field}:{one.base.name}[{','.join(map(str, one.shape))}]" for field, one in self.fields.items()]
        older = " ".join([name, *texts, f"samples_per_item:{samples_per_item}"])
        self.readable = (self.layout,) if self._older is None else (self.layout, older)
        """The layouts of tables whose items can be read, with `converted` where they are older."""

    def converted(self, item: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        """The item `[item_bytes]` of one that was written before rows were packed; None if it is none."""
        if self._older is None or len(item) != self.samples_per_item * self._older.itemsize:
            return None
        records = np.ascontiguousarray(item).view(self._older)
        rows: NDArray[np.uint8] = self.packing.pack(self._kind(**{field: records[field] for field in self.fields}))
        return rows.reshape(-1)

    def check(self, samples: Stored) -> int:
        """Raises `SignatureError` for samples (`[T, ...]` on every field) that do not match; returns T."""
        # Reverb compares only dtypes and shapes; it accepts NaN and wrong names.
        length = self._check_shapes(samples)
        if length % self.samples_per_item:
            raise SignatureError(
                f"samples: found {length}; expected a multiple of {self.samples_per_item} (replay.samples_per_item)"
            )
        self._check_numbers(samples)
        return length

    def pack(self, samples: Stored) -> NDArray[np.uint8]:
        """Packs checked samples (`[T, ...]`) into items, `[T / samples_per_item, item_bytes]` uint8, in order."""
        rows: NDArray[np.uint8] = self.packing.pack(samples)
        return rows.reshape(-1, self.item_bytes)

    def valid(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which of T rows hold a valid sample, `[T]`; raises `SignatureError` if they are no rows of this table."""
        if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != self.row_bytes:
            raise SignatureError(
                f"rows: found {rows.dtype} of shape {list(rows.shape)}; expected uint8 of shape [T, {self.row_bytes}]"
            )
        return self.packing.decodes(np.ascontiguousarray(rows))

    def _check_shapes(self, samples: Stored) -> int:
        expected = tuple(self.fields)
        given = (name for name in getattr(samples, "_fields", ()) if getattr(samples, name) is not None)
        # Actors that store states for reanalysis know them, whether rows hold them or not.
        names = tuple(name for name in given if name in expected or name != "state")
        if names != expected:
            found = ", ".join(names) if names else type(samples).__name__
            raise SignatureError(f"samples: found {found}; expected {self._kind.__name__} with {', '.join(expected)}")
        length = np.shape(samples.version)[0] if np.ndim(samples.version) else 0
        for field, expects in self.fields.items():
            value = getattr(samples, field)
            dtype, shape = getattr(value, "dtype", type(value).__name__), np.shape(value)
            if dtype != expects.base or shape != (length, *expects.shape):
                want = ", ".join(map(str, ("T", *expects.shape)))
                raise SignatureError(
                    f"{field}: found {dtype} of shape {list(shape)}; expected {expects.base} of shape [{want}]"
                    f" (T = {length}, as in `version`)"
                )
        return length

    def _check_numbers(self, samples: Stored) -> None:
        for field, dtype in self.fields.items():
            value = np.asarray(getattr(samples, field))
            if dtype.base.kind == "f":
                _require_none(field, ~np.isfinite(value), value, "finite numbers", "number")
            if field in self.packing.bounds:
                low, high = self.packing.bounds[field]
                expected = "no negative probability" if np.isinf(high) else f"values in [{low}, {high}]"
                _require_none(field, ~self.packing.within(field, value), value, expected, "number")
        if isinstance(samples, Window):
            _check_window(samples)
        if isinstance(samples, Sample):
            _check_position(samples)


def _check_position(samples: Sample) -> None:
    legal, policy = np.asarray(samples.legal), np.asarray(samples.policy_target)
    _require_none("legal", ~legal.any(axis=-1), legal.sum(axis=-1), "at least one legal action in each sample")
    _require_none("policy_target", (policy > _SUM_TOLERANCE) & ~legal, policy, "zero on illegal actions")
    total = np.where(legal, policy, 0).sum(axis=-1)
    _require_none("policy_target", abs(total - 1) > _SUM_TOLERANCE, total, "a sum of 1 over the legal actions")


def _check_window(windows: Window) -> None:
    policy = np.asarray(windows.policy)
    exists = np.arange(policy.shape[1]) < np.asarray(windows.length)[:, None]
    total = policy.sum(axis=-1)
    _require_none("policy", exists & (abs(total - 1) > _SUM_TOLERANCE), total, "a sum of 1 at positions before the end")


def _require_none(name: str, wrong: NDArray[Any], value: NDArray[Any], expected: str, reason: str = "illegal") -> None:
    """Raises an error about the first wrong entry."""
    if wrong.any():
        where = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        place = ", ".join(map(str, where))
        raise SignatureError(
            f"{name}[{place}]: found {value[where]!s}; expected {expected} ({int(wrong.sum())} entries are wrong)",
            reason,
        )
