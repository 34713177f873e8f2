"""Acting in simulators on accelerators: T steps in one program, and the windows of MuZero, cut on the chip.

As in `device_actor.py`, B episodes share a history of H rows, which is a ring; a row is one position of all. Positions
and windows are those of `EnvironmentActor` and `WindowCutter`: the last position of an episode is searched too.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podzero.actors.clients import Acted, Running, acted
from podzero.actors.core import explore
from podzero.actors.device_actor import Rows, games_last, overwritten
from podzero.actors.environments import Position, window_priorities
from podzero.config import Experiment
from podzero.config.samples import stored_observations, window_like, window_steps, windows_of
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, Params, Window
from podzero.envs import sample_packing
from podzero.search import ModelSearch


class Row(NamedTuple):
    """One position of B episodes, or H rows of them. Episodes are the last axis."""

    position: Position
    """`[..., B]` on every field."""
    reward: Array
    """`[B]` float32, of the step that follows."""
    age: Array
    """`[B]` int32, steps since the beginning of the episode."""
    last: Array
    """`[B]` bool, whether the episode ends here."""
    terminated: Array
    """`[B]` bool, whether it ends in a terminal state."""


class Acting(NamedTuple):
    """B episodes between two steps."""

    key: Array
    games: EnvState
    """B states, some of them over."""
    running: Running


class ActingState(NamedTuple):
    """The state between two programs."""

    acting: Acting
    history: Row
    """`[H, ...]`, the last H positions of all episodes."""
    oldest: jax.Array
    """`[]` int32, the row of the oldest position, which the next program writes first; a multiple of T."""


class Completed(NamedTuple):
    """The windows that a program completed, by their first positions, from the oldest to the newest."""

    until: Array
    """`[H * B]` int32, the number of windows that begin at the positions up to and including this one, row by row."""
    length: Array
    """`[H, B]` int32, `Window.length` of a window that begins here."""
    oldest: Array
    """`[]` int32, the row of the oldest position."""
    key: Array
    """For random actions after the ends of episodes."""


class MuZeroRollout:
    """Takes T steps in B episodes on one chip; `init`, `play` and `take` are pure functions that can be jitted."""

    def __init__(self, env: Env, search: ModelSearch, experiment: Experiment) -> None:
        """Acts in `env` as `search` of the learned model decides."""
        self._env, self._search, self._experiment = env, search, experiment
        self._packing = sample_packing(experiment, env.spec)
        self._steps, self._new = window_steps(experiment), experiment.actors.moves_per_dispatch
        # The window that the first of T new positions completes began K + n rows before. Whole programs fill the ring.
        self._rows = self._new * (1 + math.ceil(self._steps / self._new))

    def init(self, key: Array) -> ActingState:
        """Starts B episodes; their history is empty."""
        key, start_key = jax.random.split(key)
        size, like = self._experiment.actors.games, window_like(self._experiment, self._env.spec, 1)
        games = jax.vmap(self._env.init)(jax.random.split(start_key, size))
        number, no, zero = jnp.zeros(size, jnp.int32), jnp.zeros(size, bool), jnp.zeros(size, jnp.float32)
        fields: Any = [getattr(like, name) for name in Position._fields]
        position = Position(*(jnp.zeros((*field.shape[1:], size), field.dtype) for field in fields))
        # Empty rows are the last of their episodes, so that no window begins there.
        empty = Row(position, reward=zero, age=number, last=~no, terminated=no)
        history = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self._rows, *leaf.shape)), empty)
        return ActingState(Acting(key, games, Running(zero, number)), history, jnp.zeros((), jnp.int32))

    def play(self, params: Params, version: Array, state: ActingState) -> tuple[ActingState, Completed, Acted]:
        """Takes T steps in every episode and finds the windows that they complete."""
        step = partial(self._step, params, version)
        acting, (rows, sums) = jax.lax.scan(step, state.acting, length=self._new)
        history = jax.tree.map(partial(overwritten, at=state.oldest), state.history, rows)
        assert history.last.shape == (self._rows, self._experiment.actors.games)
        oldest = (state.oldest + self._new) % self._rows
        # In the order of time.
        last, age = (jnp.roll(ring, -oldest, axis=0) for ring in (history.last, history.age))
        length, complete = completed(last, age, self._new, self._steps, self._experiment.muzero.stride)
        until = jnp.cumsum(complete.reshape(-1), dtype=jnp.int32)
        key, actions_key = jax.random.split(acting.key)
        found = Completed(until, length, oldest, actions_key)
        total = jax.tree.map(lambda each: jnp.sum(each, axis=0), sums)._replace(samples=until[-1])
        return ActingState(acting._replace(key=key), history, oldest), found, total

    def take(self, history: Row, completed: Completed, index: Array) -> Rows:
        """Packs the windows `index` `[C]` int32 of a program, each in [0, `Acted.samples`), with their priorities."""
        windows = self.windows(history, completed, index)
        return Rows(self._packing.pack(windows, jnp), None, window_priorities(windows, self._experiment, jnp))

    def windows(self, history: Row, completed: Completed, index: Array) -> Window:
        """Cuts the windows `index` `[C]` int32 of a program."""
        # Window i begins at the first position where the count exceeds i.
        at = jnp.searchsorted(completed.until, index, side="right")
        start, slot = jnp.divmod(at, history.last.shape[1])
        length = completed.length[start, slot]
        rows = (completed.oldest + start[:, None] + jnp.arange(self._steps + 1)) % self._rows
        fields = history.position._asdict() | {"reward": history.reward, "terminated": history.terminated}

        def gathered(name: str, count: int) -> jax.Array:
            entries: jax.Array = fields[name][rows[:, :count], ..., slot[:, None]]
            return entries

        return windows_of(
            self._experiment,
            gathered,
            length,
            jnp.take_along_axis(gathered("terminated", self._steps + 1), length[:, None], axis=1)[:, 0],
            self._random_actions(completed.key, index),
            stored_observations(self._experiment),
            jnp,
        )

    def _random_actions(self, key: Array, index: Array) -> jax.Array:
        shape, actions = (self._experiment.muzero.unroll_steps,), self._env.spec.num_actions
        return jax.vmap(lambda i: jax.random.randint(jax.random.fold_in(key, i), shape, 0, actions))(index)

    def _step(self, params: Params, version: Array, acting: Acting, _: None) -> tuple[Acting, tuple[Row, Acted]]:
        """Searches the positions of all episodes and takes one step in each."""
        key, search_key, start_key = jax.random.split(acting.key, 3)
        view, age = jax.vmap(self._env.view)(acting.games), acting.running.age
        exploration = explore(self._experiment.actors, age)
        found = self._search(params, search_key, view.observation, exploration, view.legal)
        # An episode that is over begins anew, without a reward, whatever the action was.
        fresh = jax.vmap(self._env.init)(jax.random.split(start_key, age.shape[0]))
        stepped = jax.vmap(self._env.step)(acting.games, found.action)
        games = jax.vmap(optax.tree.where)(view.done, fresh, stepped)
        after = jax.vmap(self._env.view)(games)
        reward, versions = jnp.asarray(after.rewards)[:, 0], jnp.broadcast_to(version, age.shape)
        running, sums = acted(acting.running, reward, view.done, after.done, 0, jnp)
        position = Position(view.observation, found.action, found.policy, found.candidates, found.value, versions)
        row = Row(position, reward, age, view.done, view.done & ~view.truncated)
        return Acting(key, games, running), (jax.tree.map(games_last, row), sums)


def completed(last: Array, age: Array, new: int, steps: int, stride: int) -> tuple[jax.Array, jax.Array]:
    """`Window.length` of windows that begin at each of H positions, in the order of time, and whether one does that the
    newest `new` positions complete; both `[H, B]`.

    A window is complete K + n = `steps` steps after its first position, or at the `last` position of its episode.
    """
    rows = last.shape[0]

    def before(until: jax.Array, ends: jax.Array) -> tuple[jax.Array, jax.Array]:
        until = jnp.where(ends, 0, until + 1)
        return until, until

    # Steps until the end of the episode; H or more if it is still to come.
    _, until = jax.lax.scan(before, jnp.full(last.shape[1], rows), jnp.asarray(last), reverse=True)
    length = jnp.minimum(until, steps)
    end = jnp.arange(rows)[:, None] + length
    # The program before has given out the windows that ended earlier.
    return length, (until > 0) & (age % stride == 0) & (end >= rows - new) & (end < rows)
