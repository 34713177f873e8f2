"""A learned model as what a search expands: MuZero, and for continuous actions Sampled MuZero."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mctx
from jax.scipy.stats import norm

from podzero.config import SearchConfig
from podzero.search.algorithms import make_search
from podzero.search.models import Model
from podzero.types import Array, EnvSpec, ModelNetwork, Params

BROAD_SHARE = 0.25
"""Share of the root's candidates that are drawn more broadly than the policy says, where the search explores."""
BROAD_FACTOR = 2.0
"""How many times the policy's standard deviation they are drawn with."""
LEAST_RANGE = 0.01
"""A tree whose values differ by less is taken to have this range, so that rounding is not stretched to certainty."""


class ModelSearchResult(NamedTuple):
    """What a search over a learned model says of B observations. P is A, or C candidates."""

    action: Array
    """`[B]` int32, or `[B, D]` float32 in [-1, 1]: the action to take."""
    choice: Array
    """`[B]` int32, which of the P it is."""
    policy: Array
    """`[B, P]` float32, the improved policy: the training target."""
    value: Array
    """`[B]` float32, the root value after search."""
    candidates: Array
    """`[B, P, D]` float32, the continuous actions that were chosen among, before squashing by tanh; else `[B, 0]`."""


ModelSearch = Callable[[Params, Array, Array, Array], ModelSearchResult]
"""`(params, key, observation [B, *observation_shape], temperature [B])`; the temperature as for `Search`."""


class Node(NamedTuple):
    """B nodes of the tree, as their children need them."""

    latent: jax.Array
    """`[B, ...]` float32."""
    candidates: Array
    """`[B, C, D]` float32, before squashing; `[B, 0]` where actions are counted."""


class Roots(NamedTuple):
    """B judged roots."""

    node: Node
    logits: Array
    """`[B, P]` float32, the prior."""
    value: Array
    """`[B]` float32."""


class Choices(NamedTuple):
    """What the nodes of a tree choose among."""

    propose: Callable[[Array, jax.Array, Array | None], tuple[jax.Array, jax.Array]]
    """`(key, policy of the network, explores [B] bool or None)` to prior logits `[B, P]` and candidates."""
    action: Callable[[Array, Array], Array]
    """`(index [B], candidates)` to the actions, as the network's dynamics takes them."""


def make_model_search(config: SearchConfig, network: ModelNetwork, spec: EnvSpec, discount: float) -> ModelSearch:
    """Builds a search over `network`; the result is traceable and holds no state.

    All actions are legal, in the tree as in the environment. With continuous actions each node chooses among
    `config.candidates` drawn from its own policy (Hubert et al. 2021, https://arxiv.org/abs/2104.06303).

    Args:
      config: algorithm, simulations and candidates.
      network: the learned model.
      spec: of the environment that it models.
      discount: what a reward one step later is worth.
    """
    choices = sampled(config.candidates) if spec.action_shape else COUNTED
    search = make_search(config, _model(network, choices, discount))

    def run(params: Params, key: Array, observation: Array, temperature: Array) -> ModelSearchResult:
        propose_key, search_key = jax.random.split(key)
        latent = network.represent(params, observation)
        policy, value = network.predict(params, latent)
        logits, candidates = choices.propose(propose_key, policy, temperature > 0)
        roots = Roots(Node(latent, candidates), logits, network.decode(value))
        result = search(params, search_key, roots, temperature)
        action = choices.action(result.action, candidates)
        return ModelSearchResult(action, result.action, result.policy, result.value, candidates)

    return run


