"""Search over a learned model: MuZero, and Sampled MuZero for continuous actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import mctx
from jax.scipy.stats import norm

from podzero.config import SearchConfig
from podzero.core.types import Array, EnvSpec, Exploration, ModelNetwork, Params
from podzero.search.algorithms import make_search
from podzero.search.models import Expanded, Model

BROAD_SHARE = 0.25
"""Share of a root's candidates that are sampled from a broadened policy when the search explores."""
BROAD_FACTOR = 2.0
"""Standard deviation of the broadened policy, as a multiple of the policy's own."""


class ModelSearchResult(NamedTuple):
    """The result of searching B observations. P is the number of actions A, or of candidates C."""

    action: Array
    """`[B]` int32, or `[B, D]` float32 in [-1, 1]: the action to take."""
    policy: Array
    """`[B, P]` float32, the improved policy: the training target."""
    value: Array
    """`[B]` float32, the root value after search."""
    candidates: Array
    """`[B, C, D]` float32, the root's sampled actions before squashing by tanh; `[B, 0]` for discrete actions."""
    visits: Array | None = None
    """`[B, P]` int32, visit counts of the root's actions."""


class ModelSearch(Protocol):
    """A batched tree search over a learned model."""

    def __call__(
        self, params: Params, key: Array, observation: Array, exploration: Exploration, legal: Array | None = None
    ) -> ModelSearchResult:
        """Searches B observations `[B, *observation_shape]`.

        `legal` is the legal actions at the roots, `[B, A]` bool; None if all are. Not used for continuous actions.
        """
        ...


class LatentNode(NamedTuple):
    """What the model needs to expand the children of B nodes."""

    latent: jax.Array
    """`[B, ...]` float32."""
    candidates: Array
    """`[B, C, D]` float32, before squashing; `[B, 0]` for discrete actions."""


class LatentRoots(NamedTuple):
    """B evaluated roots."""

    node: LatentNode
    logits: Array
    """`[B, P]` float32, the prior."""
    value: Array
    """`[B]` float32."""
    legal: Array
    """`[B, P]` bool."""


class ActionSpace(NamedTuple):
    """How nodes get their actions."""

    propose: Callable[[Array, jax.Array, Array | None], tuple[jax.Array, jax.Array]]
    """`(key, policy of the network, explores [B] bool or None)` to prior logits `[B, P]` and candidates; `explores` is
    None below the root."""
    action: Callable[[Array, Array], Array]
    """`(index [B], candidates)` to actions in the form that the network's dynamics takes."""


def make_model_search(config: SearchConfig, network: ModelNetwork, spec: EnvSpec, discount: float) -> ModelSearch:
    """Builds a search of `network`: a stateless function that JAX can trace.

    Illegal actions are masked at the roots alone, because a learned model does not know the rules (Schrittwieser et al.
    2020, https://arxiv.org/abs/1911.08265, appendix A). With continuous actions each node has `config.candidates`
    actions, sampled from its own policy (Hubert et al. 2021, https://arxiv.org/abs/2104.06303). `discount` is per step.
    """
    actions = sampled_actions(config.candidates) if spec.action_shape else DISCRETE_ACTIONS
    search = make_search(config, _model(network, actions, discount))

    def run(
        params: Params, key: Array, observation: Array, exploration: Exploration, legal: Array | None = None
    ) -> ModelSearchResult:
        propose_key, search_key = jax.random.split(key)
        latent = network.represent(params, observation)
        policy, value = network.predict(params, latent)
        logits, candidates = actions.propose(propose_key, policy, exploration.noise > 0)
        allowed = jnp.ones(logits.shape, bool) if legal is None or spec.action_shape else legal
        roots = LatentRoots(LatentNode(latent, candidates), logits, network.decode(value), allowed)
        result = search(params, search_key, roots, exploration)
        action = actions.action(result.action, candidates)
        return ModelSearchResult(action, result.policy, result.value, candidates, result.visits)

    return run


def _model(network: ModelNetwork, actions: ActionSpace, discount: float) -> Model:
    """The learned model as a `Model` with `LatentRoots` as roots."""

    def root(params: Params, key: Array, roots: LatentRoots) -> mctx.RootFnOutput:
        del params, key
        return mctx.RootFnOutput(prior_logits=roots.logits, value=roots.value, embedding=roots.node)

    def recurrent(params: Params, key: Array, index: Array, node: LatentNode) -> Expanded:
        latent, reward = network.dynamics(params, node.latent, actions.action(index, node.candidates))
        policy, value = network.predict(params, latent)
        logits, candidates = actions.propose(key, policy, None)
        output = mctx.RecurrentFnOutput(
            reward=network.decode(reward),
            discount=jnp.full(index.shape, discount, jnp.float32),
            prior_logits=logits,
            value=network.decode(value),
        )
        return output, LatentNode(latent, candidates)

    return Model(root, recurrent, legal=lambda roots: roots.legal, bounds=None, players=1)


DISCRETE_ACTIONS = ActionSpace(
    propose=lambda key, policy, explores: (policy, jnp.zeros((policy.shape[0], 0))),
    action=lambda index, candidates: index,
)
"""Every node has all actions; the network's logits are the prior."""


def sampled_actions(count: int) -> ActionSpace:
    """Every node has `count` candidates, sampled from its own Gaussian policy.

    Their prior is uniform, because their density already follows the policy. If a root explores, the last `BROAD_SHARE`
    of its candidates is sampled with `BROAD_FACTOR` times the standard deviation, and the prior of every candidate is
    its density under the policy divided by its density under the proposal. These importance weights keep the policy
    target unbiased. If it does not, as in evaluation, its first candidate is the policy's mean.
    """
    broad = math.ceil(BROAD_SHARE * count) if count > 1 else 0
    share = broad / count

    def propose(key: Array, policy: jax.Array, explores: Array | None) -> tuple[jax.Array, jax.Array]:
        # policy: [B, 2, D], mean and log standard deviation
        mean, std = policy[:, None, 0], jnp.exp(policy[:, None, 1])
        noise = jax.random.normal(key, (policy.shape[0], count, policy.shape[-1]))
        if explores is None:
            return jnp.zeros(noise.shape[:2]), mean + std * noise
        noise = noise.at[:, 0].multiply(explores[:, None])
        broadened = explores[:, None] & (jnp.arange(count) >= count - broad)
        noise = jnp.where(broadened[..., None], BROAD_FACTOR * noise, noise)
        narrow = jnp.sum(norm.logpdf(noise), axis=-1)
        wide = jnp.sum(norm.logpdf(noise, scale=BROAD_FACTOR), axis=-1)
        proposal = jnp.logaddexp(narrow + math.log1p(-share), wide + math.log(share)) if broad else narrow
        return jnp.where(jnp.asarray(explores)[:, None], narrow - proposal, 0.0), mean + std * noise

    def action(index: Array, candidates: Array) -> jax.Array:
        return jnp.tanh(jnp.take_along_axis(candidates, index[:, None, None], axis=1)[:, 0])

    return ActionSpace(propose, action)
