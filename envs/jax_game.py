"""Games in JAX: the protocols of those with chance, the `Env` of each kind, and a check of its contract."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podzero.core.errors import ConfigError, described
from podzero.core.protocols import Env, JaxGame
from podzero.core.types import Array, EnvSpec, EnvState, Symmetry, View
from podzero.envs.faults import Violation
from podzero.envs.packing import packed_bytes, plain


class ChanceGame(JaxGame, Protocol):
    """A `JaxGame` in which chance decides after some of the players' actions.

    `step` leads to a state in which a player decides, or to an afterstate, in which chance does (Antonoglou et al.
    2022, https://openreview.net/forum?id=X6D9bAHhBQ1). In an afterstate the game is not over, and its reward is not
    read: the reward for an action comes with the outcome. `init` draws what chance decides before the first move.
    """

    outcomes: int
    """C, the largest number of outcomes of one event."""

    def chance(self, state: EnvState) -> Array:
        """The probability of each outcome, `[C]` float32; all zero where chance decides nothing."""
        ...

    def resolve(self, state: EnvState, outcome: Array) -> EnvState:
        """The state after an afterstate's `outcome` (`[]` int32), in which a player decides or the game is over."""
        ...


class JaxSimulator(Protocol):
    """A `JaxGame` for one player in which chance decides too: each step gets a key to draw from.

    Only networks that learn a model play it, since a search of its states would foresee what is drawn.
    """

    def init(self, key: Array) -> EnvState:
        """Starts an episode."""
        ...

    def step(self, state: EnvState, action: Array, key: Array) -> EnvState:
        """Takes a legal `action` (`[]` int32). Once the episode is over, nothing changes and rewards are zero."""
        ...

    def view(self, state: EnvState) -> View:
        """The visible part of `state`; its rewards may have any size."""
        ...


class _Described[Game: JaxGame | ChanceGame | JaxSimulator]:
    """What the `Env`s of all kinds of games say of them."""

    init: Callable[[Array], EnvState]

    def __init__(self, game: Game, name: str) -> None:
        self._game, self._name = game, name

    @cached_property
    def spec(self) -> EnvSpec:
        """See `spec_of_game`."""
        return spec_of_game(self._game, self._name, self.init)

    @property
    def symmetries(self) -> Sequence[Symmetry]:
        """The symmetries other than the identity; empty if the game names none."""
        return getattr(self._game, "symmetries", ())


def spec_of_game(game: JaxGame | ChanceGame | JaxSimulator, name: str, init: Callable[[Array], EnvState]) -> EnvSpec:
    """Shapes and dtypes of what a game's `view` returns, and the size of a state of `init`; nothing is computed."""
    key = jax.random.key(0)
    view = jax.eval_shape(lambda key: game.view(game.init(key)), key)
    players = int(getattr(game, "players", 2))
    single = players == 1 or (players == 2 and getattr(game, "zero_sum", True))
    return EnvSpec(
        name,
        tuple(view.observation.shape),
        str(view.observation.dtype),
        num_actions=int(view.legal.shape[-1]),
        players=players,
        values=1 if single else players,
        state_bytes=packed_bytes(jax.eval_shape(init, key)),
        max_plies=getattr(game, "max_plies", None),
        squares=0 if view.ownership is None else view.ownership.shape[-1],
    )


class OwnGame(_Described[JaxGame]):
    """The `Env` of a `JaxGame`."""

    def __init__(self, game: JaxGame, name: str) -> None:
        super().__init__(game, name)
        # The functions themselves, so that nothing stands between them and what traces them.
        self.init, self.step, self.view = game.init, game.step, game.view


class DrawnState(NamedTuple):
    """A state of a game of chance, with the key of what chance will draw."""

    game: EnvState
    key: Array
    """`[2]` uint32, the data of a PRNG key."""


class _Drawing[Game: ChanceGame | JaxSimulator](_Described[Game]):
    """The part of `Env`s that draw from a key which the state holds."""

    def init(self, key: Array) -> DrawnState:
        """Starts a game."""
        start, drawn = jax.random.split(jnp.asarray(key))
        return DrawnState(self._game.init(start), jax.random.key_data(drawn))

    def view(self, state: DrawnState) -> View:
        """The visible part of `state`."""
        return self._game.view(state.game)


class Simulation(_Drawing[JaxSimulator]):
    """The `Env` of a `JaxSimulator`."""

    def step(self, state: DrawnState, action: Array) -> DrawnState:
        """Takes a legal `action`; a state that is over keeps its key."""
        now, later = jax.random.split(jax.random.wrap_key_data(jnp.asarray(state.key)))
        key = jnp.where(self.view(state).done, state.key, jax.random.key_data(later))
        return DrawnState(self._game.step(state.game, action, now), key)


class GameOfChance(_Drawing[ChanceGame]):
    """The `Env` of a `ChanceGame`: `step` also draws the outcome, from a key that the state holds.

    The same key and moves therefore always give the same game. A search must not foresee what is drawn: it redraws the
    key of its root, and steps by `afterstate` and `resolve`.
    """

    @property
    def outcomes(self) -> int:
        """C, the largest number of outcomes of one event."""
        return int(self._game.outcomes)

    def step(self, state: DrawnState, action: Array) -> DrawnState:
        """Plays a legal `action`, and draws an outcome where chance decides next."""
        after = self.afterstate(state, action)
        now, later = jax.random.split(jax.random.wrap_key_data(jnp.asarray(after.key)))
        probabilities = self.chance(after)
        outcome = jax.random.categorical(now, jnp.log(probabilities))
        resolved = DrawnState(self._game.resolve(after.game, outcome.astype(jnp.int32)), jax.random.key_data(later))
        drawn: DrawnState = optax.tree.where(jnp.any(probabilities > 0), resolved, after)
        return drawn

    def redrawn(self, state: DrawnState, key: Array) -> DrawnState:
        """The state with other draws to come."""
        return state._replace(key=jax.random.key_data(key))

    def afterstate(self, state: DrawnState, action: Array) -> DrawnState:
        """The state after a legal `action`, before chance decides."""
        return state._replace(game=self._game.step(state.game, action))

    def chance(self, state: DrawnState) -> jax.Array:
        """The probability of each outcome, `[C]` float32; all zero where chance decides nothing."""
        probabilities = jnp.asarray(self._game.chance(state.game))
        found, expected = probabilities.shape, (self.outcomes,)
        assert found == expected, f"chance() has the shape {list(found)}; expected {list(expected)}"
        return probabilities

    def resolve(self, state: DrawnState, outcome: Array) -> DrawnState:
        """The state after an `outcome`; what is drawn later depends on the outcome."""
        key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(state.key)), outcome)
        return DrawnState(self._game.resolve(state.game, outcome), jax.random.key_data(key))


