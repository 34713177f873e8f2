"""Self-play of T moves in one program: games, returns and finished samples stay on an accelerator.

The host only starts programs, and fetches the samples of finished games while the next program runs (Anakin, Hessel et
al. 2021, https://arxiv.org/abs/2104.06272).

`podzero.actors.assembly` computes the same targets game by game on the host. Here B games of different ages share a
history of H rows: a row is one move of all games, and a game occupies consecutive rows of one column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podzero.actors.core import SelfPlayCore, SelfPlayState
from podzero.config import ActorsConfig, Experiment
from podzero.core.errors import ConfigError
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, Move, Params, Sample, StoredState
from podzero.envs import pack_states

_Pair = tuple[jax.Array, jax.Array]


class Plies(NamedTuple):
    """One ply of B games, or the H rows of a history, from which samples are made. Games are the last axis."""

    state: EnvState
    """`[..., B]` on every leaf, before the ply."""
    policy: jax.Array
    """`[A, B]` float32, the search policy."""
    value: jax.Array
    """`[B]` float32, the root value for the player who moved."""
    action: jax.Array
    """`[B]` int32."""
    player: jax.Array
    """`[B]` int32, the player that moved."""
    rewards: jax.Array
    """`[P, B]` float32, each player's reward for the ply."""
    done: jax.Array
    """`[B]` bool, whether the ply ended the game."""
    truncated: jax.Array
    """`[B]` bool, whether a limit ended it."""
    version: jax.Array
    """`[B]` int32, the version of the parameters that searched."""


class HistoryTargets(NamedTuple):
    """The targets of all positions of a history; undefined in unfinished games."""

    value: jax.Array
    """`[H, B]` float32, the value target; or `[H, EnvSpec.values, B]`."""
    outcome: jax.Array
    """`[H, B]` float32, the discounted sum of the rewards that the player to move still gets."""
    lambda_return: jax.Array
    """`[H, B]` float32."""
    truncated: jax.Array
    """`[H, B]` bool, whether a limit ended the game."""
    moves_left: jax.Array
    """`[H, B]` int32, as in `Sample`."""
    reply: jax.Array
    """`[H, B]` int32, as in `Sample`."""


