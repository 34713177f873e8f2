"""Acting in simulators on chips: positions, metrics and windows are those of an actor on the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_parameters import random_parameters
from random_walk import ACTIONS, SECTION, RandomWalk

from podzero.actors import ActorClients
from podzero.actors.build import make_actor
from podzero.actors.device_actor import ChipRollouts, DeviceActor
from podzero.actors.environments import WindowCutter, window_priorities
from podzero.actors.muzero_rollouts import MuZeroRollout
from podzero.config import parse
from podzero.core.types import Versioned
from podzero.envs import VectorStep, sample_packing
from podzero.envs.jax_game import Simulation
from podzero.networks import make_model_network
from podzero.search import ModelSearchResult

EPISODES, MOVES = 3, 4


ENV = Simulation(RandomWalk(), "walk")


def search(params, key, observation, exploration, legal):
    """Everything is random."""
    action_key, policy_key, value_key = jax.random.split(key, 3)
    size = observation.shape[0]
    policy = jax.nn.softmax(jax.random.normal(policy_key, (size, ACTIONS)))
    action = jax.random.randint(action_key, (size,), 0, ACTIONS)
    return ModelSearchResult(action, policy, jax.random.normal(value_key, (size,)), jnp.zeros((size, 0)))


def experiment_of(unroll=2, td=3, stride=1, **muzero):
    return parse({
        "name": "walk",
        "env": {"name": "gymnax", "id": "Walk", "model": "learned", "discount": 0.5},
        "network": {"name": "muzero_mlp"},
        "actors": {"inference": "device", "games": EPISODES, "moves_per_dispatch": MOVES},
        "replay": {"sampler": "prioritized"},
        "muzero": {"unroll_steps": unroll, "td_steps": td, "stride": stride, **muzero},
    }, "test")  # fmt: skip


def programs(experiment, count, key):
    """What `count` programs return: states, completed windows and sums."""
    core = MuZeroRollout(ENV, search, experiment)
    state, play = jax.jit(core.init)(key), jax.jit(core.play)
    for version in range(count):
        state, completed, sums = play({}, np.int32(version), state)
        yield core, state, completed, sums


def newest(state):
    """The rows `[T, B, ...]` that the newest program wrote, in the order of time, as a list."""
    rows = len(state.history.last)
    index = (int(state.oldest) - MOVES + np.arange(MOVES)) % rows
    row = jax.tree.map(lambda leaf: np.moveaxis(np.asarray(leaf)[index], -1, 1), state.history)
    return [jax.tree.map(lambda leaf, at=at: leaf[at], row) for at in range(MOVES)]


def cut_on_the_host(cutter, rows, before):
    """The windows that `WindowCutter` cuts from rows, of which `before` is the last one of the program before."""
    cuts = []
    for row in rows:
        if before is not None:
            truncated, started = row.last & ~row.terminated, row.age == 0
            cutter.add_step(VectorStep(None, before.reward, row.terminated, truncated, started, None, None))
        cuts.append(cutter.add_position(row.position))
        before = row
    return [cut[0] for cut in cuts if cut is not None], before


def sorted_windows(windows):
    """Windows as rows of numbers in one order, without the random actions after the ends of episodes."""
    steps = np.arange(windows.action.shape[1]) < np.asarray(windows.length)[:, None]
    windows = windows._replace(action=np.where(steps, windows.action, -1))
    rows = [np.asarray(field, np.float64).reshape(len(windows.length), -1) for field in windows]
    table = np.concatenate(rows, axis=1)
    return table[np.lexsort(table.T)]


@pytest.mark.parametrize(
    "muzero",
    [
        pytest.param({}, id="longer than a program"),
        pytest.param({"unroll": 1, "td": 1, "stride": 2}, id="shorter, with a stride"),
        pytest.param({"stride": 3, "consistency_weight": 1.0}, id="all observations"),
    ],
)
def test_windows_cut_on_the_chip_are_those_cut_on_the_host(muzero):
    """Each program gives out exactly the windows that its positions complete, of the same trajectories."""
    experiment = experiment_of(**muzero)
    cutter, before, lengths, terminated = WindowCutter(experiment, ENV.spec, EPISODES), None, set(), set()
    windows_of = None
    for core, state, completed, sums in programs(experiment, 12, jax.random.key(3)):
        windows_of = windows_of or jax.jit(core.windows)
        cuts, before = cut_on_the_host(cutter, newest(state), before)
        index = np.arange(EPISODES * (MOVES + 5), dtype=np.int32)
        found = windows_of(state.history, completed, np.minimum(index, max(int(sums.samples) - 1, 0)))
        found = jax.tree.map(lambda leaf, count=int(sums.samples): np.asarray(leaf)[:count], found)
        assert int(sums.samples) == sum(len(cut.length) for cut in cuts)
        if not cuts:
            continue
        expected = type(found)(*(np.concatenate(fields) for fields in zip(*cuts, strict=True)))
        np.testing.assert_array_equal(sorted_windows(found), sorted_windows(expected))
        assert found.action.min() >= 0
        assert found.action.max() < ACTIONS
        lengths |= set(found.length.tolist())
        terminated |= set(found.terminated.tolist())
    assert len(lengths) > 1
    assert terminated == {True, False}


def test_actions_after_the_end_are_uniformly_random():
    *_, (core, state, completed, sums) = programs(experiment_of(unroll=4), 8, jax.random.key(0))
    windows = jax.jit(core.windows)(state.history, completed, np.arange(int(sums.samples), dtype=np.int32))
    missing = np.arange(4) >= np.asarray(windows.length)[:, None]
    assert len(set(np.asarray(windows.action)[missing].tolist())) > 2


def test_episodes_begin_anew_after_their_last_position_and_are_counted():
    """A step counts from its episode's beginning; the sums are those of the episodes in the rows."""
    rows, total = [], np.zeros(4)
    for _, state, _, sums in programs(experiment_of(), 12, jax.random.key(1)):
        rows += newest(state)
        total += [float(np.sum(field)) for field in (sums.moves, sums.games, sums.returns, sums.lengths)]
    last, age, reward = (np.array([getattr(row, name) for row in rows]) for name in ("last", "age", "reward"))
    observed = np.array([row.position.observation for row in rows])
    np.testing.assert_array_equal(observed[..., 0], age)
    np.testing.assert_array_equal(age[1:], np.where(last[:-1], 0, age[:-1] + 1))
    total_reward = np.where(last[:-1], 0, observed[:-1, :, 1] + reward[:-1])
    np.testing.assert_allclose(observed[1:, :, 1], total_reward, rtol=1e-5)
    assert (reward[last] == 0).all()
    returns, lengths, games = 0.0, 0, 0
    for slot in range(EPISODES):
        begin = 0
        for end in np.flatnonzero(last[:, slot]):
            games, returns, lengths = games + 1, returns + reward[begin:end, slot].sum(), lengths + end - begin
            begin = end + 1
    # The newest step may have ended an episode whose last position the next program would search.
    ended = np.asarray(jax.jit(jax.vmap(ENV.view))(state.acting.games).done)
    assert total[1] == games + ended.sum()
    assert total[0] == (~last).sum()
    if not ended.any():
        np.testing.assert_allclose(total[2:], [returns, lengths], rtol=1e-5)


