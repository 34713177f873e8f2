"""The pure core of self-play: each call plays one move in B parallel games."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from podzero.actors.exploration import explore
from podzero.config import ActorsConfig
from podzero.envs import pack_states
from podzero.errors import ConfigError
from podzero.protocols import Env, Search
from podzero.types import Array, EnvState, Move, Params


class StartPool(NamedTuple):
    """B games that have begun, with which finished games are replaced."""

    games: EnvState
    """B states after their openings."""
    plies: Array
    """`[B]` int32, random plies of each opening."""
    used: Array
    """`[]` int32, games that have been taken from the front."""


class SelfPlayState(NamedTuple):
    """The state of self-play between two moves."""

    key: Array
    """PRNG key."""
    games: EnvState
    """B states, none of them is over."""
    plies: Array
    """`[B]` int32, plies played in each game, including random openings."""
    starts: StartPool
    plays_on: Array
    """`[B]` bool, whether nobody resigns in the game."""


class SelfPlayCore:
    """Search, move and auto-reset of B games as pure functions: `init` and `move` can be jitted."""

    def __init__(
        self,
        env: Env,
        search: Search,
        config: ActorsConfig,
        others: Mapping[int, Search] | None = None,
        keep_states: bool = False,
    ) -> None:
        """`move` uses `search`, or one of the `others` by its number of simulations. With `keep_states` each `Move` has
        the packed states before the move, which reanalysis needs.

        Raises:
          ConfigError: `actors.resignation` in a game of one player.
        """
        self._env = env
        self._search = search
        self._others = others or {}
        self._config = config
        self._keep_states = keep_states
        if config.resignation and env.spec.players == 1:
            raise ConfigError(f"actors.resignation: {env.spec.name} has one player, who cannot resign; set it to false")

    def init(self, key: Array) -> SelfPlayState:
        """Starts B games."""
        key, start_key, pool_key, played_on_key = jax.random.split(key, 4)
        first = self._new_pool(start_key)
        plays_on = self._draw_played_on(played_on_key)
        return SelfPlayState(key, first.games, first.plies, self._new_pool(pool_key), plays_on)

    def move(
        self,
        params: Params,
        state: SelfPlayState,
        simulations: int | None = None,
        fast: bool = False,
        resign_at: Array | float = -jnp.inf,
    ) -> tuple[SelfPlayState, Move]:
        """Plays one searched move in every game; finished games are replaced by new ones.

        Args:
          params: of the network.
          state: of the games.
          simulations: of the search, one of the `others`; by default `search` itself. Static for `jit`, as is `fast`.
          fast: the move has no noise where the choice is greedy, its positions are not learned from, nobody resigns.
          resign_at: root value, `[]` float32, at or below which a player resigns, unless the game is played on.
        """
        key, search_key, pool_key, played_on_key = jax.random.split(state.key, 4)
        exploration = explore(self._config, state.plies)
        before = jax.vmap(self._env.view)(state.games)
        if fast:
            noise = jnp.where(exploration.temperature > 0, exploration.noise, 0.0)  # Gumbel's choice draws from it
            exploration = exploration._replace(noise=noise)
        search = self._search if simulations is None else self._others[simulations]
        result = search(params, search_key, state.games, exploration)
        played = jax.vmap(self._env.step)(state.games, result.action)
        after = jax.vmap(self._env.view)(played)
        resigned = (result.value <= resign_at) & ~state.plays_on & (not fast)
        loses = jnp.where(jnp.arange(2) == before.player[:, None], -1.0, 1.0)
        done = after.done | resigned

        fresh, fresh_plies, starts = self._take(pool_key, state.starts, done)
        games = jax.vmap(optax.tree.where)(done, fresh, played)
        plies = jnp.where(done, fresh_plies, state.plies + 1)
        plays_on = jnp.where(done, self._draw_played_on(played_on_key), state.plays_on)
        move = Move(
            observation=before.observation,
            legal=before.legal,
            policy=result.policy,
            value=result.value,
            action=result.action,
            player=before.player,
            rewards=jnp.where(resigned[:, None], loses, after.rewards),
            done=done,
            truncated=after.truncated & ~resigned,
            surprise=result.surprise,
            recorded=jnp.full(done.shape, not fast),
            state=pack_states(state.games) if self._keep_states else None,
            resigned=resigned if self._config.resignation else None,
            plays_on=state.plays_on if self._config.resignation else None,
            dropped=result.dropped,
            depth=result.depth,
        )
        return SelfPlayState(key, games, plies, starts, plays_on), move

    def _draw_played_on(self, key: Array) -> jax.Array:
        """In which of B new games nobody resigns, `[B]` bool: in all of them without resignation."""
        config = self._config
        if not config.resignation:
            return jnp.ones(config.games, bool)
        return jax.random.bernoulli(key, config.played_on_fraction, (config.games,))

    def _take(self, key: Array, pool: StartPool, needed: Array) -> tuple[EnvState, jax.Array, StartPool]:
        """New games, with their plies, for the slots `needed` `[B]`, and the pool without them.

        The openings of a whole pool are played at once, when the old one has too few games left: playing those of the
        few games that end at each move took as many batch steps each time.
        """
        count = jnp.sum(needed, dtype=jnp.int32)
        short = pool.used + count > self._config.games
        pool = jax.lax.cond(short, self._new_pool, lambda key: pool, key)
        index = pool.used + jnp.cumsum(needed, dtype=jnp.int32) - 1
        games, plies = jax.tree.map(lambda leaf: leaf[index], (pool.games, pool.plies))
        return games, plies, pool._replace(used=pool.used + count)

    def _new_pool(self, key: Array) -> StartPool:
        games, plies = self._start(key)
        return StartPool(games, plies, jnp.zeros((), jnp.int32))

    def _start(self, key: Array) -> tuple[EnvState, jax.Array]:
        """B new games after their openings, and the number of random plies played in each.

        A fraction of the games opens with uniformly random plies, so that replay covers positions that good play never
        reaches. An opening stops before a ply that would end its game.
        """
        config = self._config
        init_key, share_key, length_key, play_key = jax.random.split(key, 4)
        games = jax.vmap(self._env.init)(jax.random.split(init_key, config.games))
        if not config.opening_plies or not config.opening_fraction:
            return games, jnp.zeros(config.games, jnp.int32)
        opens = jax.random.bernoulli(share_key, config.opening_fraction, (config.games,))
        length = jax.random.randint(length_key, (config.games,), 1, config.opening_plies + 1)
        return self._open(play_key, games, jnp.where(opens, length, 0))

    def _open(self, key: Array, games: EnvState, length: Array) -> tuple[EnvState, jax.Array]:
        """Plays up to `length` `[B]` uniformly random plies; returns the states and the plies played."""

        def ply(i: Array, carry: tuple[EnvState, jax.Array]) -> tuple[EnvState, jax.Array]:
            games, plies = carry
            logits = jnp.where(jax.vmap(self._env.view)(games).legal, 0.0, -jnp.inf)
            action = jax.random.categorical(jax.random.fold_in(key, i), logits).astype(jnp.int32)
            after = jax.vmap(self._env.step)(games, action)
            goes_on = (plies == i) & (i < length) & ~jax.vmap(self._env.view)(after).done
            return jax.vmap(optax.tree.where)(goes_on, after, games), plies + goes_on

        opened: tuple[EnvState, jax.Array] = jax.lax.fori_loop(0, jnp.max(length), ply, (games, jnp.zeros_like(length)))
        return opened