def check_game(env: Env, games: int = 8, max_plies: int = 64, learned: bool = False) -> None:
    """Plays random games, all together, and checks the contract of `Env` in every position of each.

    Shapes and dtypes must be those of the spec and never change, each position must have a legal action, rewards must
    sum to zero (zero-sum games), returns must lie in [-1, 1] unless the model is `learned`, a game that is over must
    stay as it is, symmetries must be permutations, and in a game of chance the probabilities of outcomes must sum to
    one. Games with a value for each player have no chance and are never truncated.

    Raises:
      ConfigError: the contract is violated; the message says how, and after which moves.
    """
    name = "a game"
    try:
        name = env.spec.name
        _check_forms(env)
        _check_symmetries(env)
        played = _played(env, games, max_plies)
        _check_chance(played)
        _check_positions(env.spec, played)
        _check_ends(played)
        _check_rewards(env.spec, played)
        if not learned:
            _check_returns(played)
    except Violation as violation:
        raise ConfigError(f"{name} violates the contract of podzero.envs.JaxGame: {violation}") from None
    except Exception as error:
        raise ConfigError(f"{name} cannot be played: {described(error)}") from error


class _Played(NamedTuple):
    """Random games: T plies of B games."""

    views: Any
    """A `View` of NumPy arrays, `[T + 1, B, ...]`."""
    actions: np.ndarray[Any, Any]
    """`[T, B]`."""
    changed: np.ndarray[Any, Any]
    """`[T, B]` bool, whether the ply changed the state."""
    chance: tuple[np.ndarray[Any, Any], ...] | None
    """`[T, B, C]`, after the action and the outcome; `[T, B]`, whether it is over between; None without chance."""