class Source:
    """One version."""

    def __init__(self, params=0.5):
        self._params = params

    def wait(self, timeout_s):
        return Versioned(7, self._params)

    def poll(self):
        return None


class Writer:
    """Keeps rows and priorities; stops the actor once there are enough."""

    def __init__(self):
        self.rows, self.priorities = [], []

    def write(self, rows, priorities, stopping):
        self.rows.append(rows)
        self.priorities.append(priorities)
        if len(self.rows) == 3:
            self.stop()


def test_an_actor_writes_rows_that_decode_with_the_priorities_of_their_windows():
    experiment, reports, writer = experiment_of(), [], Writer()
    chips = ChipRollouts(MuZeroRollout(ENV, search, experiment), jax.local_devices(), piece=8)
    clients = ActorClients(Source(), writer, lambda name, metrics: reports.append(metrics))
    actor = DeviceActor(experiment=experiment, name="actor-0", clients=clients, seed=2, chips=chips)
    writer.stop = actor.stop
    actor.run()
    rows, packing = np.concatenate(writer.rows), sample_packing(experiment, ENV.spec)
    assert packing.decodes(rows).all()
    windows = packing.unpack(rows)
    np.testing.assert_allclose(np.concatenate(writer.priorities), window_priorities(windows, experiment), rtol=1e-4)
    assert set(windows.version.tolist()) == {7}
    assert sum(report["count/samples"] for report in reports) == len(rows)
    assert reports[-1]["acting/version"] == 7
    assert reports[-1]["acting/steps_per_episode"] > 1


def test_an_experiment_with_a_simulator_of_ones_own_acts_by_its_network():
    """Search, episodes and windows in one program, built from the experiment alone."""
    experiment = parse({
        "name": "walk",
        "env": SECTION,
        "network": {"name": "muzero_mlp", "latent": 4, "width": 4, "layers": 1, "support": 3},
        "search": {"simulations": 2, "max_considered_actions": 2},
        "actors": {"inference": "device", "games": EPISODES, "moves_per_dispatch": MOVES},
        "muzero": {"unroll_steps": 2, "td_steps": 3, "stride": 2},
    }, "test")  # fmt: skip
    network, writer = make_model_network(experiment.network, ENV.spec), Writer()
    clients = ActorClients(Source(random_parameters(network)), writer, lambda name, metrics: None)
    actor = make_actor(experiment, "actor-0", 1, [clients], devices=jax.local_devices()[:1])
    writer.stop = actor.stop
    actor.run()
    packing = sample_packing(experiment, ENV.spec)
    rows = np.concatenate(writer.rows)
    assert packing.decodes(rows).all()
    # Every second position of an episode begins a window, where the first observation is the number of steps.
    assert (packing.unpack(rows).observation[:, 0, 0] % 2 == 0).all()