def targets_of(plies: Plies, config: ActorsConfig, discount: float, values: int = 1) -> HistoryTargets:
    """The targets of all positions, as `podzero.actors.assembly` defines them.

    Args:
      plies: `[H, ...]`.
      config: `td_lambda` and `root_value_weight`.
      discount: discount per move.
      values: `EnvSpec.values`.
    """
    rows, batch = plies.done.shape
    assert plies.value.shape == plies.player.shape == (rows, batch)
    assert plies.rewards.shape == (rows, max(2, values), batch)
    truncated = in_game(jnp.logical_or, plies.done & plies.truncated, plies.done)
    if values > 1:
        each = _outcomes_of_all(plies, discount)
        return HistoryTargets(
            jnp.clip(each, -1.0, 1.0), each[:, 0], each[:, 0], truncated, _moves_left(plies), _replies(plies)
        )  # fmt: skip
    mine = jnp.arange(2)[:, None] == plies.player[:, None]
    value = jnp.where(mine, plies.value[:, None], -plies.value[:, None])
    cut = (plies.done & plies.truncated)[:, None]
    # A truncated game has no outcome: the root value of its last position replaces the rewards that would follow.
    rewards = jnp.where(cut, value, plies.rewards)

    def returns(td_lambda: float) -> jax.Array:
        def step(later: jax.Array, ply: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            reward, value, done, mine = ply
            now = reward + discount * jnp.where(done, 0.0, later)
            return (1.0 - td_lambda) * value + td_lambda * now, jnp.sum(jnp.where(mine, now, 0.0), axis=0)

        # Backwards in time; `done` keeps the return of the column's next game out of this one.
        xs = (rewards, value, plies.done, mine)
        own: jax.Array = jax.lax.scan(step, jnp.zeros_like(rewards[0]), xs, reverse=True)[1]
        return own

    outcome, lambda_return = returns(1.0), returns(config.td_lambda)
    mixed = config.root_value_weight * plies.value + (1.0 - config.root_value_weight) * lambda_return
    return HistoryTargets(
        jnp.clip(mixed, -1.0, 1.0), outcome, lambda_return, truncated, _moves_left(plies), _replies(plies)
    )  # fmt: skip


def _outcomes_of_all(plies: Plies, discount: float) -> jax.Array:
    """`outcomes_of_all` of `podzero.actors.assembly`, `[H, P, B]`."""
    count = plies.rewards.shape[1]

    def step(later: jax.Array, ply: tuple[jax.Array, ...]) -> _Pair:
        reward, done, place = ply
        now = reward + discount * jnp.where(done, 0.0, later)
        return now, jnp.take_along_axis(now, place, axis=0)

    place = (plies.player[:, None] + jnp.arange(count)[:, None]) % count
    start, xs = jnp.zeros_like(plies.rewards[0]), (plies.rewards, plies.done, place)
    each: jax.Array = jax.lax.scan(step, start, xs, reverse=True)[1]
    return each


def ends(done: jax.Array) -> jax.Array:
    """The row in which the game of each position ends, `[H, B]` int32; H if it is unfinished."""
    rows = jnp.arange(len(done), dtype=jnp.int32)[:, None]
    return jax.lax.cummin(jnp.where(done, rows, len(done)), axis=0, reverse=True)


def in_game(combine: Callable[[jax.Array, jax.Array], jax.Array], values: jax.Array, done: jax.Array) -> jax.Array:
    """For each position, the values `[H, B]` of its whole game combined; undefined in unfinished games."""
    assert values.shape == done.shape

    def forward(before: _Pair, ply: _Pair) -> tuple[_Pair, jax.Array]:
        (total, ended), (value, done) = before, ply
        total = jnp.where(ended, value, combine(total, value))
        return (total, done), total

    def backward(after: jax.Array, ply: _Pair) -> _Pair:
        total, done = ply
        whole = jnp.where(done, total, after)
        return whole, whole

    # Forwards, each row gets what its game has so far; backwards, the last row's total spreads over the game.
    start = (jnp.zeros_like(values[0]), jnp.ones_like(done[0]))
    running = jax.lax.scan(forward, start, (values, done))[1]
    whole: jax.Array = jax.lax.scan(backward, jnp.zeros_like(values[0]), (running, done), reverse=True)[1]
    return whole


def _moves_left(plies: Plies) -> jax.Array:
    end = ends(plies.done)
    unknown = in_game(jnp.logical_or, plies.done & plies.truncated, plies.done)
    left = end - jnp.arange(len(end), dtype=jnp.int32)[:, None] + 1
    return jnp.where(unknown, -1, left)


def _replies(plies: Plies) -> jax.Array:
    """The next action of the same game if the other player takes it, else -1."""
    action, player = (jnp.roll(leaf, -1, axis=0) for leaf in (plies.action, plies.player))
    replied = ~plies.done & (player != plies.player)
    return jnp.where(replied, action, -1)


class RolloutState(NamedTuple):
    """The state of self-play between two programs."""

    selfplay: SelfPlayState
    history: Plies
    """`[H, ...]`, the last H plies of all games."""


class Played(NamedTuple):
    """The summary of a program, which the host reads."""

    samples: jax.Array
    """`[]` int32, number of samples that `RolloutCore.take` can take: one per searched ply of the games that ended."""
    games: jax.Array
    """`[]` int32, number of games that ended."""
    dropped: jax.Array | None
    """`[]` int32, number of legal actions that the searches left out; None without `search.slots`."""
    depth: jax.Array | None
    """`[]` float32, mean of `SearchResult.depth`; None with trees of mctx."""
    abs_root_value: jax.Array
    """`[]` float32, mean absolute root value of the last move."""


class Finished(NamedTuple):
    """The samples of the games that ended during a program, in the order of its history."""

    until: jax.Array
    """`[H * B]` int32, the number of samples at the positions up to and including this one, row by row."""
    targets: HistoryTargets


class RolloutCore:
    """Plays T moves of B games on one chip; `init`, `play` and `take` are pure functions that can be jitted.

    Args:
      core: plays one move.
      env: the game.
      experiment: the experiment.

    Raises:
      ConfigError: the game has no limit on its length.
    """

    def __init__(self, core: SelfPlayCore, env: Env, experiment: Experiment) -> None:
        if env.spec.max_plies is None:
            raise ConfigError(
                f"actors.inference = device keeps whole games on the chip, and {env.spec.name} has no longest game; "
                "set actors.inference=local"
            )
        self._core = core
        self._env = env
        self._config = experiment.actors
        self._discount = experiment.env.discount
        self._auxiliary = experiment.has_auxiliary_heads
        self._keep_states = experiment.reanalyse.share > 0
        self._moves = experiment.actors.moves_per_dispatch
        # A game that ends with the program's first move may have begun `max_plies` rows before.
        self._rows = env.spec.max_plies + self._moves

    def init(self, key: Array) -> RolloutState:
        """Starts B games; their history is empty."""
        state = self._core.init(key)
        games = jax.tree.map(_games_last, state.games)
        size, actions = self._config.games, self._env.spec.num_actions
        zeros, no = jnp.zeros(size, jnp.float32), jnp.zeros(size, bool)
        number = jnp.zeros(size, jnp.int32)
        # Empty rows are `done`, so that they belong to no running game.
        empty = Plies(
            state=games, policy=jnp.zeros((actions, size)), value=zeros, action=number, player=number,
            rewards=jnp.zeros((max(2, self._env.spec.players), size)), done=~no, truncated=no, version=number,
        )  # fmt: skip
        history = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self._rows, *leaf.shape)), empty)
        return RolloutState(state, history)

    def play(self, params: Params, version: Array, state: RolloutState) -> tuple[RolloutState, Finished, Played]:
        """Plays T moves in every game and computes the targets of the games that end.

        Args:
          params: the network's parameters.
          version: the parameters' version, `[]` int32.
          state: the games and their history.
        """

        def step(selfplay: SelfPlayState, _: None) -> tuple[SelfPlayState, tuple[Any, ...]]:
            after, move = self._core.move(params, selfplay)
            return after, (_ply(selfplay, move, version), move.dropped, move.depth)

        selfplay, (new, dropped, depth) = jax.lax.scan(step, state.selfplay, length=self._moves)
        assert new.done.shape == (self._moves, self._config.games)
        history = jax.tree.map(lambda old, new: jnp.concatenate([old[self._moves :], new]), state.history, new)
        assert history.done.shape == (self._rows, self._config.games)
        targets = targets_of(history, self._config, self._discount, self._env.spec.values)
        # Only the games that end in the newest T rows: the program before has given out those that ended earlier.
        end = ends(history.done)
        over = (end >= self._rows - self._moves) & (end < self._rows)
        until = jnp.cumsum(over.reshape(-1), dtype=jnp.int32)
        played = Played(
            samples=until[-1],
            games=jnp.sum(new.done, dtype=jnp.int32),
            dropped=None if dropped is None else jnp.sum(dropped),
            depth=None if depth is None else jnp.mean(depth),
            abs_root_value=jnp.mean(jnp.abs(new.value[-1])),
        )
        return RolloutState(selfplay, history), Finished(until, targets), played

    def take(self, history: Plies, finished: Finished, index: Array) -> tuple[Sample, StoredState | None]:
        """Gathers the samples `index` `[C]` int32 of a program, each in [0, `Played.samples`)."""
        batch = history.done.shape[1]
        # Sample i lies at the first position where the count exceeds i.
        position = jnp.searchsorted(finished.until, index, side="right")
        row, game = position // batch, position % batch
        plies, targets = jax.tree.map(lambda leaf: leaf[row, ..., game], (history, finished.targets))
        # The history keeps states, from which observations are computed: states are smaller.
        view = jax.vmap(self._env.view)(plies.state)
        sample = Sample(view.observation, view.legal, plies.policy, targets.value, plies.version)
        if self._auxiliary:
            outcome = jnp.where(targets.truncated, -1, jnp.sign(targets.outcome).astype(jnp.int32) + 1)
            sample = sample._replace(outcome=outcome, moves_left=targets.moves_left, reply=targets.reply)
        if not self._keep_states:
            return sample, None
        packed = pack_states(plies.state)
        return sample, StoredState(packed, targets.outcome, targets.lambda_return, targets.truncated, plies.version)


def _ply(before: SelfPlayState, move: Move, version: Array) -> Plies:
    """One move as a row of the history."""
    fields: dict[str, Any] = {name: getattr(move, name) for name in ("value", "action", "player", "done", "truncated")}
    return Plies(
        state=jax.tree.map(_games_last, before.games),
        policy=jnp.transpose(move.policy),
        rewards=jnp.transpose(move.rewards),
        version=jnp.broadcast_to(version, move.done.shape),
        **fields,
    )


def _games_last(leaf: jax.Array) -> jax.Array:
    # A TPU pads the minor dimension to 128 lanes: games fill it, the few columns of a board would not.
    return jnp.moveaxis(leaf, 0, -1)
