"""A model of an environment with vectors as observations, in Flax."""

import flax.linen as nn
import jax
import jax.numpy as jnp

ZEROS = nn.initializers.zeros


class OwnModel(nn.Module):
    """Latent states are vectors; actions arrive one-hot, or as they are if continuous."""

    num_actions: int
    bins: int
    width: int = 128

    def setup(self) -> None:
        """Makes the layers."""
        self.encoder = nn.Sequential([nn.Dense(self.width), nn.LayerNorm(), nn.relu, nn.Dense(64)])
        self.model = nn.Sequential([nn.Dense(self.width), nn.LayerNorm(), nn.relu])
        self.trunk = nn.Sequential([nn.Dense(self.width), nn.LayerNorm(), nn.relu])
        self.change, self.policy = nn.Dense(64), nn.Dense(self.num_actions, kernel_init=ZEROS)
        self.reward, self.value = nn.Dense(self.bins, kernel_init=ZEROS), nn.Dense(self.bins, kernel_init=ZEROS)

    def represent(self, observation: jax.Array) -> jax.Array:
        """Maps observations `[B, ...]` to latent states, which podzero rescales to [0, 1]."""
        latent: jax.Array = self.encoder(observation)
        return latent

    def predict(self, latent: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps latent states to policy logits `[B, A]` and value logits `[B, bins]`."""
        x = self.trunk(latent)
        return self.policy(x), self.value(x)

    def dynamics(self, latent: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps latent states and actions to the next latent states and reward logits `[B, bins]`."""
        x = self.model(jnp.concatenate([latent, action], axis=-1))
        return latent + self.change(x), self.reward(x)
