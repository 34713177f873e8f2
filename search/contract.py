"""The contract that a search of one's own fulfils, checked on a few roots before a run starts.

A search that violates it is refused by a `ConfigError` with a line for each fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from podzero.core.errors import ConfigError
from podzero.core.protocols import BatchedSearch
from podzero.core.types import Exploration, Params, SearchResult
from podzero.search.learned import ModelSearch, ModelSearchResult
from podzero.search.selection import Bounds

_Bools = np.ndarray[Any, Any]
_Result = SearchResult | ModelSearchResult
_ROUNDING = 1e-4


def check_search(
    search: BatchedSearch | ModelSearch, params: Params, roots: Any, legal: _Bools, bounds: Bounds, name: str
) -> None:
    """Checks that policies are distributions over legal actions, that actions are legal, and that values are possible.

    `roots` are B states or observations, none of which is over, with the legal actions `[B, P]` bool. Messages call the
    search `name`.
    """
    rows = len(legal)
    run, faults = jax.jit(search), []
    for what, strength in (("without noise", 0.0), ("with noise", 1.0)):
        exploration = Exploration(*(np.full(rows, strength, np.float32) for _ in range(2)))
        one, two = (jax.device_get(run(params, jax.random.key(0), roots, exploration)) for _ in range(2))
        faults += [f"{fault} ({what})" for fault in _faults(one, two, legal, bounds)]
    if faults:
        raise ConfigError("\n  ".join([f"{name} violates the contract of searches (docs/own_parts.md):", *faults]))


def _faults(result: _Result, again: _Result, legal: _Bools, bounds: Bounds) -> Iterator[str]:
    policy, value, action = (np.asarray(field) for field in (result.policy, result.value, result.action))
    low, high = bounds or (-np.inf, np.inf)
    if not np.isfinite(policy).all():
        yield "policy is not finite (NaN or infinity)"
    elif (policy < 0).any() or np.abs(policy.sum(axis=1) - 1).max() > _ROUNDING:
        sums = ", ".join(f"{total:.4g}" for total in policy.sum(axis=1))
        yield f"policy is no distribution: its rows sum to {sums}, and its least entry is {policy.min():.3g}"
    elif (policy[~legal] > 0).any():
        yield f"policy gives illegal actions up to {policy[~legal].max():.3g}; mask them by model.legal(roots)"
    if not np.isfinite(value).all():
        yield "value is not finite (NaN or infinity)"
    elif value.min() < low - _ROUNDING or value.max() > high + _ROUNDING:
        yield f"value lies between {value.min():.3g} and {value.max():.3g}; expected [{low:g}, {high:g}]"
    # Continuous actions have no legality.
    if action.dtype.kind == "i":
        inside = (action >= 0) & (action < legal.shape[1])
        illegal = ~(inside & legal[np.arange(len(legal)), np.where(inside, action, 0)])
        if illegal.any():
            yield f"action is illegal in {illegal.sum()} of {len(legal)} roots"
    if not all(np.array_equal(one, two, equal_nan=True) for one, two in zip(result[:3], again[:3], strict=True)):
        yield "two calls with equal arguments differ; draw all random numbers from the key"
