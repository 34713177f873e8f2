"""Optimizers of a user's own: two that work, and one for each fault."""

import jax
import jax.numpy as jnp
import optax


def descent(learning_rate, momentum=0.0):
    """Gradient descent with momentum."""
    return optax.sgd(learning_rate, momentum)


fixed = optax.scale(-1.0)


def ascent():
    return optax.scale_by_adam()


def changed(change, init=lambda params: ()):
    """A kind of optimizer whose updates and state are changed by a function."""

    def make():
        return optax.GradientTransformation(init, lambda updates, state, params=None: change(updates, state))

    return make


nan = changed(lambda updates, state: (jax.tree.map(lambda leaf: leaf / 0.0 * 0.0, updates), state))
half = changed(lambda updates, state: (jax.tree.map(lambda leaf: -leaf.astype(jnp.bfloat16), updates), state))
partial = changed(lambda updates, state: ({"hidden": updates["hidden"]}, state))
growing = changed(lambda updates, state: (updates, jnp.append(state, 0.0)), init=lambda params: jnp.zeros(1))
failing = changed(lambda updates, state: updates["nothing"])


def number():
    return 3
