"""Simulators on the host behind the `Env` protocol: JAX reaches them through callbacks."""

from __future__ import annotations

import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.deadline import DeadlineThread
from podzero.envs.packing import packed_bytes
from podzero.envs.simulator import Simulator
from podzero.errors import ConfigError, PodzeroError
from podzero.types import Array, EnvSpec, Symmetry, View

MAX_ACTIONS = 2**15
"""Moves are kept as int16."""
_OVER, _PLAY, _ILLEGAL = 0, 1, 2
_SUM_TOLERANCE = 1e-4
"""How far rounding to float32 may carry the sum of two players' rewards away from zero."""


class SimulatorError(PodzeroError, RuntimeError):
    """A game failed while it was played; the message names it, the moves that led there, and what it said."""


@contextmanager
def simulator_errors() -> Iterator[None]:
    """Within, what fails in a computation because a game failed raises the `SimulatorError` that the game's callback
    raised; JAX keeps the text of it alone.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        said = re.search(r"SimulatorError: (.*)", str(error))
        if said is None:
            raise
        raise SimulatorError(said[1]) from error


class HostState(NamedTuple):
    """A position as a complete value: seed and moves say all, and what can be seen of it is at hand."""

    seed: Array
    """`[]` uint32, what the game was reset with."""
    moves: Array
    """`[max_plies]` int16, the actions played; zero from `plies` on."""
    plies: Array
    """`[]` int32, actions played."""
    view: View


class HostEnv:
    """A `Simulator` as an `Env`.

    A step of a whole batch is one callback: for each state the simulator of the position is cloned, stepped and looked
    at. Simulators of recent positions are kept, the least recently used ones are dropped; they are found by seed and
    moves, and a position that was dropped is played again from the nearest one before it. So what is kept decides how
    long a step takes, and nothing else: the callback is a pure function, as JAX asks for.

    Args:
      simulator: the game; it is reset, and from then on only its clones are played.
      name: of the game, for the spec and in messages.
      max_plies: a game that is not over after so many moves is cut off: over, with no reward beyond its last step's.
      reward_scale: what rewards are multiplied by.
      step_timeout_s: how long one callback may take.
      kept: positions whose simulators are kept; a search visits games times simulations of them.

    Raises:
      ConfigError: the game has more actions than fit into a move.
    """

    def __init__(
        self,
        simulator: Simulator,
        name: str,
        *,
        max_plies: int,
        reward_scale: float = 1.0,
        step_timeout_s: float = 60.0,
        kept: int = 32_768,
    ) -> None:
        if simulator.num_actions > MAX_ACTIONS:
            raise ConfigError(f"{name} has {simulator.num_actions} actions; at most {MAX_ACTIONS} are supported")
        simulator.reset(0)
        self._simulator = simulator
        self._name = name
        self._max_plies = max_plies
        self._reward_scale = reward_scale
        self._kept = kept
        self._held: OrderedDict[bytes, Simulator] = OrderedDict()
        self._timeout_s = step_timeout_s
        self._thread = DeadlineThread(name)
        weakref.finalize(self, self._thread.stop)
        self._lock = threading.Lock()
        observation = np.asarray(self._simulator.observation())
        self._form = observation.shape, observation.dtype
        self._spec = EnvSpec(
            name=name,
            observation_shape=observation.shape,
            observation_dtype=str(observation.dtype) if observation.dtype in (np.bool_, np.uint8) else "float32",
            num_actions=int(simulator.num_actions),
            players=int(simulator.players),
        )
        state = HostState(np.zeros((), np.uint32), np.zeros(max_plies, np.int16), np.zeros((), np.int32), self._blank())
        self._spec = self._spec._replace(state_bytes=packed_bytes(state))

    @property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes of observations, and the number of actions."""
        return self._spec

    @property
    def symmetries(self) -> Sequence[Symmetry]:
        """None are known."""
        return ()

    def init(self, key: Array) -> HostState:
        """Starts a game; the key gives its seed."""
        seed = jax.random.bits(jnp.asarray(key), (), jnp.uint32)
        view = jax.pure_callback(self._reset_all, self._blank(), seed, vmap_method="broadcast_all")
        return HostState(seed, jnp.zeros(self._max_plies, jnp.int16), jnp.zeros((), jnp.int32), view)

    def step(self, state: HostState, action: Array) -> HostState:
        """Plays a legal `action`; a state that is over stays as it is, with zero rewards, and calls nobody.

        Raises:
          SimulatorError: within a `jax.errors.JaxRuntimeError`: the action is illegal, or the game failed, or did not
            answer in time.
        """
        action = jnp.asarray(action, jnp.int32)
        over = jnp.asarray(state.view.done)
        order = jnp.where(over, _OVER, jnp.where(jnp.asarray(state.view.legal)[action], _PLAY, _ILLEGAL))
        request = jnp.stack([order.astype(jnp.int32), jnp.asarray(state.plies), action])
        seen = jax.pure_callback(
            self._step_all, self._blank(), state.seed, state.moves, request, vmap_method="broadcast_all"
        )
        played = HostState(
            seed=state.seed,
            moves=jnp.asarray(state.moves).at[state.plies].set(action.astype(jnp.int16)),
            plies=state.plies + 1,
            view=seen,
        )
        stays = state._replace(view=state.view._replace(rewards=jnp.zeros(2, jnp.float32)))
        after: HostState = jax.tree.map(lambda old, new: jnp.where(over, old, new), stays, played)
        return after

    def view(self, state: HostState) -> View:
        """What can be seen of `state`."""
        return state.view

    def _blank(self, *lead: int) -> View:
        """Views `[*lead, ...]` to be filled in."""
        spec = self._spec
        return View(
            observation=np.zeros((*lead, *spec.observation_shape), spec.observation_dtype),
            legal=np.zeros((*lead, spec.num_actions), np.bool_),
            player=np.zeros(lead, np.int32),
            rewards=np.zeros((*lead, 2), np.float32),
            done=np.zeros(lead, np.bool_),
        )

    def _reset_all(self, seed: Array) -> View:
        """Callback: seeds `[...]` to the views of fresh games."""
        seeds = np.asarray(seed)
        keys = [one.tobytes() for one in seeds.ravel()]
        return self._finished(self._in_time(keys), seeds.shape, keys)

    def _step_all(self, seed: Array, moves: Array, request: Array) -> View:
        """Callback: seeds `[...]`, moves `[..., max_plies]`, requests `[..., 3]` to views; zeros where all is over."""
        seeds, history, requests = np.asarray(seed), np.asarray(moves), np.asarray(request)
        orders, plies, actions = requests.reshape(-1, 3).T.tolist()
        starts, played = seeds.tobytes(), history.tobytes()
        width = 2 * self._max_plies
        keys = [
            starts[4 * row : 4 * row + 4] + played[row * width : row * width + 2 * count]
            for row, count in enumerate(plies)
        ]
        wanted: list[bytes | None] = [None] * len(keys)
        for row, order in enumerate(orders):
            if order == _ILLEGAL:
                raise self._fault(keys[row], f"action {actions[row]} is illegal there")
            if order == _PLAY:
                wanted[row] = keys[row] = keys[row] + actions[row].to_bytes(2, _BYTE_ORDER)
        return self._finished(self._in_time(wanted), seeds.shape, keys)

    def _in_time(self, keys: Sequence[bytes | None]) -> View:
        """`_seen(keys)` within the time that there is, for one caller at a time."""
        with self._lock:
            try:
                return self._thread.call(self._seen, keys, self._timeout_s)
            except TimeoutError as error:
                self._held = OrderedDict()  # the thread that was left behind may be at the old ones still
                raise SimulatorError(f"{self._name}: {error} (env.step_timeout_s)") from None

    def _seen(self, keys: Sequence[bytes | None]) -> View:
        """Views `[N, ...]` of positions, zeros where there is None."""
        views = self._blank(len(keys))
        for row, key in enumerate(keys):
            if key is not None:
                self._look(views, row, key, self._at(key))
        return views

    def _at(self, key: bytes) -> Simulator:
        """The simulator of a position: kept, or played from the nearest position before it that is."""
        held = self._held
        found = held.get(key)
        if found is not None:
            held.move_to_end(key)
            return found
        end = len(key) - 2
        while end >= _SEED_BYTES and key[:end] not in held:
            end -= 2
        try:
            if end >= _SEED_BYTES:
                held.move_to_end(key[:end])
                simulator = held[key[:end]].clone()
            else:
                end = _SEED_BYTES
                simulator = self._simulator.clone()
                simulator.reset(int.from_bytes(key[:end], _BYTE_ORDER))
            for at in range(end, len(key), 2):
                simulator.step(int.from_bytes(key[at : at + 2], _BYTE_ORDER))
        except Exception as error:
            raise self._fault(key, f"the game raised {type(error).__name__}: {error}") from error
        held[key] = simulator
        if len(held) > self._kept:
            held.popitem(last=False)
        return simulator

    def _look(self, views: View, row: int, key: bytes, simulator: Simulator) -> None:
        """Fills in one row of the views."""
        try:
            observation = np.asarray(simulator.observation())
            if (observation.shape, observation.dtype) != self._form:
                raise ValueError(
                    f"observation() is {observation.dtype} of shape {list(observation.shape)}, and was "
                    f"{self._form[1]} of shape {list(self._form[0])} at the start"
                )
            views.observation[row] = observation
            rewards = simulator.rewards()
            if len(rewards) != self._spec.players:
                raise ValueError(f"rewards() = {rewards}: expected {self._spec.players} numbers")
            views.rewards[row, : self._spec.players] = rewards
            if simulator.done() or len(key) >= _SEED_BYTES + 2 * self._max_plies:
                views.done[row] = views.legal[row] = True
                return
            legal = list(simulator.legal_actions())
            if not legal:
                raise ValueError("legal_actions() is empty, but done() says that the game is not over")
            if min(legal) < 0 or max(legal) >= self._spec.num_actions:
                raise ValueError(f"legal_actions() = {legal}: expected numbers below {self._spec.num_actions}")
            views.legal[row, legal] = True
            views.player[row] = simulator.player()
        except Exception as error:
            raise self._fault(key, f"the game raised {type(error).__name__}: {error}") from error

    def _finished(self, views: View, shape: tuple[int, ...], keys: list[bytes]) -> View:
        """The views `[*shape, ...]`, rewards scaled, if all numbers can be."""
        if (wrong := (views.player < 0) | (views.player >= self._spec.players)).any():
            row = int(np.argmax(wrong))
            raise self._fault(keys[row], f"player() = {views.player[row]}: expected less than {self._spec.players}")
        if self._spec.players == 2 and (wrong := np.abs(views.rewards.sum(axis=1)) > _SUM_TOLERANCE).any():
            row = int(np.argmax(wrong))
            paid = views.rewards[row].tolist()
            raise self._fault(keys[row], f"rewards() = {paid}: what one of two players wins the other must lose")
        views = views._replace(rewards=views.rewards * np.float32(self._reward_scale))
        for field in ("observation", "rewards"):
            values = getattr(views, field).reshape(len(keys), -1)
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
                raise self._fault(keys[row], f"{field}() holds NaN or infinity")
        return View(*(field.reshape((*shape, *field.shape[1:])) for field in views))

    def _fault(self, key: bytes, what: str) -> SimulatorError:
        seed, moves = int.from_bytes(key[:_SEED_BYTES], _BYTE_ORDER), np.frombuffer(key[_SEED_BYTES:], np.int16)
        return SimulatorError(f"{self._name}: {what} (seed {seed}, after the moves {moves.tolist()})")


_SEED_BYTES = 4
_BYTE_ORDER: Any = "little" if np.little_endian else "big"
