"""Gumbel and PUCT search behind one signature, on mctx's trees or on dense ones, and searches of one's own."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np

from podzero.config import OwnAlgorithmConfig, SearchConfig
from podzero.config.section import own_code
from podzero.core.errors import ConfigError
from podzero.core.protocols import BatchedSearch
from podzero.core.types import Array, EnvState, Exploration, Params, SearchedNodes, SearchResult
from podzero.search import selection
from podzero.search.dense_tree import grow, root_edges, slots_of
from podzero.search.models import ILLEGAL, Model
from podzero.search.selection import Edges, Transform

MIN_VALUE_RANGE, MIN_OUTCOME_RANGE = 0.01, 0.2
"""Defaults of `search.min_value_range`: the general one, and the one for outcomes between -1 and 1.

0.2 is the median range of Q-values of connect four's agent in positions where all moves are equally good
(`benchmarks/results/inner_nodes.json`). With the default `value_scale` the weight per unit of value is then at most
0.1 / 0.2, which equals the paper's `c_scale` = 1 over Q-values in [0, 1] (Danihelka et al. 2022).
"""


def qtransform(transform: Transform) -> mctx.QTransform:
    """A transform of Q-values as mctx calls it: with the tree of one search and a node, to return `[A]`."""

    def call(tree: mctx.Tree, node: Array) -> Array:
        return transform(edges_at(tree, node), -1)

    return call


def edges_at(tree: mctx.Tree, node: Array) -> Edges:
    """The edges `[A]` of one node of one search."""
    visits = tree.children_visits[node]
    return Edges(
        logits=tree.children_prior_logits[node],
        prior=jax.nn.softmax(tree.children_prior_logits[node]),
        visits=visits,
        total_visits=jnp.sum(visits)[None],
        qvalues=tree.qvalues(node),
        raw_value=tree.raw_values[node][None],
        value=tree.node_values[node][None],
        tree_range=selection.tree_range(tree.node_values, tree.node_visits > 0),
    )


def edges_of_roots(tree: mctx.Tree) -> Edges:
    """The edges `[B, A]` of the roots of B searches."""
    edges: Edges = jax.vmap(edges_at, in_axes=(0, None))(tree, mctx.Tree.ROOT_INDEX)
    return edges


def _with_chance(select: mctx.InteriorActionSelectionFn, model: Model) -> mctx.InteriorActionSelectionFn:
    """Selects outcomes in afterstates, and in other nodes what `select` selects."""
    is_afterstate = model.chance
    if is_afterstate is None:
        return select

    def selected(key: Array, tree: mctx.Tree, node: Array, depth: Array) -> jax.Array:
        state = jax.tree.map(lambda leaf: leaf[node][None], tree.embeddings)
        outcome = jnp.argmax(selection.outcome_scores(edges_at(tree, node)))
        chosen: jax.Array = jnp.where(is_afterstate(state)[0], outcome, select(key, tree, node, depth))
        return chosen.astype(jnp.int32)

    return selected


def _root_selection(config: SearchConfig, model: Model) -> mctx.RootActionSelectionFn:
    if config.algorithm != "gumbel":
        return partial(inner_selection(config, model), depth=0)
    return partial(
        mctx.gumbel_muzero_root_action_selection,
        num_simulations=config.simulations,
        max_num_considered_actions=config.max_considered_actions,
        qtransform=qtransform(gumbel_values(config, model)),
    )


def inner_selection(config: SearchConfig, model: Model) -> mctx.InteriorActionSelectionFn:
    """The algorithm's rule for nodes below the root in mctx's trees."""
    if config.algorithm == "gumbel":
        transform = qtransform(gumbel_values(config, model))
        return partial(mctx.gumbel_muzero_interior_action_selection, qtransform=transform)
    return partial(
        mctx.muzero_action_selection,
        pb_c_init=config.pb_c_init,
        pb_c_base=selection.PB_C_BASE,
        qtransform=qtransform(puct_values(config, model)),
    )


def nodes_of(tree: mctx.Tree) -> SearchedNodes:
    """All nodes of B trees."""
    prior = jax.nn.softmax(tree.children_prior_logits)
    # The root has no parent (-1): index 0 keeps the gathers in bounds, and `where` replaces its value below.
    row, above = jnp.arange(tree.parents.shape[0])[:, None], jnp.maximum(tree.parents, 0)
    action = jnp.maximum(tree.action_from_parent, 0)
    edge = row, above, action
    led_to = tree.children_rewards[edge] + tree.children_discounts[edge] * tree.node_values
    value = jnp.where(tree.parents < 0, tree.node_values, led_to)
    return SearchedNodes(tree.parents, tree.action_from_parent, tree.node_visits, value, prior[edge])


class _Grown(NamedTuple):
    """The parts of B grown trees that a `SearchResult` is made of."""

    roots: Edges
    """`[B, A]`."""
    dropped: jax.Array | None = None
    """`dropped`, `depth` and `nodes` are as in `SearchResult`."""
    depth: jax.Array | None = None
    nodes: SearchedNodes | None = None


_TIE_BREAK = 1e-7
"""Scale of the noise that breaks ties between equal PUCT scores, as in mctx."""


def make_search(config: SearchConfig, model: Model, keep_nodes: bool = False) -> BatchedSearch:
    """Builds a search of `model`: a stateless function that JAX can trace.

    With `keep_nodes` the result includes the trees' nodes; this always uses mctx's trees, whatever `config.tree` is. A
    search of one's own returns nodes or not, as it likes. A model with values for each player needs dense trees, and
    always uses them. What a model does not support is refused by a `ConfigError`.
    """
    if keep_nodes:
        config = config.model_copy(update={"tree": "mctx", "slots": None})
    if model.chance is not None and (config.slots is not None or isinstance(config.algorithm, OwnAlgorithmConfig)):
        what = "search.algorithm: a search of your own" if config.slots is None else "search.slots: a limit of actions"
        raise ConfigError(f"{what} is not supported in games of chance; remove it")
    if model.turn is not None:
        assert not keep_nodes, "mctx's trees have one value per node"
        config = config.model_copy(update={"tree": "dense"})
        if isinstance(config.algorithm, OwnAlgorithmConfig):
            raise ConfigError(
                "search.algorithm: a search of your own is supported only in games for one player and zero-sum games "
                "for two; remove it"
            )
    match config.algorithm:
        case "gumbel":
            return _gumbel(config, model, keep_nodes)
        case "puct":
            return _puct(config, model, keep_nodes)
        case OwnAlgorithmConfig() as algorithm:
            return own_search(algorithm, config, model)


def _gumbel(config: SearchConfig, model: Model, keep_nodes: bool) -> BatchedSearch:
    """Gumbel AlphaZero (Danihelka et al. 2022): sequential halving at the root, targets from completed Q-values."""
    transform = gumbel_values(config, model)

    def search(params: Params, key: Array, roots: EnvState, exploration: Exploration) -> SearchResult:
        root_key, search_key = jax.random.split(key)
        search_key, noise_key = jax.random.split(search_key)
        root, legal = evaluated(model, params, root_key, roots)
        noise = jnp.asarray(exploration.noise)[:, None] * jax.random.gumbel(noise_key, legal.shape)
        tree = _grown(config, model, keep_nodes, params, search_key, root, noise)
        edges = tree.roots
        # Among the most visited actions, temperature 1 samples from the improved policy, and 0 takes the best. The
        # noise above still decides which actions are visited most.
        improved = edges.logits + transform(edges, 1)
        finalist = edges.visits == jnp.max(edges.visits, axis=1, keepdims=True)
        scores = improved + exploration.temperature[:, None] * noise
        action = jnp.argmax(jnp.where(finalist, scores, -jnp.inf), axis=1)
        policy = jax.nn.softmax(jnp.where(legal, improved, ILLEGAL))
        return _result(config, model, tree, policy, action)

    return search


def gumbel_values(config: SearchConfig, model: Model, some_actions: bool = False) -> Transform:
    """The transform of Q-values in Gumbel search of a model."""
    least = config.min_value_range or (MIN_OUTCOME_RANGE if model.players > 1 else MIN_VALUE_RANGE)
    return selection.gumbel_transform(config, model.bounds, least, some_actions)


def puct_values(config: SearchConfig, model: Model) -> Transform:
    """The transform of Q-values in PUCT search of a model."""
    return selection.puct_transform(config, model.bounds if model.players > 1 else None)


def _puct(config: SearchConfig, model: Model, keep_nodes: bool) -> BatchedSearch:
    """AlphaZero's search (Silver et al. 2018): PUCT with Dirichlet noise at the root; visit counts are the target."""

    def search(params: Params, key: Array, roots: EnvState, exploration: Exploration) -> SearchResult:
        root_key, noise_key, search_key = jax.random.split(key, 3)
        choice_key, tie_key, search_key = jax.random.split(search_key, 3)
        root, legal = evaluated(model, params, root_key, roots)
        weight = config.dirichlet_fraction * exploration.noise
        noisy = jnp.where(legal, with_noise(noise_key, root.prior_logits, legal, config, weight), ILLEGAL)
        ties = _TIE_BREAK * jax.random.uniform(tie_key, legal.shape)
        tree = _grown(config, model, keep_nodes, params, search_key, root.replace(prior_logits=noisy), ties)
        edges = tree.roots
        # Sample in proportion to visits ** (1 / temperature); temperature 0 takes the most visited action.
        policy = edges.visits / config.simulations
        temperature = jnp.maximum(exploration.temperature, 1e-6)[:, None]
        drawn = jax.random.categorical(choice_key, jnp.log(policy) / temperature)
        action = jnp.where(exploration.temperature > 0, drawn, jnp.argmax(edges.visits, axis=1))
        return _result(config, model, tree, policy, action)

    return search


