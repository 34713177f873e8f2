"""Copies of environments that were not made to be copied."""

from __future__ import annotations

import copy
from collections.abc import Collection, Hashable, Iterable
from functools import cache
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_UNCHANGING = frozenset({type(None), bool, int, float, str, bytes, type, np.float32, np.float64, np.int64, np.bool_})


def copy_of(thing: T, shared: Collection[str]) -> T:
    """An independent copy of an object, attribute by attribute.

    Unlike `copy.deepcopy` it does not ask the object's `__getstate__`: many environments have one (EzPickle) that
    leaves their state out. What lies within is copied as `copy.deepcopy` would, by a shorter way where there is one.

    Args:
      thing: an object that keeps all of its state in attributes.
      shared: names of attributes that are never changed in place, which both copies may hold.

    Raises:
      TypeError: something in there cannot be copied.
    """
    return _by_attributes(thing, shared, {})


def _by_attributes(thing: T, shared: Collection[str], memo: dict[int, Any]) -> T:
    twin = object.__new__(type(thing))
    memo[id(thing)] = twin
    attributes = vars(twin)
    for name, value in vars(thing).items():
        attributes[name] = value if type(value) in _UNCHANGING or name in shared else _copied(value, memo)
    return twin


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """`copy.deepcopy(value, memo)`: plain containers and objects of plain classes take most of its time."""
    kind: Any = type(value)
    if id(value) not in memo:
        if kind in (list, dict) and all(type(item) in _UNCHANGING for item in _items(value)):
            memo[id(value)] = value.copy()
        elif _is_plain(kind):
            _by_attributes(value, (), memo)
    return copy.deepcopy(value, memo)


def _items(container: list[Any] | dict[Any, Any]) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


@cache
def _is_plain(kind: Hashable) -> bool:
    """Whether objects of a class are made of their attributes and nothing else."""
    assert isinstance(kind, type)
    special = ("__new__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__slots__")
    made_in_python = kind.__flags__ & _HEAP_TYPE != 0
    return made_in_python and not any(name in vars(base) for base in kind.__mro__[:-1] for name in special)


_HEAP_TYPE = 1 << 9
