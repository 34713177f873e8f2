"""Copies of environments that were not written to be copied."""

from __future__ import annotations

import copy
from collections.abc import Collection, Hashable, Iterable
from functools import cache
from typing import Any

import numpy as np

_IMMUTABLE = frozenset({type(None), bool, int, float, str, bytes, type, np.float32, np.float64, np.int64, np.bool_})


def copy_of[T](original: T, shared: Collection[str]) -> T:
    """Copies an object attribute by attribute.

    Unlike `copy.deepcopy` it does not call the object's `__getstate__`: in many environments (those with EzPickle) that
    method drops the state. Attributes are copied as `copy.deepcopy` copies them, only faster where they are plain.

    Args:
      original: an object whose whole state is in its attributes.
      shared: names of attributes that are never changed in place; both objects refer to the same value.

    Raises:
      TypeError: an attribute cannot be copied.
    """
    return _copy_attributes(original, shared, {})


def _copy_attributes[T](original: T, shared: Collection[str], memo: dict[int, Any]) -> T:
    twin = object.__new__(type(original))
    memo[id(original)] = twin
    attributes = vars(twin)
    for name, value in vars(original).items():
        attributes[name] = value if type(value) in _IMMUTABLE or name in shared else _deepcopy(value, memo)
    return twin


def _deepcopy(value: Any, memo: dict[int, Any]) -> Any:
    """`copy.deepcopy(value, memo)`, with faster copies of plain containers and of objects of plain classes."""
    kind: Any = type(value)
    if id(value) not in memo:
        if kind in (list, dict) and all(type(item) in _IMMUTABLE for item in _items(value)):
            memo[id(value)] = value.copy()
        elif _is_plain(kind):
            _copy_attributes(value, (), memo)
    return copy.deepcopy(value, memo)


def _items(container: list[Any] | dict[Any, Any]) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


@cache
def _is_plain(kind: Hashable) -> bool:
    """Whether an object of this class has no state besides its attributes and no copying methods of its own."""
    assert isinstance(kind, type)
    special = ("__new__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__slots__")
    defined_in_python = kind.__flags__ & _HEAP_TYPE != 0
    return defined_in_python and not any(name in vars(base) for base in kind.__mro__[:-1] for name in special)


_HEAP_TYPE = 1 << 9
"""CPython's `Py_TPFLAGS_HEAPTYPE`: set for classes defined by a `class` statement."""