def _grown(
    config: SearchConfig,
    model: Model,
    keep_nodes: bool,
    params: Params,
    key: Array,
    root: mctx.RootFnOutput,
    noise: jax.Array,
) -> _Grown:
    """Grows trees from B evaluated roots, whose illegal actions have the logit `ILLEGAL`; the noise is `[B, A]`."""
    if config.tree == "mctx":
        tree = mctx.search(
            params,
            key,
            root=root,
            recurrent_fn=model.recurrent,
            root_action_selection_fn=_root_selection(config, model),
            interior_action_selection_fn=_with_chance(inner_selection(config, model), model),
            num_simulations=config.simulations,
            invalid_actions=root.prior_logits == ILLEGAL,
            # In PUCT, mctx breaks ties with noise of its own.
            extra_data=mctx.GumbelMuZeroExtraData(root_gumbel=noise) if config.algorithm == "gumbel" else None,
        )
        return _Grown(edges_of_roots(tree), nodes=nodes_of(tree) if keep_nodes else None)
    if config.algorithm == "gumbel":
        slots = slots_of(root.prior_logits, config.slots, preference=root.prior_logits + noise)
        transform = gumbel_values(config, model, some_actions=slots.action is not None)
        rule = selection.gumbel_selection(config, transform, slots.of(noise), slots.legal)
    else:
        slots = slots_of(root.prior_logits, config.slots)
        transform = puct_values(config, model)
        rule = selection.puct_selection(config, transform, slots.of(noise), slots.legal)
    dense = grow(model, rule, params, key, root, slots, config)
    dropped = dense.dropped if config.slots else None
    return _Grown(root_edges(dense, root.prior_logits), dropped, depth=1 + dense.depth / config.simulations)