def _model(network: ModelNetwork, choices: Choices, discount: float) -> Model:
    """The learned model in mctx's terms; its roots are `Roots`.

    Values have no known bounds, so PUCT sees those of each node's children stretched to [0, 1], as mctx does it; in the
    paper (Schrittwieser et al. 2020, appendix B) the range is that of the whole tree.
    """

    def root(params: Params, key: Array, roots: Roots) -> mctx.RootFnOutput:
        del params, key
        return mctx.RootFnOutput(prior_logits=roots.logits, value=roots.value, embedding=roots.node)

    def recurrent(params: Params, key: Array, index: Array, node: Node) -> tuple[mctx.RecurrentFnOutput, Node]:
        latent, reward = network.dynamics(params, node.latent, choices.action(index, node.candidates))
        policy, value = network.predict(params, latent)
        logits, candidates = choices.propose(key, policy, None)
        output = mctx.RecurrentFnOutput(
            reward=network.decode(reward),
            discount=jnp.full(index.shape, discount, jnp.float32),
            prior_logits=logits,
            value=network.decode(value),
        )
        return output, Node(latent, candidates)

    def legal(roots: Roots) -> jax.Array:
        return jnp.ones(roots.logits.shape, bool)

    return Model(root, recurrent, legal, completed_by_range, mctx.qtransform_by_parent_and_siblings)


def completed_by_range(tree: mctx.Tree, node_index: Array) -> jax.Array:
    """A node's completed Q-values, over the range of all nodes' values in its tree (Danihelka et al. 2022, section 5),
    the highest at zero.

    mctx's own default stretches the values of each node to [0, 1]: of two actions one is then always the best and the
    other the worst, however little lies between them, and the policy learns noise. Over the whole tree's range small
    differences stay small.
    """
    visited = tree.node_visits > 0
    lowest = jnp.min(jnp.where(visited, tree.node_values, jnp.inf))
    highest = jnp.max(jnp.where(visited, tree.node_values, -jnp.inf))
    completed: jax.Array = mctx.qtransform_completed_by_mix_value(tree, node_index, rescale_values=False)
    # Only differences count, and beside large numbers float32 would round away the noise that is added to them.
    return (completed - jnp.max(completed)) / jnp.maximum(highest - lowest, LEAST_RANGE)


def _all_actions(key: Array, policy: jax.Array, explores: Array | None) -> tuple[jax.Array, jax.Array]:
    del key, explores
    return policy, jnp.zeros((policy.shape[0], 0))


COUNTED = Choices(_all_actions, action=lambda index, candidates: index)
"""Every node offers all actions; the network's logits are the prior."""


def sampled(count: int) -> Choices:
    """Every node offers `count` actions, drawn from its own Gaussian policy.

    Their prior is uniform: that more of them lie where the policy is dense says it all. Where a root explores, the last
    `BROAD_SHARE` of its candidates is drawn with `BROAD_FACTOR` times the standard deviation, and the prior of each
    candidate becomes policy over proposal density, so that looking further does not shift what the policy is taught.
    """
    broad = math.ceil(BROAD_SHARE * count) if count > 1 else 0
    share = broad / count

    def propose(key: Array, policy: jax.Array, explores: Array | None) -> tuple[jax.Array, jax.Array]:
        mean, std = policy[:, None, 0], jnp.exp(policy[:, None, 1])
        noise = jax.random.normal(key, (policy.shape[0], count, policy.shape[-1]))
        if explores is None:
            return jnp.zeros(noise.shape[:2]), mean + std * noise
        broadened = explores[:, None] & (jnp.arange(count) >= count - broad)
        noise = jnp.where(broadened[..., None], BROAD_FACTOR * noise, noise)
        narrow = jnp.sum(norm.logpdf(noise), axis=-1)
        wide = jnp.sum(norm.logpdf(noise, scale=BROAD_FACTOR), axis=-1)
        proposal = jnp.logaddexp(narrow + math.log1p(-share), wide + math.log(share)) if broad else narrow
        return jnp.where(jnp.asarray(explores)[:, None], narrow - proposal, 0.0), mean + std * noise

    def action(index: Array, candidates: Array) -> jax.Array:
        return jnp.tanh(jnp.take_along_axis(candidates, index[:, None, None], axis=1)[:, 0])

    return Choices(propose, action)
