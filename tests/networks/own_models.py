"""Networks that learn a model, of each kind, for the tests of networks named by an import path."""

import flax.linen as nn
import haiku as hk
import jax.numpy as jnp
from flax import nnx


def joined(latent, action):
    return jnp.concatenate([latent, action], axis=-1)


class Linen(nn.Module):
    num_actions: int
    bins: int
    width: int = 8

    def setup(self):
        self.encoder, self.change = nn.Dense(self.width), nn.Dense(self.width)
        self.policy, self.value, self.reward = nn.Dense(self.num_actions), nn.Dense(self.bins), nn.Dense(self.bins)

    def represent(self, observation):
        return self.encoder(observation.reshape(observation.shape[0], -1))

    def predict(self, latent):
        return self.policy(latent), self.value(latent)

    def dynamics(self, latent, action):
        both = joined(latent, action)
        return latent + self.change(both), self.reward(both)


class Methods:
    """What modules with layers of these names share; Linen calls `setup` only for methods of its own."""

    def represent(self, observation):
        return self.encoder(observation)

    def predict(self, latent):
        return self.policy(latent), self.value(latent)

    def dynamics(self, latent, action):
        both = joined(latent, action)
        return latent + self.change(both), self.reward(both)


class Nnx(Methods, nnx.Module):
    def __init__(self, num_actions, observation_shape, bins, rngs, width=8):
        self.encoder = nnx.Linear(observation_shape[0], width, rngs=rngs)
        self.change = nnx.Linear(width + num_actions, width, rngs=rngs)
        self.policy, self.value = nnx.Linear(width, num_actions, rngs=rngs), nnx.Linear(width, bins, rngs=rngs)
        self.reward = nnx.Linear(width + num_actions, bins, rngs=rngs)


class Haiku(Methods, hk.Module):
    def __init__(self, num_actions, bins, width=8):
        super().__init__()
        self.encoder, self.change = hk.Linear(width, name="encoder"), hk.Linear(width, name="change")
        self.policy, self.value = hk.Linear(num_actions, name="policy"), hk.Linear(bins, name="value")
        self.reward = hk.Linear(bins, name="reward")


class Gaussian(Linen):
    """For continuous actions: means and log standard deviations far outside of their bounds."""

    action_shape: tuple = ()

    def predict(self, latent):
        policy = 100.0 * jnp.ones((latent.shape[0], 2, *self.action_shape))
        return policy, self.value(latent)


class OneOutput(Linen):
    def predict(self, latent):
        return self.policy(latent)


class FewBins(Linen):
    def dynamics(self, latent, action):
        return latent, self.reward(joined(latent, action))[:, :-1]


class OtherLatent(Linen):
    def dynamics(self, latent, action):
        return joined(latent, action), self.reward(joined(latent, action))


class Sowing(Linen):
    def predict(self, latent):
        self.sow("metrics", "latent", latent)
        return super().predict(latent)


class WholeBatch(Linen):
    def represent(self, observation):
        return super().represent(observation - observation.mean(axis=0))


class Without(nn.Module):
    num_actions: int

    @nn.compact
    def __call__(self, observation):
        return nn.Dense(self.num_actions)(observation), jnp.zeros(observation.shape[0])
