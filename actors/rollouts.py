"""Self-play of T moves in one program: games, returns and finished samples stay on an accelerator.

The host only starts programs, and fetches the samples of finished games while the next program runs (Anakin, Hessel et
al. 2021, https://arxiv.org/abs/2104.06272).

B games of different ages share a history of H rows: a row is one move of all games, and a game occupies consecutive
rows of one column.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podzero.actors.core import SelfPlayCore, SelfPlayState
from podzero.actors.targets import Plies, Targets, ends, outcome_classes, targets_of
from podzero.config import Experiment
from podzero.core.errors import ConfigError
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, Move, Params, Sample, StoredState
from podzero.envs import pack_states


class History(NamedTuple):
    """One ply of B games, or H rows of plies, from which samples are made. Games are the last axis."""

    state: EnvState
    """`[..., B]` on every leaf, before the ply."""
    policy: jax.Array
    """`[A, B]` float32, the search policy."""
    version: jax.Array
    """`[B]` int32, the version of the parameters that searched."""
    plies: Plies


class RolloutState(NamedTuple):
    """The state of self-play between two programs."""

    selfplay: SelfPlayState
    history: History
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
    targets: Targets


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
        rewards = jnp.zeros((max(2, self._env.spec.players), size))
        # Empty rows are `done`, so that they belong to no running game.
        plies = Plies(value=zeros, action=number, player=number, rewards=rewards, done=~no, truncated=no)
        empty = History(games, jnp.zeros((actions, size)), number, plies)
        history = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self._rows, *leaf.shape)), empty)
        return RolloutState(state, history)

    def play(self, params: Params, version: Array, state: RolloutState) -> tuple[RolloutState, Finished, Played]:
        """Plays T moves in every game and computes the targets of the games that end."""

        def step(selfplay: SelfPlayState, _: None) -> tuple[SelfPlayState, tuple[Any, ...]]:
            after, move = self._core.move(params, selfplay)
            return after, (_row(selfplay, move, version), move.dropped, move.depth)

        selfplay, (new, dropped, depth) = jax.lax.scan(step, state.selfplay, length=self._moves)
        assert new.plies.done.shape == (self._moves, self._config.games)
        history = jax.tree.map(lambda old, new: jnp.concatenate([old[self._moves :], new]), state.history, new)
        assert history.plies.done.shape == (self._rows, self._config.games)
        targets = targets_of(history.plies, self._config, self._discount, self._env.spec.values)
        # Only the games that end in the newest T rows: the program before has given out those that ended earlier.
        end, _ = ends(history.plies)
        over = (end >= self._rows - self._moves) & (end < self._rows)
        until = jnp.cumsum(over.reshape(-1), dtype=jnp.int32)
        played = Played(
            samples=until[-1],
            games=jnp.sum(new.plies.done, dtype=jnp.int32),
            dropped=None if dropped is None else jnp.sum(dropped),
            depth=None if depth is None else jnp.mean(depth),
            abs_root_value=jnp.mean(jnp.abs(new.plies.value[-1])),
        )
        return RolloutState(selfplay, history), Finished(until, targets), played

    def take(self, history: History, finished: Finished, index: Array) -> tuple[Sample, StoredState | None]:
        """Gathers the samples `index` `[C]` int32 of a program, each in [0, `Played.samples`)."""
        batch = history.plies.done.shape[1]
        # Sample i lies at the first position where the count exceeds i.
        position = jnp.searchsorted(finished.until, index, side="right")
        row, game = position // batch, position % batch
        past, targets = jax.tree.map(lambda leaf: leaf[row, ..., game], (history, finished.targets))
        # The history keeps states, from which observations are computed: states are smaller.
        view = jax.vmap(self._env.view)(past.state)
        sample = Sample(view.observation, view.legal, past.policy, targets.value, past.version)
        if self._auxiliary:
            outcome = outcome_classes(targets.outcome, targets.truncated, jnp)
            sample = sample._replace(outcome=outcome, moves_left=targets.moves_left, reply=targets.reply)
        if not self._keep_states:
            return sample, None
        packed = pack_states(past.state)
        return sample, StoredState(packed, targets.outcome, targets.lambda_return, targets.truncated, past.version)


def _row(before: SelfPlayState, move: Move, version: Array) -> History:
    """One move as a row of the history."""
    fields: dict[str, Any] = {name: getattr(move, name) for name in Plies._fields}
    return History(
        state=jax.tree.map(_games_last, before.games),
        policy=jnp.transpose(move.policy),
        version=jnp.broadcast_to(version, move.done.shape),
        plies=Plies(**fields | {"rewards": jnp.transpose(move.rewards)}),
    )


def _games_last(leaf: jax.Array) -> jax.Array:
    # A TPU pads the minor dimension to 128 lanes: games fill it, the few columns of a board would not.
    return jnp.moveaxis(leaf, 0, -1)
