"""Searches of a user's own: one that works, and one for each fault."""

import jax.numpy as jnp

from podzero.core.types import SearchResult
from podzero.search import make_search


def softer(model, config, temperature=2.0):
    """PUCT whose policy target is flatter than the visits."""
    puct = make_search(config.model_copy(update={"algorithm": "puct"}), model)

    def search(params, key, roots, exploration):
        result = puct(params, key, roots, exploration)
        policy = result.policy ** (1 / temperature)
        return result._replace(policy=policy / policy.sum(axis=1, keepdims=True))

    return search


def faulty(change):
    """A kind of search that expands no node: all legal actions are equally good, and the first one is taken.

    A function of its result and of the legal actions changes the result.
    """

    def make(model, config):
        def search(params, key, roots, exploration):
            legal = jnp.asarray(model.legal(roots))
            action, policy = jnp.argmax(legal, axis=1), legal / jnp.sum(legal, axis=1, keepdims=True)
            value, qvalues = jnp.zeros(len(legal)), jnp.zeros(legal.shape)
            return change(SearchResult(action, policy, value, legal.astype(jnp.int32), qvalues=qvalues), legal)

        return search

    return make


everywhere = faulty(lambda result, legal: result._replace(policy=jnp.full(legal.shape, 1 / legal.shape[1])))
unnormalized = faulty(lambda result, legal: result._replace(policy=2 * result.policy))
nan = faulty(lambda result, legal: result._replace(policy=result.policy * jnp.nan))
infinite = faulty(lambda result, legal: result._replace(value=result.value / 0.0))
large = faulty(lambda result, legal: result._replace(value=result.value + 3.0))
illegal = faulty(lambda result, legal: result._replace(action=jnp.argmin(legal, axis=1)))
outside = faulty(lambda result, legal: result._replace(action=jnp.full(legal.shape[:1], legal.shape[1])))
column = faulty(lambda result, legal: result._replace(value=result.value[:, None]))
without = faulty(lambda result, legal: result._replace(qvalues=None))
several = faulty(lambda result, legal: tuple(result))
failing = faulty(lambda result, legal: result.nothing)


def deaf(model, config):
    """A search that ignores the arguments of a search."""
    return lambda params, key: None


def nothing(model):
    return None
