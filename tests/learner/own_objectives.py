"""Losses of a user's own: two that work, and one for each fault."""

import jax.numpy as jnp
import numpy as np


def soft(objective, temperature=2.0):
    """The loss with a flatter policy target."""

    def loss(params, batch):
        target = batch.samples.policy_target ** (1 / temperature)
        target /= target.sum(axis=-1, keepdims=True)
        return objective.loss(params, batch._replace(samples=batch.samples._replace(policy_target=target)))

    return loss


def faulty(change):
    """A kind of loss whose output is changed by a function."""
    return lambda objective: lambda params, batch: change(objective.loss(params, batch))


doubled = faulty(lambda output: output._replace(total=2 * output.total, metrics=output.metrics | {"extra": 3.0}))
nan = faulty(lambda output: output._replace(total=output.total * jnp.nan))
steep = faulty(lambda output: output._replace(total=jnp.sqrt(output.total - output.total)))
constant = faulty(lambda output: output._replace(total=np.float32(1)))
per_sample = faulty(lambda output: output._replace(total=output.errors))
mean_error = faulty(lambda output: output._replace(errors=output.errors.mean()))
listed = faulty(lambda output: output._replace(metrics=output.metrics | {"each": output.errors}))
alone = faulty(lambda output: output.total)
failing = faulty(lambda output: output.nothing)


def nothing(network):
    return None
