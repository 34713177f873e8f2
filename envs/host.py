"""Simulators on the host as an `Env`, which JAX calls through callbacks."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from sys import byteorder
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.errors import ConfigError
from podzero.core.types import Array, EnvSpec, Symmetry, View
from podzero.envs.faults import DeadlineThread, SimulatorError, recorded_errors
from podzero.envs.packing import packed_bytes
from podzero.envs.simulator import NamedSimulator, Simulator

MAX_ACTIONS = 2**15
"""The largest number of actions: moves are stored as int16."""
# What a callback does with a state: nothing, play the action, or raise an error.
_OVER, _PLAY, _ILLEGAL = 0, 1, 2
_SEED_BYTES = 4
_SUM_TOLERANCE = 1e-4
"""How far two players' rewards, rounded to float32, may be from a zero sum."""


class HostState(NamedTuple):
    """A position as a value: the seed and the moves that determine it, and its view."""

    seed: Array
    """`[]` uint32, the seed given to `reset`."""
    moves: Array
    """`[max_plies]` int16, the actions played; zeros after the first `plies`."""
    plies: Array
    """`[]` int32, number of actions played."""
    view: View


class HostEnv:
    """A `Simulator` as an `Env`.

    A step of a whole batch is one callback, which steps a clone of each position's simulator. The simulators of recent
    positions are cached by seed and moves; another one is rebuilt by replaying the moves since the nearest cached one.
    The cache changes only how long a step takes: the callback is a pure function, as JAX requires.

    Only clones of the simulator are played. `max_plies` truncates games, `step_timeout_s` limits each callback, and
    `cache_size` is the number of cached positions, of which a search visits games times simulations.
    """

    symmetries: Sequence[Symmetry] = ()
    """Empty: a `Simulator` declares no symmetries."""

    def __init__(
        self,
        simulator: Simulator,
        name: str,
        *,
        max_plies: int,
        reward_scale: float = 1.0,
        step_timeout_s: float = 60.0,
        cache_size: int = 32_768,
    ) -> None:
        if simulator.num_actions > MAX_ACTIONS:
            raise ConfigError(f"{name} has {simulator.num_actions} actions; at most {MAX_ACTIONS} are supported")
        simulator.reset(0)
        self._simulator = simulator
        self._name = name
        self._max_plies = max_plies
        self._reward_scale = reward_scale
        self._cache_size = cache_size
        self._cache: OrderedDict[bytes, Simulator] = OrderedDict()
        self._timeout_s = step_timeout_s
        self._thread = DeadlineThread(name)
        weakref.finalize(self, self._thread.stop)
        self._lock = threading.Lock()
        observation = np.asarray(self._simulator.observation())
        self._form = observation.shape, observation.dtype
        self.spec = EnvSpec(
            name=name,
            observation_shape=observation.shape,
            observation_dtype=str(observation.dtype) if observation.dtype in (np.bool_, np.uint8) else "float32",
            num_actions=int(simulator.num_actions),
            players=int(simulator.players),
        )
        state = HostState(np.zeros((), np.uint32), np.zeros(max_plies, np.int16), np.zeros((), np.int32), self._blank())
        self.spec = self.spec._replace(state_bytes=packed_bytes(state))
        """Shapes and dtypes of observations, and the number of actions."""

    def init(self, key: Array) -> HostState:
        """Starts a game whose seed is drawn with `key`."""
        seed = jax.random.bits(jnp.asarray(key), (), jnp.uint32)
        view = jax.pure_callback(self._reset_all, self._blank(), seed, vmap_method="broadcast_all")
        return HostState(seed, jnp.zeros(self._max_plies, jnp.int16), jnp.zeros((), jnp.int32), view)

    def step(self, state: HostState, action: Array) -> HostState:
        """Plays a legal `action`. A state that is over stays the same, with zero rewards; its simulator is not called.

        Raises:
          jax.errors.JaxRuntimeError: the action is illegal, the game raised an exception or returned an invalid value,
            or it exceeded the time limit; `simulator_errors` re-raises it as a `SimulatorError`.
        """
        action = jnp.asarray(action, jnp.int32)
        assert state.moves.shape == (self._max_plies,), state.moves.shape
        over = jnp.asarray(state.view.done)
        # Traced code cannot raise, so the callback reports illegal actions.
        order = jnp.where(over, _OVER, jnp.where(jnp.asarray(state.view.legal)[action], _PLAY, _ILLEGAL))
        request = jnp.stack([order.astype(jnp.int32), jnp.asarray(state.plies), action])
        # Under `vmap`, `broadcast_all` makes one call for the whole batch instead of one per state.
        view = jax.pure_callback(
            self._step_all, self._blank(), state.seed, state.moves, request, vmap_method="broadcast_all"
        )
        played = HostState(
            seed=state.seed,
            moves=jnp.asarray(state.moves).at[state.plies].set(action.astype(jnp.int16)),
            plies=state.plies + 1,
            view=view,
        )
        unchanged = state._replace(view=state.view._replace(rewards=jnp.zeros(2, jnp.float32)))
        after: HostState = jax.tree.map(lambda old, new: jnp.where(over, old, new), unchanged, played)
        return after

    def view(self, state: HostState) -> View:
        """The view of `state`."""
        return state.view

    @property
    def names_actions(self) -> bool:
        """Whether the simulator names its actions."""
        return isinstance(self._simulator, NamedSimulator)

    def ask[Answer](self, state: HostState, question: Callable[[Any], Answer]) -> Answer:
        """Asks the simulator of one position, within the time limit; the question must not change it."""
        key = np.asarray(state.seed).tobytes() + np.asarray(state.moves)[: int(state.plies)].tobytes()
        return self._in_time(lambda: question(self._simulator_at(key)))

    def _blank(self, *lead: int) -> View:
        """Views `[*lead, ...]` of zeros."""
        spec = self.spec
        return View(
            observation=np.zeros((*lead, *spec.observation_shape), spec.observation_dtype),
            legal=np.zeros((*lead, spec.num_actions), np.bool_),
            player=np.zeros(lead, np.int32),
            rewards=np.zeros((*lead, 2), np.float32),
            done=np.zeros(lead, np.bool_),
            truncated=np.zeros(lead, np.bool_),
        )

    @recorded_errors()
    def _reset_all(self, seed: Array) -> View:
        """Callback: the views `[...]` of new games with the seeds `[...]`."""
        seeds = np.asarray(seed)
        keys = [one.tobytes() for one in seeds.ravel()]
        return self._validated(self._in_time(lambda: self._views(keys)), seeds.shape, keys)

    @recorded_errors()
    def _step_all(self, seed: Array, moves: Array, request: Array) -> View:
        """Callback: the views after the requested actions; zeros where a game is over.

        Takes seeds `[...]`, moves `[..., max_plies]`, and requests `[..., 3]`: order, plies and action.
        """
        seeds, history, requests = np.asarray(seed), np.asarray(moves), np.asarray(request)
        orders, plies, actions = requests.reshape(-1, 3).T.tolist()
        starts, played = seeds.tobytes(), history.tobytes()
        width = 2 * self._max_plies
        # The key of a position: the bytes of its seed and of its moves, sliced from the bytes of the whole batch.
        keys = [
            starts[4 * row : 4 * row + 4] + played[row * width : row * width + 2 * count]
            for row, count in enumerate(plies)
        ]
        wanted: list[bytes | None] = [None] * len(keys)
        for row, order in enumerate(orders):
            if order == _ILLEGAL:
                raise self._error(keys[row], f"action {actions[row]} is illegal in this position")
            if order == _PLAY:
                wanted[row] = keys[row] = keys[row] + actions[row].to_bytes(2, byteorder)
        return self._validated(self._in_time(lambda: self._views(wanted)), seeds.shape, keys)

    def _in_time[Answer](self, function: Callable[[], Answer]) -> Answer:
        """Calls `function` within the time limit; one caller at a time."""
        with self._lock:
            try:
                return self._thread.call(function, self._timeout_s, "env.step_timeout_s")
            except TimeoutError as error:
                self._cache = OrderedDict()  # the abandoned thread may still use the old one
                raise SimulatorError(f"{self._name}: {error}") from None

    def _views(self, keys: Sequence[bytes | None]) -> View:
        """Views `[N, ...]` of the positions with these keys; zeros where the key is None."""
        views = self._blank(len(keys))
        for row, key in enumerate(keys):
            if key is not None:
                self._fill_row(views, row, key, self._simulator_at(key))
        return views

    def _simulator_at(self, key: bytes) -> Simulator:
        """The simulator of a position, from the cache or replayed from the nearest cached earlier position."""
        cache = self._cache
        found = cache.get(key)
        if found is not None:
            cache.move_to_end(key)
            return found
        # Drop the last moves one by one until an earlier position is cached.
        end = len(key) - 2
        while end >= _SEED_BYTES and key[:end] not in cache:
            end -= 2
        try:
            if end >= _SEED_BYTES:
                cache.move_to_end(key[:end])
                simulator = cache[key[:end]].clone()
            else:
                end = _SEED_BYTES
                simulator = self._simulator.clone()
                simulator.reset(int.from_bytes(key[:end], byteorder))
            for at in range(end, len(key), 2):
                simulator.step(int.from_bytes(key[at : at + 2], byteorder))
        except Exception as error:
            raise self._error(key, f"the game raised {type(error).__name__}: {error}") from error
        cache[key] = simulator
        if len(cache) > self._cache_size:
            cache.popitem(last=False)
        return simulator

    def _fill_row(self, views: View, row: int, key: bytes, simulator: Simulator) -> None:
        """Writes the simulator's view into one row of `views`."""
        try:
            observation = np.asarray(simulator.observation())
            if (observation.shape, observation.dtype) != self._form:
                raise ValueError(
                    f"observation() is {observation.dtype} of shape {list(observation.shape)}, and was "
                    f"{self._form[1]} of shape {list(self._form[0])} at the start"
                )
            views.observation[row] = observation
            rewards = simulator.rewards()
            if len(rewards) != self.spec.players:
                raise ValueError(f"rewards() = {rewards}: expected {self.spec.players} numbers")
            views.rewards[row, : self.spec.players] = rewards
            over = simulator.done()
            if over or len(key) >= _SEED_BYTES + 2 * self._max_plies:
                # All actions are legal once the game is over, as `View` says.
                views.done[row] = views.legal[row] = True
                views.truncated[row] = not over or getattr(simulator, "truncated", lambda: False)()
                views.player[row] = simulator.player() if views.truncated[row] else 0
                return
            legal = list(simulator.legal_actions())
            if not legal:
                raise ValueError("legal_actions() is empty, but done() is false")
            if min(legal) < 0 or max(legal) >= self.spec.num_actions:
                raise ValueError(f"legal_actions() = {legal}: expected numbers below {self.spec.num_actions}")
            views.legal[row, legal] = True
            views.player[row] = simulator.player()
        except Exception as error:
            raise self._error(key, f"the game raised {type(error).__name__}: {error}") from error

    def _validated(self, views: View, shape: tuple[int, ...], keys: list[bytes]) -> View:
        """The views, reshaped to `[*shape, ...]`, with scaled rewards."""
        players = self.spec.players
        if (wrong := (views.player < 0) | (views.player >= players)).any():
            row = int(np.argmax(wrong))
            raise self._error(keys[row], f"player() = {views.player[row]}: expected a number below {players}")
        if players == 2 and (wrong := np.abs(views.rewards.sum(axis=1)) > _SUM_TOLERANCE).any():
            row = int(np.argmax(wrong))
            raise self._error(keys[row], f"rewards() = {views.rewards[row].tolist()}: two players' must sum to 0")
        views = views._replace(rewards=views.rewards * np.float32(self._reward_scale))
        for field in ("observation", "rewards"):
            values = getattr(views, field).reshape(len(keys), -1)
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
                raise self._error(keys[row], f"{field}() contains NaN or infinity")
        reshaped: View = jax.tree.map(lambda field: field.reshape((*shape, *field.shape[1:])), views)
        return reshaped

    def _error(self, key: bytes, what: str) -> SimulatorError:
        seed, moves = int.from_bytes(key[:_SEED_BYTES], byteorder), np.frombuffer(key[_SEED_BYTES:], np.int16)
        return SimulatorError(f"{self._name}: {what} (seed {seed}, moves so far {moves.tolist()})")
