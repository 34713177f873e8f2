"""The pure core of self-play: each call plays one move in B parallel games."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from podzero.config import ActorsConfig
from podzero.core.protocols import BatchedSearch, Env
from podzero.core.types import Array, EnvState, Exploration, Move, Params, Resignations, SearchResult, View
from podzero.envs import pack_states

NEW_GAMES, OPENINGS = "new_games", "openings"
"""The named scopes of the conditional that starts new games and of the loop over the plies of their openings."""


class StartPool(NamedTuple):
    """B new games, which replace finished ones."""

    games: EnvState
    """B states after their openings."""
    plies: Array
    """`[B]` int32, the length of each opening."""
    used: Array
    """`[]` int32, number of games taken so far, from the front."""


class ResignState(NamedTuple):
    """Which of B games may be resigned, and by whom the others would have been."""

    allowed: Array
    """`[B]` bool."""
    loser: Array
    """`[B]` int32, in games that may not: the player who would have resigned first; -1 if none would have."""


class SelfPlayState(NamedTuple):
    """The state of self-play between two moves."""

    key: Array
    games: EnvState
    """B states, none of them terminal."""
    plies: Array
    """`[B]` int32, plies played in each game, including random openings."""
    starts: StartPool
    resignation: ResignState | None = None
    """None if nobody may resign."""


class MoveKeys(NamedTuple):
    """The PRNG keys of one move."""

    next: Array
    """Key of the state after the move."""
    search: Array
    pool: Array
    """Starts new games."""
    replies: Array
    """For opponents."""
    resignation: Array
    """Decides in which new games players may resign."""


def keys_of(state: SelfPlayState) -> MoveKeys:
    """The keys of the next move."""
    return MoveKeys(*jax.random.split(state.key, len(MoveKeys._fields)))


class Replies(NamedTuple):
    """What opponents would play in B games."""

    action: Array
    """`[B]` int32; arbitrary in games without an opponent."""
    side: Array
    """`[B]` int32, the player whose moves the search chooses; -1 if it chooses those of both."""


class SelfPlayCore:
    """Searches, moves and auto-resets B games. Its public methods are pure functions that can be jitted.

    `move` is `search` and then `play`.
    """

    def __init__(
        self,
        env: Env,
        search: BatchedSearch,
        config: ActorsConfig,
        keep_states: bool = False,
        keep_ownership: bool = False,
    ) -> None:
        """With `keep_states`, moves hold the packed states before them: for reanalysis or replay (`holds_states`). With
        `keep_ownership` they hold the owners of the squares after them, if the game tells these.
        """
        self.env, self._search = env, search
        self._config, self._keep_states, self._keep_ownership = config, keep_states, keep_ownership

    def init(self, key: Array) -> SelfPlayState:
        """Starts B games."""
        key, start_key, pool_key, resign_key = jax.random.split(key, 4)
        first = self._new_pool(start_key)
        resignation = None
        if self._config.resign_value is not None:
            nobody = jnp.full(self._config.games, -1, jnp.int32)
            resignation = ResignState(self._may_resign(resign_key), nobody)
        return SelfPlayState(key, first.games, first.plies, self._new_pool(pool_key), resignation)

    def move(self, params: Params, state: SelfPlayState) -> tuple[SelfPlayState, Move]:
        """Plays one searched move in every game and replaces finished games by new ones."""
        return self.play(state, self.search(params, state))

    def search(self, params: Params, state: SelfPlayState) -> SearchResult:
        """Searches the positions of all games."""
        result = self._search(params, keys_of(state).search, state.games, explore(self._config, state.plies))
        assert result.action.shape == result.value.shape == (self._config.games,)
        return result

    def play(
        self, state: SelfPlayState, result: SearchResult, replies: Replies | None = None
    ) -> tuple[SelfPlayState, Move]:
        """Plays the searched move in every game, or the reply of its opponent, and replaces finished games."""
        batch = self._config.games
        keys = keys_of(state)
        before = jax.vmap(self.env.view)(state.games)
        assert result.policy.shape == before.legal.shape == (batch, self.env.spec.num_actions)
        own, action = None, result.action
        if replies is not None:
            assert replies.action.shape == replies.side.shape == (batch,)
            own = (replies.side < 0) | (replies.side == before.player)
            action = jnp.where(own, result.action, replies.action)
        played = jax.vmap(self.env.step)(state.games, action)
        after = jax.vmap(self.env.view)(played)
        assert after.rewards.shape == (batch, max(2, self.env.spec.players))
        after, resignation, resignations = self._resign(
            keys.resignation, state.resignation, result, before.player, after
        )

        # Replace finished games at once, so that every slot of the next search is in use.
        fresh, fresh_plies, starts = self._take(keys.pool, state.starts, after.done)
        games = jax.vmap(optax.tree.where)(after.done, fresh, played)
        plies = jnp.where(after.done, fresh_plies, state.plies + 1)
        move = Move(
            observation=before.observation,
            legal=before.legal,
            policy=result.policy,
            value=result.value,
            action=action,
            player=before.player,
            rewards=after.rewards,
            done=after.done,
            truncated=after.truncated,
            state=pack_states(state.games) if self._keep_states else None,
            dropped=result.dropped,
            depth=result.depth,
            own=own,
            ownership=after.ownership if self._keep_ownership else None,
            resignations=resignations,
        )
        return SelfPlayState(keys.next, games, plies, starts, resignation), move

    def _resign(
        self, key: Array, current: ResignState | None, result: SearchResult, player: Array, after: View
    ) -> tuple[View, ResignState | None, Resignations | None]:
        """Lets the players who moved resign after their search `result`, or notes that they would.

        Returns:
          The views after the moves, over where a player resigned; who may resign after the next moves; and the
          resignations after these.
        """
        if current is None or self._config.resign_value is None:
            return after, None, None
        hopeless = (result.value <= self._config.resign_value) & ~after.done
        resigned = hopeless & current.allowed
        loser = jnp.where(hopeless & (current.loser < 0), player, current.loser)
        played_on = after.done & (loser >= 0)
        unlost = jnp.take_along_axis(after.rewards, jnp.maximum(loser, 0)[:, None], axis=1)[:, 0] >= 0
        lost = 1.0 - 2.0 * jax.nn.one_hot(player, 2)
        after = after._replace(
            rewards=jnp.where(resigned[:, None], lost, after.rewards),
            done=after.done | resigned,
            truncated=after.truncated | resigned,
        )
        following = ResignState(
            jnp.where(after.done, self._may_resign(key), current.allowed), jnp.where(after.done, jnp.int32(-1), loser)
        )
        return after, following, Resignations(resigned, played_on, played_on & unlost)

    def _may_resign(self, key: Array) -> jax.Array:
        """Draws in which of B games players may resign."""
        return jax.random.bernoulli(key, self._config.resign_fraction, (self._config.games,))

    def _take(self, key: Array, pool: StartPool, needed: Array) -> tuple[EnvState, jax.Array, StartPool]:
        """Takes new games from the pool for the slots `needed` `[B]`; returns states, plies and the pool."""
        assert needed.shape == (self._config.games,)
        # Openings are played for a whole pool when too few games are left. Playing them for the few games that end at
        # each move would take as many batch steps every time.
        count = jnp.sum(needed, dtype=jnp.int32)
        short = pool.used + count > self._config.games
        with jax.named_scope(NEW_GAMES):
            pool = jax.lax.cond(short, self._new_pool, lambda key: pool, key)
        # The i-th needed slot gets the i-th unused game. The other slots get arbitrary games, which the caller ignores.
        index = pool.used + jnp.cumsum(needed, dtype=jnp.int32) - 1
        games, plies = jax.tree.map(lambda leaf: leaf[index], (pool.games, pool.plies))
        return games, plies, pool._replace(used=pool.used + count)

    def _new_pool(self, key: Array) -> StartPool:
        """Starts B games, some of them with random plies: replay also covers positions that good play never reaches."""
        config = self._config
        init_key, share_key, length_key, play_key = jax.random.split(key, 4)
        games = jax.vmap(self.env.init)(jax.random.split(init_key, config.games))
        if config.opening_plies and config.opening_fraction:
            opens = jax.random.bernoulli(share_key, config.opening_fraction, (config.games,))
            length = jax.random.randint(length_key, (config.games,), 1, config.opening_plies + 1)
            games, plies = self._open(play_key, games, jnp.where(opens, length, 0))
        else:
            plies = jnp.zeros(config.games, jnp.int32)
        return StartPool(games, plies, jnp.zeros((), jnp.int32))

    def _open(self, key: Array, games: EnvState, length: Array) -> tuple[EnvState, jax.Array]:
        """Plays up to `length` `[B]` uniformly random plies; returns states and plies played."""
        assert length.shape == (self._config.games,)

        def ply(i: Array, carry: tuple[EnvState, jax.Array]) -> tuple[EnvState, jax.Array]:
            games, plies = carry
            # Equal logits: uniformly random among the legal actions.
            logits = jnp.where(jax.vmap(self.env.view)(games).legal, 0.0, -jnp.inf)
            action = jax.random.categorical(jax.random.fold_in(key, i), logits).astype(jnp.int32)
            after = jax.vmap(self.env.step)(games, action)
            # An opening stops for good before a ply that would end the game: afterwards `plies` is less than i.
            plays = (plies == i) & (i < length) & ~jax.vmap(self.env.view)(after).done
            return jax.vmap(optax.tree.where)(plays, after, games), plies + plays

        start, longest = (games, jnp.zeros_like(length)), jnp.max(length)
        with jax.named_scope(OPENINGS):
            opened: tuple[EnvState, jax.Array] = jax.lax.fori_loop(0, longest, ply, start)
        return opened


def explore(config: ActorsConfig, age: Array) -> Exploration:
    """How B games or episodes explore after `age` `[B]` moves; only the temperature depends on the age."""
    first = True if config.temperature_plies is None else age < config.temperature_plies
    temperature = jnp.broadcast_to(jnp.where(first, config.temperature, 0.0), jnp.shape(age))
    return Exploration(jnp.full(temperature.shape, config.noise, jnp.float32), temperature.astype(jnp.float32))