def evaluated(model: Model, params: Params, key: Array, roots: EnvState) -> tuple[mctx.RootFnOutput, jax.Array]:
    """Evaluates B roots, with the largest logit 0 and `ILLEGAL` for illegal actions; also returns legal `[B, A]`."""
    legal, root = jnp.asarray(model.legal(roots)), model.root(params, key, roots)
    assert root.prior_logits.shape == legal.shape
    assert root.value.shape == legal.shape[:1]
    logits = root.prior_logits - jnp.max(root.prior_logits, axis=1, keepdims=True)
    return root.replace(prior_logits=jnp.where(legal, logits, ILLEGAL)), legal


def with_noise(key: Array, logits: Array, legal: Array, config: SearchConfig, weight: Array) -> jax.Array:
    """Mixes the prior of each root with Dirichlet noise over its legal actions: the logits `[B, A]` of both.

    The concentration per action is `dirichlet_concentration` divided by the number of legal actions, as in KataGo
    (Wu 2020, https://arxiv.org/abs/1902.10565): AlphaZero's 0.3, 0.15 and 0.03 for chess, shogi and go are about 10
    over the typical number of legal moves. `weight` (`[B]`, in [0, 1]) is that of the noise.
    """
    assert logits.shape == legal.shape
    assert weight.shape == legal.shape[:1]
    # mctx draws noise over all actions and masks it afterwards, which loses most of it where few actions are legal.
    each = config.dirichlet_concentration / jnp.sum(legal, axis=1, keepdims=True)
    drawn = jax.random.loggamma(key, jnp.broadcast_to(each, logits.shape))
    noise = jax.nn.softmax(jnp.where(legal, drawn, -jnp.inf))
    prior = jax.nn.softmax(jnp.where(legal, logits, -jnp.inf))
    mixed = (1.0 - weight[:, None]) * prior + weight[:, None] * noise
    return jnp.log(jnp.maximum(mixed, np.finfo(np.float32).tiny))