def _check_forms(env: Env) -> None:
    """Checks shapes and dtypes; nothing is computed."""
    spec = env.spec
    if spec.players < 1:
        raise Violation(f"players = {spec.players!r}: expected at least 1")
    if spec.values > 1 and isinstance(env, GameOfChance):
        raise Violation(
            "chance is supported only with one player, or with two whose rewards sum to zero; here "
            f"players = {spec.players}"
        )
    if np.dtype(spec.observation_dtype).kind not in "biuf":
        raise Violation(f"the observation is of {spec.observation_dtype}; expected bool, integers or floats")
    board = spec.observation_shape[:2]
    if spec.squares and (spec.players != 2 or spec.values != 1):
        raise Violation("ownership is supported only with two players whose rewards sum to zero; give None")
    if spec.squares and not (len(spec.observation_shape) == 3 and math.prod(board) == spec.squares <= spec.num_actions):
        raise Violation(
            f"ownership tells of {spec.squares} squares; expected those of the observation {spec.observation_shape}, "
            f"each with an action of its own (there are {spec.num_actions})"
        )
    state = jax.eval_shape(env.init, jax.random.key(0))
    after = jax.eval_shape(env.step, state, np.zeros((), np.int32))
    _require_same_form("step() returns a state that differs from that of init()", state, after)
    expected = View(
        observation=np.zeros(spec.observation_shape, spec.observation_dtype),
        legal=np.zeros(spec.num_actions, bool),
        player=np.zeros((), np.int32),
        rewards=np.zeros(max(spec.players, 2), np.float32),
        done=np.zeros((), bool),
        truncated=np.zeros((), bool),
        ownership=np.zeros((2, spec.squares), np.int8) if spec.squares else None,
    )
    _require_same_form("view()", expected, jax.eval_shape(env.view, state))
    if isinstance(env, GameOfChance):
        resolved = jax.eval_shape(env.resolve, state, np.zeros((), np.int32))
        _require_same_form("resolve() returns a state that differs from that of init()", state, resolved)
        probabilities = np.zeros(env.outcomes, np.float32)
        _require_same_form("chance()", probabilities, jax.eval_shape(env.chance, state))


def _require_same_form(what: str, expected: Any, found: Any) -> None:
    structures = [str(jax.tree.structure(tree)) for tree in (found, expected)]
    if structures[0] != structures[1]:
        raise Violation(f"{what}: found {structures[0]}; expected {structures[1]}")
    leaves = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True)
    for (path, right), leaf in leaves:
        if (right.shape, right.dtype) != (leaf.shape, leaf.dtype):
            raise Violation(
                f"{what}: {jax.tree_util.keystr(path) or 'the state'} is {leaf.dtype} of shape {list(leaf.shape)}; "
                f"expected {right.dtype} of shape {list(right.shape)}"
            )


def _check_symmetries(env: Env) -> None:
    spec = env.spec
    observation = np.zeros(spec.observation_shape, spec.observation_dtype)
    for number, symmetry in enumerate(env.symmetries):
        if sorted(np.asarray(symmetry.actions).tolist()) != list(range(spec.num_actions)):
            raise Violation(f"symmetries[{number}].actions: expected a permutation of {spec.num_actions} actions")
        if spec.squares and np.max(symmetry.actions[: spec.squares]) >= spec.squares:
            raise Violation(
                f"symmetries[{number}].actions: with ownership, the first {spec.squares} are squares, and must stay so"
            )
        turned = jax.eval_shape(symmetry.observation, observation)
        _require_same_form(f"symmetries[{number}].observation()", observation, turned)


def _played(env: Env, games: int, plies: int) -> _Played:
    view, step = jax.vmap(env.view), jax.vmap(env.step)

    def drawn(states: EnvState, actions: Array, after: EnvState) -> tuple[Array, ...] | None:
        if not isinstance(env, GameOfChance):
            return None
        between, chance = jax.vmap(env.afterstate)(states, actions), jax.vmap(env.chance)
        return chance(between), chance(after), view(between).done

    def ply(states: EnvState, key: Array) -> tuple[EnvState, Any]:
        legal = view(states).legal
        actions = jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf), axis=-1).astype(jnp.int32)
        after = step(states, actions)
        return after, (view(after), actions, _differ(states, after), drawn(states, actions, after))

    @jax.jit
    def play(key: Array) -> _Played:
        start_key, ply_key = jax.random.split(key)
        starts = jax.vmap(env.init)(jax.random.split(start_key, games))
        _, (views, actions, changed, chance) = jax.lax.scan(ply, starts, jax.random.split(ply_key, plies))
        first = jax.tree.map(lambda start, rest: jnp.concatenate([start[None], rest]), view(starts), views)
        return _Played(first, actions, changed, chance)

    played: _Played = jax.device_get(play(jax.random.key(0)))
    return played


