"""Self-play on accelerators: T moves in one program; games, returns and finished samples stay on the chip.

The host only starts programs, and fetches the samples of finished games while the next program runs (Anakin, Hessel et
al. 2021, https://arxiv.org/abs/2104.06272). B games of different ages share a history of H rows: a row is one move of
all games, and a game occupies consecutive rows of one column. The history is a ring: a program writes its T moves in
place over the T oldest rows.

Each chip plays its own games: device arrays of the loop have a leading chip axis.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podzero.actors.assembly import concatenated, rows_of
from podzero.actors.clients import ActorLoop, EpisodeMetrics, Played, SelfPlayMetrics
from podzero.actors.core import SelfPlayCore, SelfPlayState
from podzero.actors.targets import Plies, Targets, ends, outcome_classes, owner_classes, targets_of
from podzero.config import Experiment
from podzero.core.errors import ConfigError
from podzero.core.types import Array, EnvState, Move, Params, Sample, StoredState
from podzero.envs import pack_states, sample_packing, state_packing
from podzero.inference import FoldedSource


class Rows(NamedTuple):
    """Packed samples (`podzero.envs.SamplePacking`), as `ActorClients.write` takes them."""

    samples: Any
    """`[C, row_bytes]` uint8."""
    states: Any = None
    """The same positions as stored for reanalysis, packed too; None without it."""
    priorities: Any = None
    """`[C]` float32, of windows; None for positions."""


class History(NamedTuple):
    """One ply of B games, or H rows of plies, from which samples are made. Games are the last axis."""

    state: EnvState
    """`[..., B]` on every leaf, before the ply."""
    policy: jax.Array
    """`[K, B]` float16, what samples hold of the search policy; see `SamplePacking.kept`."""
    actions: jax.Array | None
    """`[K, B]`, the actions of these probabilities; None if they are all."""
    version: jax.Array
    """`[B]` int32, the version of the parameters that searched."""
    plies: Plies


class RolloutState(NamedTuple):
    """The state of self-play between two programs."""

    selfplay: SelfPlayState
    history: History
    """`[H, ...]`, the last H plies of all games."""
    oldest: jax.Array
    """`[]` int32, the row of the oldest ply, which the next program writes first; a multiple of T."""


class Finished(NamedTuple):
    """The samples of the games that ended during a program, from the oldest ply to the newest."""

    until: jax.Array
    """`[H * B]` int32, the number of samples at the positions up to and including this one, ply by ply."""
    targets: Targets
    """`[H, ...]`, from the oldest ply on."""
    oldest: jax.Array
    """`[]` int32, the row of the oldest ply."""


class RolloutCore:
    """Plays T moves of B games on one chip; `init`, `play` and `take` are pure functions that can be jitted."""

    def __init__(self, core: SelfPlayCore, experiment: Experiment) -> None:
        self._core, self._env, spec = core, core.env, core.env.spec
        if spec.max_plies is None:
            raise ConfigError(
                f"actors.inference = device keeps whole games on the chip, and {spec.name} has no longest game; "
                "set actors.inference=local"
            )
        self._experiment = experiment
        self._packing = sample_packing(experiment, spec)
        self._state_packing = state_packing(experiment, spec)
        self._moves = experiment.actors.moves_per_dispatch
        # A game that ends with the program's first move may have begun `max_plies` rows before. Whole programs fill the
        # ring, so that the rows of one are never divided between its end and its beginning.
        self._rows = self._moves * (1 + math.ceil(spec.max_plies / self._moves))

    def init(self, key: Array) -> RolloutState:
        """Starts B games; their history is empty."""
        state = self._core.init(key)
        games = jax.tree.map(games_last, state.games)
        size = self._experiment.actors.games
        zeros, no = jnp.zeros(size, jnp.float32), jnp.zeros(size, bool)
        number = jnp.zeros(size, jnp.int32)
        rewards = jnp.zeros((max(2, self._env.spec.players), size))
        # Empty rows are `done`, so that they belong to no running game.
        plies = Plies(value=zeros, action=number, player=number, rewards=rewards, done=~no, truncated=no)
        policy, actions = self._policy(jnp.zeros((size, self._env.spec.num_actions)))
        empty = History(games, policy, actions, number, plies)
        history = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self._rows, *leaf.shape)), empty)
        return RolloutState(state, history, jnp.zeros((), jnp.int32))

    def play(self, params: Params, version: Array, state: RolloutState) -> tuple[RolloutState, Finished, Played]:
        """Plays T moves in every game and computes the targets of the games that end."""

        def step(selfplay: SelfPlayState, _: None) -> tuple[SelfPlayState, tuple[Any, ...]]:
            after, move = self._core.move(params, selfplay)
            return after, (self._row(selfplay, move, version), move.dropped, move.depth, move.resignations)

        selfplay, (new, dropped, depth, resignations) = jax.lax.scan(step, state.selfplay, length=self._moves)
        assert new.plies.done.shape == (self._moves, self._experiment.actors.games)
        history = jax.tree.map(partial(overwritten, at=state.oldest), state.history, new)
        assert history.plies.done.shape == (self._rows, self._experiment.actors.games)
        oldest = (state.oldest + self._moves) % self._rows
        # Targets follow the order of time. The plies without states and policies are small enough to be copied for it.
        plies = jax.tree.map(lambda ring: jnp.roll(ring, -oldest, axis=0), history.plies)
        targets = targets_of(plies, self._experiment.actors, self._experiment.env.discount, self._env.spec.values)
        # Only the games that end in the newest T rows: the program before has given out those that ended earlier.
        end, _ = ends(plies)
        over = (end >= self._rows - self._moves) & (end < self._rows)
        until = jnp.cumsum(over.reshape(-1), dtype=jnp.int32)
        played = Played(
            samples=until[-1],
            games=jnp.sum(new.plies.done, dtype=jnp.int32),
            dropped=None if dropped is None else jnp.sum(dropped),
            depth=None if depth is None else jnp.mean(depth),
            abs_root_value=jnp.mean(jnp.abs(new.plies.value[-1])),
            resignations=jax.tree.map(jnp.sum, resignations),
        )
        return RolloutState(selfplay, history, oldest), Finished(until, targets, oldest), played

    def take(self, history: History, finished: Finished, index: Array) -> Rows:
        """Packs the samples `index` `[C]` int32 of a program, each in [0, `Played.samples`)."""
        batch = history.plies.done.shape[1]
        # Sample i lies at the first position where the count exceeds i.
        position = jnp.searchsorted(finished.until, index, side="right")
        ply, game = position // batch, position % batch
        row = (finished.oldest + ply) % self._rows
        past = jax.tree.map(lambda leaf: leaf[row, ..., game], history)
        targets = jax.tree.map(lambda leaf: leaf[ply, ..., game], finished.targets)
        # The history keeps states, from which observations are computed: states are smaller.
        view, share = jax.vmap(self._env.view)(past.state), self._experiment.reanalyse.share
        state: Any = pack_states(past.state) if share or self._packing.holds_states else None
        sample = Sample(view.observation, view.legal, past.policy, targets.value, past.version, state=state)
        if self._experiment.has_auxiliary_heads:
            outcome = outcome_classes(targets.outcome, targets.truncated, jnp)
            sample = sample._replace(outcome=outcome, moves_left=targets.moves_left, reply=targets.reply)
            if self._experiment.predicts_ownership:
                # Where a limit ended the game, the owners are unknown, and any row will do.
                end = (row + jnp.maximum(targets.moves_left, 1) - 1) % self._rows
                owned = owner_classes(self._ownership(history, end, game), past.plies.player, targets.truncated, jnp)
                sample = sample._replace(ownership=owned)
        rows = self._packing.pack(sample, jnp, past.actions)
        if not share:
            return Rows(rows)
        kept = (targets.outcome, targets.lambda_return, targets.truncated)
        return Rows(rows, self._state_packing.pack(StoredState(state, *kept, past.version), jnp))

    def _ownership(self, history: History, end: jax.Array, game: jax.Array) -> Array:
        """`View.ownership` `[C, 2, S]` at the ends of C games, after the plies in the rows `end`."""
        last = jax.tree.map(lambda leaf: leaf[end, ..., game], (history.state, history.plies.action))
        after = jax.vmap(self._env.view)(jax.vmap(self._env.step)(*last))
        assert after.ownership is not None
        return after.ownership

    def _row(self, before: SelfPlayState, move: Move, version: Array) -> History:
        """One move as a row of the history."""
        policy, actions = self._policy(move.policy)
        fields: dict[str, Any] = {name: getattr(move, name) for name in Plies._fields}
        return History(
            state=jax.tree.map(games_last, before.games),
            policy=policy,
            actions=actions,
            version=jnp.broadcast_to(version, move.done.shape),
            plies=Plies(**fields | {"rewards": jnp.transpose(move.rewards)}),
        )

    def _policy(self, policy: Array) -> tuple[jax.Array, jax.Array | None]:
        """The parts of policies `[B, A]` that samples hold."""
        kept: tuple[jax.Array, jax.Array | None] = jax.tree.map(jnp.transpose, self._packing.kept(policy, jnp))
        return kept


def overwritten(ring: jax.Array, rows: jax.Array, at: jax.Array) -> jax.Array:
    """The ring `[H, ...]` with `rows` `[T, ...]` from row `at` on."""
    return jax.lax.dynamic_update_slice_in_dim(ring, rows, at, axis=0)


def games_last(leaf: jax.Array) -> jax.Array:
    """The first axis as the last."""
    # A TPU pads the minor dimension to 128 lanes: games fill it, the few columns of a board would not.
    return jnp.moveaxis(leaf, 0, -1)


_spec: Any = PartitionSpec
_EACH, _ALL = _spec("chips"), _spec()
_CHIPS = 2**20
"""Offset of the chip numbers that are folded into the key."""
_POOL = 4_096
"""Largest number of samples that stay behind in the pool."""


def chip_keys(key: jax.Array, count: int) -> jax.Array:
    """One key for each chip. The first is `key` itself, so that the first chip plays as a single chip would."""
    # Without the offset these could be the keys into which the first chip splits its own.
    return jnp.stack([key, *(jax.random.fold_in(key, _CHIPS + chip) for chip in range(1, count))])


class ChipRollouts:
    """Runs the programs of one chip on several local chips at once."""

    def __init__(self, core: Any, devices: Sequence[jax.Device], piece: int) -> None:
        """`core` is a `RolloutCore`, or a `MuZeroRollout`; a program takes `piece` samples from each chip."""
        self._mesh = Mesh(np.array(devices), ("chips",))
        self._piece = piece
        self._init = jax.jit(self._on_each(core.init, _EACH))
        self._play = jax.jit(self._on_each(core.play, _ALL, _ALL, _EACH), donate_argnums=2)
        self._take = jax.jit(self._on_each(core.take, _EACH, _EACH, _EACH))

    def init(self, key: jax.Array) -> Any:
        """Starts all games."""
        keys = chip_keys(key, self._mesh.size)
        return self._init(jax.device_put(keys, NamedSharding(self._mesh, _EACH)))

    def put(self, params: Params) -> Params:
        """Copies the parameters to all chips."""
        return jax.device_put(params, NamedSharding(self._mesh, _ALL))

    def play(self, params: Params, version: int, state: Any) -> tuple[Any, Any, Any]:
        """Starts `play`, to which `state` is donated."""
        played: tuple[Any, Any, Any] = self._play(params, self.put(np.int32(version)), state)
        return played

    def take(self, state: Any, finished: Any, counts: npt.NDArray[np.int32]) -> list[Any]:
        """Starts to take `counts` samples of each chip; `finish` waits for them. Call it before `state` is donated."""
        # Samples are taken in pieces of one padded size, so that the program compiles once; `finish` cuts the padding.
        pieces = []
        for start in range(0, max(counts), self._piece):
            lengths = np.clip(counts - start, 0, self._piece)
            index = np.arange(start, start + self._piece, dtype=np.int32)
            padded = np.where(np.arange(self._piece) < lengths[:, None], index, np.int32(0))
            placed = jax.device_put(padded, NamedSharding(self._mesh, _EACH))
            pieces.append((self._take(state.history, finished, placed), lengths))
        return pieces

    def _on_each(self, function: Callable[..., Any], *specs: PartitionSpec) -> Any:
        """Maps a program of one chip over all; each argument is split by chip (`_EACH`) or shared (`_ALL`)."""

        # Inside the map a chip's own arrays still have the chip axis, of size 1.
        def mapped(*values: Any) -> Any:
            own = [
                jax.tree.map(lambda leaf: leaf[0], value) if spec == _EACH else value
                for value, spec in zip(values, specs, strict=True)
            ]
            return jax.tree.map(lambda leaf: leaf[None], function(*own))

        return jax.shard_map(mapped, mesh=self._mesh, in_specs=specs, out_specs=_EACH, check_vma=False)


def finish(pieces: list[Any]) -> Rows | None:
    """Waits for the samples of `ChipRollouts.take`; None if there are none."""
    rows: list[Rows] = []
    for taken, lengths in pieces:
        host = jax.device_get(taken)
        rows += [
            jax.tree.map(lambda leaf, chip=chip, length=length: leaf[chip, :length], host)
            for chip, length in enumerate(lengths)
            if length
        ]
    return concatenated(rows) if rows else None


@dataclass(eq=False, kw_only=True)
class DeviceActor(ActorLoop):
    """Plays `actors.games` games on the chips of this process and writes the finished ones to replay."""

    seed: int
    """It differs between actors and between restarts."""
    chips: ChipRollouts

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self.clients = self.clients._replace(source=FoldedSource(self.clients.source, self.chips.put))
        self._pool: Rows | None = None
        # Samples stay behind, so that an item mixes games of several programs. With at most `replay.min_size` of them,
        # the pool delays the start of training no longer than replay does.
        self._held = min(_POOL, self.experiment.replay.min_size) if self.experiment.replay.samples_per_item > 1 else 0

    def run(self) -> None:
        """Plays until `stop` is called."""
        metrics: Any = (EpisodeMetrics if self.experiment.learns_model else SelfPlayMetrics)(self.experiment)
        moves = self.experiment.actors.moves_per_dispatch
        state = self.chips.init(jax.random.fold_in(jax.random.key(self.seed), 0))
        # A thread writes the samples of a program while the chips execute the next one. Dispatch alone would not do: on
        # GPUs it returns only when the program has ended, since the host decides there whether a loop goes on.
        with ThreadPoolExecutor(1, "write-samples") as thread:
            writing = thread.submit(self._write, [], self._held)
            for version, params in self.newest_params():
                if self.report_due:
                    self.report(metrics.flush())
                with self.clock("search"):
                    began = time.perf_counter()
                    state, finished, played = self.chips.play(params, version, state)
                    host = jax.device_get(played)
                    if self.clients.executed is not None:
                        self.clients.executed(began)
                    pieces = self.chips.take(state, finished, host.samples)
                metrics.add(host, version, moves)
                with self.clock("write"):
                    writing.result()
                writing = thread.submit(self._write, pieces, self._held)
            writing.result()
        self._write([], held=0)
        self.report(metrics.flush())

    def _write(self, pieces: list[Any], held: int) -> None:
        """Adds the samples of `ChipRollouts.take` to the pool, and writes random full items; `held` samples remain."""
        parts = [part for part in (self._pool, finish(pieces)) if part is not None]
        if not parts:
            return
        pool = concatenated(parts)
        size = len(pool.samples)
        excess = max(0, size - held)
        full = excess - excess % self.experiment.replay.samples_per_item
        if full:
            drawn = self._random.permutation(size)
            # At the end nobody trains any more, so that no room would ever come.
            self.clients.write(*rows_of(pool, drawn[:full]), stopping=self.stopping)
            pool = rows_of(pool, drawn[full:])
        self._pool = pool
