"""Self-play of T moves in one program: games, returns and finished samples stay on an accelerator.

The host only starts programs, and fetches the samples of finished games while the next program runs (Anakin, Hessel et
al. 2021, https://arxiv.org/abs/2104.06272).

`podzero.actors.assembly` computes the same targets game by game on the host. Here B games of different ages share a
history of H rows: a row is one move of all games, and a game occupies consecutive rows of one column.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podzero.actors.core import SelfPlayCore, SelfPlayState
from podzero.config import ActorsConfig, Experiment
from podzero.core.errors import ConfigError
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, Move, Params, Sample, StoredState
from podzero.envs import pack_states

_Later = tuple[jax.Array, jax.Array, jax.Array]
"""The rest of B games: outcome and lambda-return for each player, `[P, B]`, and whether a limit ends it."""


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
    """The targets of all positions of a history, as `podzero.actors.assembly` defines them.

    Where each player has a value (`values`, of `EnvSpec`), targets are outcomes: `td_lambda` is 1.
    """
    rows, batch = plies.done.shape
    players = plies.rewards.shape[1]
    assert plies.value.shape == plies.player.shape == (rows, batch)
    assert players == max(2, values)
    mine = jnp.arange(players)[:, None] == plies.player[:, None]
    value = jnp.where(mine, plies.value[:, None], -plies.value[:, None])
    cut = plies.done & plies.truncated
    # A truncated game has no outcome: the root value of its last position replaces the rewards that would follow.
    rewards = jnp.where(cut[:, None], value, plies.rewards)

    def step(later: _Later, ply: tuple[jax.Array, ...]) -> tuple[_Later, _Later]:
        reward, value, done, cut = ply
        # Backwards in time: `done` keeps what follows in the column, the next game, out of this one.
        outcome, bootstrap, truncated = (jnp.where(done, jnp.zeros_like(leaf), leaf) for leaf in later)
        outcome, returns = reward + discount * outcome, reward + discount * bootstrap
        bootstrap = (1.0 - config.td_lambda) * value + config.td_lambda * returns
        return (outcome, bootstrap, truncated | cut), (outcome, returns, truncated | cut)

    start = (jnp.zeros_like(rewards[0]), jnp.zeros_like(rewards[0]), jnp.zeros_like(cut[0]))
    outcomes, returns, truncated = jax.lax.scan(step, start, (rewards, value, plies.done, cut), reverse=True)[1]
    # From the player to move on, in the order of the players' numbers.
    order = (plies.player[:, None] + jnp.arange(players)[:, None]) % players
    outcomes, returns = (jnp.take_along_axis(each, order, axis=1) for each in (outcomes, returns))
    mixed = config.root_value_weight * plies.value + (1.0 - config.root_value_weight) * returns[:, 0]
    next_action, next_player = (jnp.roll(leaf, -1, axis=0) for leaf in (plies.action, plies.player))
    return HistoryTargets(
        value=jnp.clip(outcomes if values > 1 else mixed, -1.0, 1.0),
        outcome=outcomes[:, 0],
        lambda_return=returns[:, 0],
        truncated=truncated,
        moves_left=jnp.where(truncated, -1, ends(plies.done) - jnp.arange(rows, dtype=jnp.int32)[:, None] + 1),
        # The next action of the same game is a reply only if the opponent takes it.
        reply=jnp.where(~plies.done & (next_player != plies.player), next_action, -1),
    )


def ends(done: jax.Array) -> jax.Array:
    """The row in which the game of each position ends, `[H, B]` int32; H if it is unfinished."""
    rows = jnp.arange(len(done), dtype=jnp.int32)[:, None]
    return jax.lax.cummin(jnp.where(done, rows, len(done)), axis=0, reverse=True)


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
    """Plays T moves of B games on one chip; `init`, `play` and `take` are pure functions that can be jitted."""

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
        """Plays T moves in every game and computes the targets of the games that end."""

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