def _differ(before: EnvState, after: EnvState) -> Array:
    """`[B]` bool, whether states differ."""

    def one(left: Array, right: Array) -> Array:
        return jnp.any((plain(left) != plain(right)).reshape(left.shape[0], -1), axis=1)

    return jnp.stack(jax.tree.leaves(jax.tree.map(one, before, after))).any(axis=0)


def _check_positions(spec: EnvSpec, played: _Played) -> None:
    views = played.views
    if spec.observation_dtype.startswith("float"):
        _require(np.isfinite(_flat(views.observation)).all(axis=-1), played, "the observation is not finite")
    _require(~views.done[:1], played, "the game is over before the first move")
    _require(views.legal.any(axis=-1) | views.done, played, "no action is legal, but the game is not over")
    _require(views.legal.all(axis=-1) | ~views.done, played, "some action is illegal, but the game is over")
    _require(~views.truncated | views.done, played, "truncated is true, but done is false")
    if spec.values > 1:
        unknown = "truncated is true, but each player's value needs an outcome: give rewards at the limit instead"
        _require(~views.truncated, played, unknown)
    allowed = (views.player >= 0) & (views.player < spec.players)
    _require(allowed, played, f"player is not below {spec.players}")
    if views.ownership is not None:
        owned = np.abs(views.ownership.astype(np.int32)).max(axis=(-2, -1)) <= 1
        _require(owned | ~views.done, played, "ownership has numbers other than -1, 0 and 1")


def _check_rewards(spec: EnvSpec, played: _Played) -> None:
    rewards = played.views.rewards
    _require(np.isfinite(rewards).all(axis=-1), played, "a reward is not finite")
    if spec.players == 2 and spec.values == 1:
        advice = "the rewards of two players do not sum to zero; if that is meant, set zero_sum = False"
        _require(np.abs(rewards.sum(axis=-1)) < 1e-6, played, advice)
    elif spec.players == 1:
        _require(rewards[..., 1] == 0, played, "the second reward of a game for one player is not zero")
    _require((rewards[:1] == 0).all(axis=-1), played, "there is a reward before the first move")


def _check_returns(played: _Played) -> None:
    # The return of each position is a difference of two sums.
    sums = np.cumsum(played.views.rewards, axis=0)
    returns = np.abs(sums[-1:] - sums).max(axis=-1)
    beyond = f"the rewards until the end do not lie in [-1, 1], as values do, but reach {returns.max():g}: scale them"
    _require(returns <= 1 + 1e-5, played, beyond)  # rounding


def _check_ends(played: _Played) -> None:
    views = played.views
    over = views.done[:-1]
    _require(views.done[1:] | ~over, played, "the game was over and then went on", after=1)
    silent = (views.rewards[1:] == 0).all(axis=-1)
    _require(silent | ~over, played, "there is a reward after the end of the game", after=1)
    for field in ("observation", "player"):
        seen = getattr(views, field)
        same = (_flat(seen[1:]) == _flat(seen[:-1])).all(axis=-1)
        _require(same | ~over, played, f"the {field} changes after the end of the game", after=1)
    ended_before = np.concatenate([np.zeros_like(over[:1]), over[:-1]])
    # The first ply after the end clears the reward; from then on the state is the same.
    _require(~(played.changed & ended_before), played, "the state changes although the game is over", after=1)


def _check_chance(played: _Played) -> None:
    if played.chance is None:
        return
    between, after, over = played.chance
    total = between.sum(axis=-1)
    proper = (between >= 0).all(axis=-1) & ((np.abs(total - 1) < 1e-4) | (total == 0))  # rounding
    _require(proper, played, "the probabilities of chance() are negative, or do not sum to one or zero", after=1)
    _require((total == 0) | ~over, played, "chance decides although the game is over", after=1)
    _require((after == 0).all(axis=-1), played, "chance decides twice in a row", after=1)


def _flat(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`[T, B, ...]` as `[T, B, n]`."""
    return rows.reshape(*rows.shape[:2], -1)


def _require(holds: np.ndarray[Any, Any], played: _Played, violation: str, after: int = 0) -> None:
    """Refuses the first position of `holds` `[T, B]` that is false; row 0 is the position after `after` plies."""
    if holds.all():
        return
    ply, game = (int(index[0]) for index in np.nonzero(~holds))
    ply += after
    moves = played.actions[:ply, game].tolist()
    raise Violation(f"{violation} (game {game}, after the moves {moves})")
