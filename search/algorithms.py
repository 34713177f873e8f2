"""The search algorithms of mctx behind one signature."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax

from podzero.config import SearchConfig
from podzero.protocols import Search
from podzero.search.models import Model
from podzero.search.qvalues import gumbel_transform, puct_transform, root_value
from podzero.types import Array, EnvState, Exploration, Params, SearchResult


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

    `noise` scales the Gumbel noise at the root, and `temperature` the part of it that enters the choice among the most
    visited actions: at 1 the choice is a sample of the improved policy, at 0 the best action.
    """
    transform = gumbel_transform(config, model.bounds)

    def search(params: Params, key: Array, roots: EnvState, exploration: Exploration) -> SearchResult:
        root_key, search_key = jax.random.split(key)
        output = mctx.gumbel_muzero_policy(
            params,
            search_key,
            model.root(params, root_key, roots),
            model.recurrent,
            num_simulations=config.simulations,
            invalid_actions=~model.legal(roots),
            max_num_considered_actions=config.max_considered_actions,
            gumbel_scale=exploration.noise[:, None],
            qtransform=transform,
        )
        tree, root = output.search_tree, mctx.Tree.ROOT_INDEX
        visits = tree.children_visits[:, root]
        logits = tree.children_prior_logits[:, root]
        scores = logits + jax.vmap(transform, in_axes=(0, None))(tree, root)
        scores += exploration.temperature[:, None] * tree.extra_data.root_gumbel
        finalist = visits == jnp.max(visits, axis=1, keepdims=True)
        return _result(config, output, logits, jnp.argmax(jnp.where(finalist, scores, -jnp.inf), axis=1))

    return search


def _puct(config: SearchConfig, model: Model) -> Search:
    """AlphaZero's search (Silver et al. 2018): PUCT with Dirichlet noise at the root; visit counts give the policy
    target.

    `noise` scales the weight of the Dirichlet noise. Actions are sampled in proportion to `visits ** (1 /
    temperature)`; at temperature 0 the most visited action is selected.
    """
    transform = puct_transform(model.bounds)

    def search(params: Params, key: Array, roots: EnvState, exploration: Exploration) -> SearchResult:
        root_key, noise_key, search_key = jax.random.split(key, 3)
        legal = model.legal(roots)
        root = model.root(params, root_key, roots)
        weight = config.dirichlet_fraction * exploration.noise
        output = mctx.muzero_policy(
            params,
            search_key,
            root.replace(prior_logits=with_noise(noise_key, root.prior_logits, legal, config, weight)),
            model.recurrent,
            num_simulations=config.simulations,
            invalid_actions=~legal,
            dirichlet_fraction=0.0,  # the prior has its noise already
            pb_c_init=config.pb_c_init,
            pb_c_base=config.pb_c_base,
            temperature=jnp.maximum(exploration.temperature, 1e-6)[:, None],
            qtransform=transform,
        )
        best = jnp.argmax(output.action_weights, axis=-1)
        logits = jnp.where(legal, root.prior_logits, -jnp.inf)
        return _result(config, output, logits, jnp.where(exploration.temperature > 0, output.action, best))

    return search


def with_noise(key: Array, logits: Array, legal: Array, config: SearchConfig, weight: Array) -> jax.Array:
    """The logits of priors that are mixed with Dirichlet noise over the legal actions.

    mctx draws the noise over all actions and masks it afterwards, so that where few of many actions are legal most of
    the noise is lost. Here all of it falls on legal actions. The concentration of each is `dirichlet_concentration`
    over their number, as in KataGo (Wu 2020, https://arxiv.org/abs/1902.10565): AlphaZero's 0.3, 0.15 and 0.03 for
    chess, shogi and go are about 10 over the typical number of legal moves.

    Args:
      key: PRNG key.
      logits: `[B, A]`.
      legal: `[B, A]` bool.
      config: `dirichlet_concentration`.
      weight: `[B]` of the noise, in [0, 1].
    """
    each = config.dirichlet_concentration / jnp.sum(legal, axis=1, keepdims=True)
    drawn = jax.random.loggamma(key, jnp.broadcast_to(each, logits.shape))
    noise = jax.nn.softmax(jnp.where(legal, drawn, -jnp.inf))
    prior = jax.nn.softmax(jnp.where(legal, logits, -jnp.inf))
    mixed = (1.0 - weight[:, None]) * prior + weight[:, None] * noise
    return jnp.log(jnp.maximum(mixed, np.finfo(np.float32).tiny))


def _result(config: SearchConfig, output: mctx.PolicyOutput, logits: Array, action: Array) -> SearchResult:
    """The result of a search; `logits` `[B, A]` are the network's, masked where actions are illegal."""
    tree, policy = output.search_tree, output.action_weights
    return SearchResult(
        action=action.astype(jnp.int32),
        policy=policy.astype(jnp.float32),
        value=root_value(config, tree, policy, action).astype(jnp.float32),
        visits=tree.summary().visit_counts.astype(jnp.int32),
        surprise=optax.losses.kl_divergence(jax.nn.log_softmax(logits), policy, where=policy > 0).astype(jnp.float32),
    )
