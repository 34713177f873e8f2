"""Players, which choose moves: by search or at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import ModelNetworkConfig, NetworkConfig, SearchConfig
from podzero.core.errors import ConfigError
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, Exploration, Params, SearchResult
from podzero.evaluation.growing import GrowingSearch, PlayerTree, make_growing_search
from podzero.inference import QuantizedNetwork
from podzero.networks import make_inference, make_model_network
from podzero.search import (
    Evaluate,
    LimitedState,
    Model,
    limited,
    make_model_search,
    make_search,
    network_evaluation,
    rules_model,
)

Decide = Callable[[Params, Array, EnvState], SearchResult]
"""A compiled search without exploration, `(params, key, roots)`, for each batch size; roots may be `LimitedState`."""
PolicyAndValue = Callable[[Params, EnvState], tuple[Array, Array]]
"""A compiled network: `(params, states)` to probabilities `[B, A]`, zero for illegal actions, and values `[B]`."""


class _Named(Protocol):
    """What all players have."""

    name: str
    """Name in results and ratings."""
    deterministic: bool
    """Whether the move depends only on the position."""


class Player(_Named, Protocol):
    """Chooses moves for B games at once."""

    def choose(self, key: Array, states: EnvState) -> Array:
        """Legal actions, `[B]` int32, for B non-terminal states. `key` is consumed."""
        ...


class Turn(NamedTuple):
    """A game in which a player is to move, on the host."""

    moves: tuple[int, ...]
    """All actions so far."""
    state: EnvState
    """The state after `moves`, without a batch axis."""
    legal: np.ndarray[Any, Any]
    """`[A]` bool."""


GIVES_UP = -1
"""Returned by a `MovesPlayer` instead of an action: it resigns or forfeits, and loses the game."""


@runtime_checkable
class MovesPlayer(_Named, Protocol):
    """Chooses moves one game at a time, given all moves so far, for example an engine in another process."""

    def choose_after(self, turns: Sequence[Turn]) -> list[int]:
        """A legal action, or `GIVES_UP`, for each game."""
        ...


Contestant = Player | MovesPlayer
"""A participant of matches."""


class RandomPlayer:
    """Uniformly random legal moves."""

    name = "random"
    deterministic = False

    def __init__(self, env: Env) -> None:
        self._choose = jax.jit(lambda key, states: random_actions(key, jax.vmap(env.view)(states).legal))

    def choose(self, key: Array, states: EnvState) -> Array:
        """See `Player`."""
        return cast(Array, self._choose(key, states))


@dataclass(eq=False)
class SearchPlayer:
    """Plays the strongest move of a search."""

    name: str
    decide: Decide
    params: Params
    _: KW_ONLY
    deterministic: bool
    network: PolicyAndValue | None = None
    """None for a search with rollouts."""
    growing: GrowingSearch | None = None

    def choose(self, key: Array, states: EnvState) -> Array:
        """See `Player`."""
        return self.search(key, states).action

    def search(self, key: Array, states: EnvState) -> SearchResult:
        """The search result for B non-terminal states, or for B `LimitedState`."""
        return self.decide(self.params, key, states)

    @property
    def tree(self) -> PlayerTree | None:
        """A new tree for one game of `search`; None unless the player keeps nodes and its search can go on."""
        return None if self.growing is None else PlayerTree(self.growing, self.params)

    def evaluate(self, states: EnvState) -> tuple[Array, Array]:
        """The network's output (`PolicyAndValue`) for B states, for the player to move; `ConfigError` without one."""
        if self.network is None:
            raise ConfigError(f"player '{self.name}' has no network that could evaluate a position: search it instead")
        return self.network(self.params, states)


def mcts_player(env: Env, simulations: int, discount: float = 1.0, keep_nodes: bool = False) -> SearchPlayer:
    """Monte Carlo tree search without a network: PUCT with a uniform prior and one random rollout per leaf."""
    # An unvisited action takes the value of its node. If it counted as a loss, most of many actions would stay untried.
    config = SearchConfig(algorithm="puct", simulations=simulations, first_play_urgency="parent")
    model = rules_model(env, rollout_evaluation(env, discount), discount)
    decide = make_decide(config, model, keep_nodes)
    growing = make_growing_search(config, model) if keep_nodes else None
    return SearchPlayer(f"mcts:{simulations}", decide, None, deterministic=False, growing=growing)