def result_of(config: SearchConfig, model: Model, tree: mctx.Tree, earlier: Array) -> SearchResult:
    """The result, with nodes, of B trees of at least one simulation that were grown without exploration.

    `earlier` (`[B, A]` int32) is the visits from before the nodes were roots. In Gumbel search they do not decide which
    actions are the most visited, since they come from another rule.
    """
    grown = _Grown(edges_of_roots(tree), nodes=nodes_of(tree))
    edges = grown.roots
    if config.algorithm == "gumbel":
        improved, new = edges.logits + gumbel_values(config, model)(edges, 1), edges.visits - earlier
        finalist = (edges.visits > 0) & (new == jnp.max(new, axis=1, keepdims=True))
        policy = jax.nn.softmax(jnp.where(edges.logits != ILLEGAL, improved, ILLEGAL))
        return _result(config, model, grown, policy, jnp.argmax(jnp.where(finalist, improved, -jnp.inf), axis=1))
    return _result(config, model, grown, edges.visits / edges.total_visits, jnp.argmax(edges.visits, axis=1))


def _result(config: SearchConfig, model: Model, tree: _Grown, policy: Array, action: Array) -> SearchResult:
    assert policy.shape == tree.roots.visits.shape
    assert action.shape == policy.shape[:1]
    return SearchResult(
        action=action.astype(jnp.int32),
        policy=policy[:, : model.actions].astype(jnp.float32),
        value=selection.root_value(config, tree.roots, policy, action).astype(jnp.float32),
        visits=tree.roots.visits[:, : model.actions].astype(jnp.int32),
        dropped=tree.dropped,
        depth=tree.depth,
        nodes=tree.nodes,
        qvalues=tree.roots.qvalues[:, : model.actions].astype(jnp.float32),
    )


def own_search(algorithm: OwnAlgorithmConfig, config: SearchConfig, model: Model) -> BatchedSearch:
    """The search that `algorithm.name` names."""
    offered, protocol = {"model": model, "config": config}, "podzero.core.protocols.BatchedSearch"
    code = own_code(algorithm, "search.algorithm", offered)
    made = code.make_function(offered, f"search(params, key, roots, exploration), see {protocol}")

    def search(params: Params, key: Array, roots: EnvState, exploration: Exploration) -> SearchResult:
        with code.running("its search"):
            result = made(params, key, roots, exploration)
        return _of_form(result, jax.eval_shape(model.legal, roots).shape, code.where)

    return search


def _of_form(result: object, of_actions: tuple[int, ...], where: str) -> SearchResult:
    """The result with the dtypes of a `SearchResult`; `of_actions` is `[B, A]`."""
    if not isinstance(result, SearchResult):
        raise ConfigError(f"{where}: it returned a {type(result).__name__}; expected a podzero.core.types.SearchResult")
    of_rows = of_actions[:1]
    forms = {
        "action": (of_rows, jnp.int32),
        "policy": (of_actions, jnp.float32),
        "value": (of_rows, jnp.float32),
        "visits": (of_actions, jnp.int32),
        "qvalues": (of_actions, jnp.float32),
    }
    fields: dict[str, Any] = {}
    for name, (shape, dtype) in forms.items():
        field = getattr(result, name)
        if field is None or jnp.shape(field) != shape:
            found = "missing" if field is None else f"of shape {list(jnp.shape(field))}"
            raise ConfigError(f"{where}: {name} of its SearchResult is {found}; expected {list(shape)}")
        fields[name] = jnp.asarray(field, dtype)
    return result._replace(**fields)
