"""The search algorithms of mctx behind one signature."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mctx
import numpy as np

from podzero.config import SearchConfig
from podzero.protocols import Search
from podzero.search.models import Model
from podzero.types import Array, EnvState, Params, SearchResult


def make_search(config: SearchConfig, model: Model) -> Search:
    """Builds a search over `model`: a stateless function that JAX can trace."""
    match config.algorithm:
        case "gumbel":
            return _gumbel(config, model)
        case "puct":
            return _puct(config, model)


def _gumbel(config: SearchConfig, model: Model) -> Search:
    """Gumbel AlphaZero (Danihelka et al. 2022): sequential halving at the root; completed Q-values give the policy
    target.

    `temperature` scales the Gumbel noise: 1 samples actions from the improved policy, 0 selects the best action.
    """

    def search(params: Params, key: Array, roots: EnvState, temperature: Array) -> SearchResult:
        root_key, search_key = jax.random.split(key)
        output = mctx.gumbel_muzero_policy(
            params,
            search_key,
            model.root(params, root_key, roots),
            model.recurrent,
            num_simulations=config.simulations,
            invalid_actions=~model.legal(roots),
            max_num_considered_actions=config.max_considered_actions,
            gumbel_scale=temperature[:, None],
            qtransform=model.completed,
        )
        return _result(output, output.action_weights, output.action)

    return search


def _puct(config: SearchConfig, model: Model) -> Search:
    """AlphaZero's search (Silver et al. 2018): PUCT with Dirichlet noise at the root; visit counts give the policy
    target.

    Actions are sampled in proportion to `visits ** (1 / temperature)`. Where the temperature is 0 the root gets no
    noise, and the most visited action is selected.
    """

    def search(params: Params, key: Array, roots: EnvState, temperature: Array) -> SearchResult:
        root_key, search_key = jax.random.split(key)
        legal = model.legal(roots)
        output = mctx.muzero_policy(
            params,
            search_key,
            _masked(model.root(params, root_key, roots), legal),
            model.recurrent,
            num_simulations=config.simulations,
            invalid_actions=~legal,
            dirichlet_fraction=config.dirichlet_fraction * jnp.where(temperature > 0, 1.0, 0.0)[:, None],
            dirichlet_alpha=config.dirichlet_alpha,
            pb_c_init=config.pb_c_init,
            pb_c_base=config.pb_c_base,
            temperature=jnp.maximum(temperature, 1e-6)[:, None],
            qtransform=model.qtransform,
        )
        best = jnp.argmax(output.action_weights, axis=-1)
        action = jnp.where(temperature > 0, output.action, best)
        return _result(output, output.action_weights, action)

    return search


def _masked(root: mctx.RootFnOutput, legal: Array) -> mctx.RootFnOutput:
    """Removes illegal actions from the prior before mctx mixes in the noise: otherwise they would absorb part of it."""
    masked = jnp.where(legal, root.prior_logits, np.finfo(np.float32).min)
    return mctx.RootFnOutput(prior_logits=masked, value=root.value, embedding=root.embedding)


def _result(output: mctx.PolicyOutput, policy: Array, action: Array) -> SearchResult:
    summary = output.search_tree.summary()
    return SearchResult(
        action=action.astype(jnp.int32),
        policy=policy.astype(jnp.float32),
        value=summary.value.astype(jnp.float32),
        visits=summary.visit_counts.astype(jnp.int32),
    )