class NetworkPlayers:
    """Makes players that share one compiled search and differ in their parameters.

    They use the network's inference form, as actors do. With `int8`, that network evaluates for them, and only the two
    newest players can play. A network that has learned a model is searched by it.
    """

    def __init__(
        self,
        env: Env,
        network: NetworkConfig,
        config: SearchConfig,
        discount: float = 1.0,
        keep_nodes: bool = False,
        int8: QuantizedNetwork | None = None,
    ) -> None:
        self._int8 = int8
        if isinstance(network, ModelNetworkConfig):
            self._fold: Callable[[Params], Params] = lambda params: params
            self._growing = self._network = None
            self._decide = _decide_by_model(env, network, config, discount)
            return
        fold, inference = make_inference(network, env.spec)
        self._fold = jax.jit(fold)
        evaluate = network_evaluation(env, inference.apply) if int8 is None else int8.evaluation(env)
        model = rules_model(env, evaluate, discount)
        self._decide = make_decide(config, model, keep_nodes)
        self._growing = make_growing_search(config, model) if keep_nodes else None
        self._network = _policy_and_value(env, evaluate)

    def player(self, name: str, params: Params) -> SearchPlayer:
        """The player with parameters `params`."""
        folded = self._fold(params)
        return SearchPlayer(
            name,
            self._decide,
            folded if self._int8 is None else self._int8.load(folded),
            deterministic=True,
            network=self._network,
            growing=self._growing,
        )


def make_decide(config: SearchConfig, model: Model, keep_nodes: bool = False) -> Decide:
    """Compiles a search of `model` without exploration; `keep_nodes` keeps the nodes of the trees in its results.

    Trees of games of chance, whose outcomes have no names, and those with values for each player are not kept.
    """
    keep_nodes = keep_nodes and model.chance is None and model.turn is None
    search = make_search(config, model, keep_nodes)

    def decide(params: Params, key: Array, roots: EnvState) -> SearchResult:
        batch = jax.tree.leaves(roots)[0].shape[0]
        run = make_search(config, limited(model), keep_nodes) if isinstance(roots, LimitedState) else search
        return run(params, key, roots, Exploration.none(batch))

    return cast(Decide, jax.jit(decide))


def _decide_by_model(env: Env, network: ModelNetworkConfig, config: SearchConfig, discount: float) -> Decide:
    """Compiles a search of a learned model, which sees no more of the roots than their observations."""
    search = make_model_search(config, make_model_network(network, env.spec), env.spec, discount)

    def decide(params: Params, key: Array, roots: EnvState) -> SearchResult:
        view = jax.vmap(env.view)(roots.state if isinstance(roots, LimitedState) else roots)
        legal = view.legal & ~roots.forbidden if isinstance(roots, LimitedState) else view.legal
        found = search(params, key, view.observation, Exploration.none(legal.shape[0]), legal)
        assert found.visits is not None
        return SearchResult(found.action, found.policy, found.value, found.visits)

    return cast(Decide, jax.jit(decide))


def _policy_and_value(env: Env, evaluate: Evaluate) -> PolicyAndValue:
    def policy_and_value(params: Params, states: EnvState) -> tuple[jax.Array, jax.Array]:
        # Only rollouts use the key.
        logits, values = evaluate(params, jax.random.key(0), states)
        value = values if env.spec.values == 1 else values[:, 0]
        return jax.nn.softmax(jnp.where(jax.vmap(env.view)(states).legal, logits, -jnp.inf), axis=-1), value

    return cast(PolicyAndValue, jax.jit(policy_and_value))


def rollout_evaluation(env: Env, discount: float) -> Evaluate:
    """Evaluates states by uniform logits and the return of one uniformly random rollout."""

    def evaluate(params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        del params
        mover = jax.vmap(env.view)(states).player
        returns = random_game_returns(env, key, states, discount)
        logits = jnp.zeros((mover.shape[0], env.spec.num_actions), jnp.float32)
        in_turn = (mover[:, None] + jnp.arange(env.spec.values)) % returns.shape[1]
        values = jnp.take_along_axis(returns, in_turn, axis=1)
        return logits, values.reshape(mover.shape[0], *env.spec.value_shape)

    return evaluate


def random_game_returns(env: Env, key: Array, states: EnvState, discount: float) -> jax.Array:
    """Discounted returns, `[B, P]` float32, of all players in random rollouts from B states."""

    def running(carry: tuple[Any, EnvState, jax.Array, jax.Array]) -> jax.Array:
        return ~jnp.all(jax.vmap(env.view)(carry[1]).done)

    def ply(carry: tuple[Any, EnvState, jax.Array, jax.Array]) -> tuple[Any, EnvState, jax.Array, jax.Array]:
        key, states, returns, weight = carry
        key, move_key = jax.random.split(key)
        action = random_actions(move_key, jax.vmap(env.view)(states).legal)
        states = jax.vmap(env.step)(states, action)
        return key, states, returns + weight * jax.vmap(env.view)(states).rewards, discount * weight

    batch = jax.tree.leaves(states)[0].shape[0]
    start = key, states, jnp.zeros((batch, max(2, env.spec.players))), jnp.float32(1)
    return jax.lax.while_loop(running, ply, start)[2]


def random_actions(key: Array, among: Array) -> jax.Array:
    """Uniformly random actions, `[B]` int32, one from each row of the mask `among` (`[B, A]` bool)."""
    return jax.random.categorical(key, jnp.where(among, 0.0, -jnp.inf), axis=-1).astype(jnp.int32)
