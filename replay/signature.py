"""The signature of a table's samples: names, shapes and dtypes of their fields, checks, and packing into rows.

A sample is one row of bytes instead of one tensor per field: every tensor costs Reverb a chunk, a compression and a
copy, and one row is written and read two to four times as fast as the five fields of connect four. The remaining cost
is per item and exceeds that of a small sample's bytes, so `replay.samples_per_item` rows make one item.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from podzero.core.types import Sample, StoredState, Window
from podzero.replay.errors import SignatureError

Stored = Sample | Window | StoredState
"""The kinds of samples that a table may hold."""

_SUM_TOLERANCE = 1e-3
"""Largest difference from one of the sum of a float32 policy."""
_BOUND_TOLERANCE = 1e-5
"""Largest distance by which rounding may move a value target out of [-1, 1]."""


class SampleSignature:
    """The fields of a table's samples, and the number of samples in an item."""

    def __init__(self, name: str, like: Stored, samples_per_item: int) -> None:
        """Takes the environment's name and a sample of shapes and dtypes, as built by `podzero.config.samples`."""
        self._kind = type(like)
        leaves = {field: leaf for field, leaf in like._asdict().items() if leaf is not None}
        self.fields = {field: np.dtype((leaf.dtype, tuple(leaf.shape))) for field, leaf in leaves.items()}
        """The dtype of each field with its shape, in the order of `Sample`, `Window` or `StoredState`."""
        self.samples_per_item = samples_per_item
        texts = [f"{field}:{one.base.name}[{','.join(map(str, one.shape))}]" for field, one in self.fields.items()]
        self.layout = " ".join([name, *texts, f"samples_per_item:{samples_per_item}"])
        """The signature as one line of text; tables with equal layouts hold interchangeable items."""
        # A structured dtype without padding: viewed as bytes, one record is one row.
        self._record = np.dtype(list(self.fields.items()))
        self.row_bytes = self._record.itemsize
        self.item_bytes = samples_per_item * self.row_bytes

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
        records = np.empty(len(samples.version), self._record)
        for field in self.fields:
            records[field] = getattr(samples, field)
        return records.view(np.uint8).reshape(-1, self.item_bytes)

    def unpack(self, rows: NDArray[np.uint8], leading: tuple[int, ...]) -> Any:
        """Unpacks rows `[N, row_bytes]`; every field gets the leading axes `leading`, whose product is N."""
        records = np.ascontiguousarray(rows).view(self._record)
        return self._kind(
            **{
                field: np.ascontiguousarray(records[field]).reshape(leading + dtype.shape)
                for field, dtype in self.fields.items()
            }
        )

    def _check_shapes(self, samples: Stored) -> int:
        names = tuple(name for name in getattr(samples, "_fields", ()) if getattr(samples, name) is not None)
        expected = tuple(self.fields)
        if names != expected:
            found = ", ".join(names) if names else type(samples).__name__
            raise SignatureError(
                f"samples: found {found}; expected a {self._kind.__name__} with the fields {', '.join(expected)}"
            )
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
            if dtype.base.kind == "f":
                value = np.asarray(getattr(samples, field))
                _require_none(field, ~np.isfinite(value), value, "finite numbers")
        if isinstance(samples, Window):
            _check_window(samples)
        if isinstance(samples, Sample):
            _check_position(samples)


def _check_position(samples: Sample) -> None:
    legal, policy = np.asarray(samples.legal), np.asarray(samples.policy_target)
    _require_none("legal", ~legal.any(axis=-1), legal.sum(axis=-1), "at least one legal action in each sample")
    _require_none("policy_target", policy < 0, policy, "no negative probability")
    _require_none("policy_target", (policy > _SUM_TOLERANCE) & ~legal, policy, "zero on illegal actions")
    total = np.where(legal, policy, 0).sum(axis=-1)
    _require_none("policy_target", abs(total - 1) > _SUM_TOLERANCE, total, "a sum of 1 over the legal actions")
    value = np.asarray(samples.value_target)
    _require_none("value_target", abs(value) > 1 + _BOUND_TOLERANCE, value, "values in [-1, 1]")


def _check_window(windows: Window) -> None:
    length = np.asarray(windows.length)
    steps = np.shape(windows.reward)[1]
    _require_none("length", (length < 1) | (length > steps), length, f"steps between 1 and {steps}")
    policy = np.asarray(windows.policy)
    exists = np.arange(policy.shape[1]) < length[:, None]
    _require_none("policy", policy < 0, policy, "no negative probability")
    total = policy.sum(axis=-1)
    _require_none(
        "policy", exists & (abs(total - 1) > _SUM_TOLERANCE), total, "a sum of 1 at each position before the end"
    )


def _require_none(name: str, wrong: NDArray[np.bool_], value: NDArray[Any], expected: str) -> None:
    """Raises an error about the first wrong entry."""
    if wrong.any():
        where = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        place = ", ".join(map(str, where))
        raise SignatureError(
            f"{name}[{place}]: found {value[where]!s}; expected {expected} ({int(wrong.sum())} entries are wrong)"
        )
