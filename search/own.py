"""Searches of one's own, named by an import path; docs/own_parts.md describes them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from podzero.config import OwnAlgorithmConfig, SearchConfig
from podzero.errors import ConfigError
from podzero.own_code import own_code
from podzero.protocols import BatchedSearch
from podzero.search.models import Model
from podzero.types import Array, EnvState, Exploration, Params, SearchResult


def own_search(algorithm: OwnAlgorithmConfig, config: SearchConfig, model: Model) -> BatchedSearch:
    """The search that `algorithm.name` names.

    Raises:
      ConfigError: it cannot be imported, its file is not that of the experiment, it does not take the experiment's
        arguments, or it does not return a function. The search raises it if the user's code fails while it is traced,
        or returns something of another form than `SearchResult`.
    """
    code = own_code(algorithm, "search.algorithm", offered=("model", "config"))
    made = code.make_function(
        {"model": model, "config": config},
        expected="search(params, key, roots, exploration), see podzero.protocols.BatchedSearch",
    )

    def search(params: Params, key: Array, roots: EnvState, exploration: Exploration) -> SearchResult:
        with code.running("its search"):
            result = made(params, key, roots, exploration)
        return _of_form(result, jax.eval_shape(model.legal, roots).shape, code.where)

    return search


def _of_form(result: object, of_actions: tuple[int, ...], where: str) -> SearchResult:
    """The result with the dtypes of a `SearchResult`; `of_actions` is `[B, A]`.

    Raises:
      ConfigError: it is none, or a field has another shape.
    """
    if not isinstance(result, SearchResult):
        raise ConfigError(f"{where}: it returned a {type(result).__name__}; expected a podzero.types.SearchResult")
    of_rows = of_actions[:1]
    forms = {
        "action": (of_rows, jnp.int32),
        "policy": (of_actions, jnp.float32),
        "value": (of_rows, jnp.float32),
        "visits": (of_actions, jnp.int32),
        "qvalues": (of_actions, jnp.float32),
    }
    fields: dict[str, Any] = {}
    for name, (shape, dtype) in forms.items():
        field = getattr(result, name)
        if field is None or jnp.shape(field) != shape:
            found = "missing" if field is None else f"of shape {list(jnp.shape(field))}"
            raise ConfigError(f"{where}: {name} of its SearchResult is {found}; expected {list(shape)}")
        fields[name] = jnp.asarray(field, dtype)
    return result._replace(**fields)
