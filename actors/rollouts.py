"""Self-play of T moves in one program: games, returns and finished samples stay on an accelerator.

The arrangement is Anakin (Hessel et al. 2021, Podracer, https://arxiv.org/abs/2104.06272): the host only starts the
programs and takes the samples of finished games away while the next program runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podzero.actors.core import SelfPlayCore, SelfPlayState
from podzero.actors.histories import Plies, Targets, ends, targets_of
from podzero.config import Experiment
from podzero.envs import pack_states
from podzero.errors import ConfigError
from podzero.protocols import Env
from podzero.types import Array, Move, Params, Sample, StoredState


class RolloutState(NamedTuple):
    """The state of self-play between two programs."""

    selfplay: SelfPlayState
    history: Plies
    """`[H, ...]`, the last H plies of all games."""


class Played(NamedTuple):
    """What the host reads after a program."""

    samples: jax.Array
    """`[]` int32, samples of the games that ended, for `RolloutCore.take`: one for each of their searched plies."""
    games: jax.Array
    """`[]` int32, games that ended."""
    dropped: jax.Array | None
    """`[]` int32, legal actions that the searches left out; None without `search.slots`."""
    depth: jax.Array | None
    """`[]` float32, mean of `SearchResult.depth`; None with trees of mctx."""
    abs_root_value: jax.Array
    """`[]` float32, mean over the games in the last move."""


class Finished(NamedTuple):
    """The samples of the games that ended during a program, as they lie in its history."""

    until: jax.Array
    """`[H * B]` int32, the number of samples up to and with each position: ply by ply, game by game."""
    targets: Targets


class RolloutCore:
    """T moves of B games on one chip, as pure functions: `init`, `play` and `take` can be jitted.

    Args:
      core: plays one move.
      env: its game.
      experiment: of which `actors`, `env` and `search` are used.

    Raises:
      ConfigError: the game has no longest game.
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
        self._rows = env.spec.max_plies + self._moves

    def init(self, key: Array) -> RolloutState:
        """Starts B games; their history is empty."""
        state = self._core.init(key)
        games = jax.tree.map(_games_last, state.games)
        size, actions = self._config.games, self._env.spec.num_actions
        zeros, no = jnp.zeros(size, jnp.float32), jnp.zeros(size, bool)
        number = jnp.zeros(size, jnp.int32)
        empty = Plies(
            state=games, policy=jnp.zeros((actions, size)), value=zeros, action=number, player=number,
            rewards=jnp.zeros((2, size)), done=~no, truncated=no, version=number,
        )  # fmt: skip
        history = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self._rows, *leaf.shape)), empty)
        return RolloutState(state, history)

    def play(self, params: Params, version: Array, state: RolloutState) -> tuple[RolloutState, Finished, Played]:
        """Plays T moves in every game, and computes the targets of those that ended.

        Args:
          params: the network's parameters.
          version: their version, `[]` int32.
          state: the games.
        """

        def step(selfplay: SelfPlayState, _: None) -> tuple[SelfPlayState, tuple[Any, ...]]:
            after, move = self._core.move(params, selfplay)
            return after, (_ply(selfplay, move, version), move.dropped, move.depth)

        selfplay, (new, dropped, depth) = jax.lax.scan(step, state.selfplay, length=self._moves)
        assert new.done.shape == (self._moves, self._config.games)
        history = jax.tree.map(lambda old, new: jnp.concatenate([old[self._moves :], new]), state.history, new)
        targets = targets_of(history, self._config, self._discount)
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
        """The samples `index` `[C]` int32 of a program, each from 0 to `Played.samples` - 1.

        Their observations are computed from the states that the history keeps.
        """
        batch = history.done.shape[1]
        position = jnp.searchsorted(finished.until, index, side="right")
        row, game = position // batch, position % batch
        plies, targets = jax.tree.map(lambda leaf: leaf[row, ..., game], (history, finished.targets))
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
    """What the history keeps of a move."""
    fields: dict[str, Any] = {name: getattr(move, name) for name in ("value", "action", "player", "done", "truncated")}
    return Plies(
        state=jax.tree.map(_games_last, before.games),
        policy=jnp.transpose(move.policy),
        rewards=jnp.transpose(move.rewards),
        version=jnp.broadcast_to(version, move.done.shape),
        **fields,
    )


def _games_last(leaf: jax.Array) -> jax.Array:
    return jnp.moveaxis(leaf, 0, -1)
