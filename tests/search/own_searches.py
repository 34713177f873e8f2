"""Searches of a user's own: one that works, and one for each fault."""

import jax.numpy as jnp

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
    """A kind of search whose result is changed by a function of it and of the legal actions."""

    def make(model, config):
        search = softer(model, config)
        return lambda params, key, roots, exploration: change(
            search(params, key, roots, exploration), jnp.asarray(model.legal(roots))
        )

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
