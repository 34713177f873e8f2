"""Games of your own in JAX: their protocols, without and with chance, and the `Env` of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from podzero.core.types import Array, EnvSpec, EnvState, Symmetry, View
from podzero.envs.packing import packed_bytes


class JaxGame(Protocol):
    """A game as pure functions of a state, any pytree of arrays; they are traced and batched.

    Four class attributes are optional: `players` (by default 2), `zero_sum` (whether the rewards of two players sum to
    zero, by default true), `max_plies` (the length of the longest possible game, by default unlimited), and
    `symmetries` (a sequence of `podzero.core.types.Symmetry`, by default none).
    """

    def init(self, key: Array) -> EnvState:
        """Starts a game; `key` may decide which player moves first."""
        ...

    def step(self, state: EnvState, action: Array) -> EnvState:
        """Plays a legal `action` (`[]` int32). If the game is over, the state does not change and rewards are zero."""
        ...

    def view(self, state: EnvState) -> View:
        """The visible part of `state`; see `podzero.core.types.View`."""
        ...


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


class _Described[Game: JaxGame]:
    """What the `Env`s of both kinds of games say of them."""

    init: Callable[[Array], EnvState]
    _game: Game
    _name: str

    @cached_property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes of what `view` returns, and the size of a state; nothing is computed."""
        key, game = jax.random.key(0), self._game
        view = jax.eval_shape(lambda key: game.view(game.init(key)), key)
        players = int(getattr(game, "players", 2))
        single = players == 1 or (players == 2 and getattr(game, "zero_sum", True))
        return EnvSpec(
            self._name,
            tuple(view.observation.shape),
            str(view.observation.dtype),
            num_actions=int(view.legal.shape[-1]),
            players=players,
            values=1 if single else players,
            state_bytes=packed_bytes(jax.eval_shape(self.init, key)),
            max_plies=getattr(game, "max_plies", None),
        )

    @property
    def symmetries(self) -> Sequence[Symmetry]:
        """The symmetries other than the identity; empty if the game names none."""
        return getattr(self._game, "symmetries", ())


class OwnGame(_Described[JaxGame]):
    """The `Env` of a `JaxGame`."""

    def __init__(self, game: JaxGame, name: str) -> None:
        self._game = game
        self._name = name
        # The functions themselves, so that nothing stands between them and what traces them.
        self.init, self.step, self.view = game.init, game.step, game.view


class DrawnState(NamedTuple):
    """A state of a game of chance, with the key of what chance will draw."""

    game: EnvState
    key: Array
    """`[2]` uint32, the data of a PRNG key."""


class GameOfChance(_Described[ChanceGame]):
    """The `Env` of a `ChanceGame`: `step` also draws the outcome, from a key that the state holds.

    The same key and moves therefore always give the same game. A search must not foresee what is drawn: it redraws the
    key of its root, and steps by `afterstate` and `resolve`.
    """

    def __init__(self, game: ChanceGame, name: str) -> None:
        self._game = game
        self._name = name

    @property
    def outcomes(self) -> int:
        """C, the largest number of outcomes of one event."""
        return int(self._game.outcomes)

    def init(self, key: Array) -> DrawnState:
        """Starts a game."""
        start, drawn = jax.random.split(jnp.asarray(key))
        return DrawnState(self._game.init(start), jax.random.key_data(drawn))

    def step(self, state: DrawnState, action: Array) -> DrawnState:
        """Plays a legal `action`, and draws an outcome where chance decides next."""
        after = self.afterstate(state, action)
        now, later = jax.random.split(jax.random.wrap_key_data(jnp.asarray(after.key)))
        probabilities = self.chance(after)
        outcome = jax.random.categorical(now, jnp.log(probabilities))
        resolved = DrawnState(self._game.resolve(after.game, outcome.astype(jnp.int32)), jax.random.key_data(later))
        drawn: DrawnState = optax.tree.where(jnp.any(probabilities > 0), resolved, after)
        return drawn

    def view(self, state: DrawnState) -> View:
        """The visible part of `state`."""
        return self._game.view(state.game)

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
