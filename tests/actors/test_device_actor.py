"""The actor on accelerators: here on the CPU's devices, with in-memory clients."""

import os
import subprocess
import sys
import threading
import time
from itertools import pairwise

import jax
import numpy as np
import pytest

from podzero.actors import ActorClients
from podzero.actors.assembly import GameAssembler
from podzero.actors.build import make_actor
from podzero.actors.core import SelfPlayCore
from podzero.actors.device_actor import ChipRollouts, DeviceActor, RolloutCore, chip_keys, finish
from podzero.config import SearchConfig, parse
from podzero.core.errors import ConfigError
from podzero.core.types import Versioned
from podzero.envs import make_env, sample_packing

from .test_reanalysis import Source, Writer
from .test_rollouts import drawn

GAMES, MOVES, CHIPS = 16, 6, 4


def experiment_with(**actors):
    actors = {"inference": "device", "games": GAMES, "moves_per_dispatch": MOVES} | actors
    return parse({"name": "test", "env": {"name": "tic_tac_toe"}, "actors": actors}, "test")


def actor_for(experiment, devices, clients):
    each = experiment.actors.model_copy(update={"games": GAMES // len(devices)})
    env, search = make_env("tic_tac_toe"), drawn(make_env("tic_tac_toe"))
    core = SelfPlayCore(env, search, each)
    rollouts = RolloutCore(core, experiment.model_copy(update={"actors": each}))
    chips = ChipRollouts(rollouts, devices, piece=MOVES * each.games)
    return core, DeviceActor(experiment=experiment, name="actor-0", seed=5, chips=chips, clients=clients)


def test_it_writes_the_samples_of_an_actor_on_the_cpu_with_the_same_seed():
    """All of them, apart from those that do not fill an item, in another order."""
    experiment, reports, writer = experiment_with(), [], Writer([], "samples", writes=4)
    clients = ActorClients(Source(), writer, lambda name, metrics: reports.append(metrics))
    core, actor = actor_for(experiment, jax.local_devices()[:1], clients)
    writer.enough = actor.stop
    actor.run()
    packing = sample_packing(experiment, make_env("tic_tac_toe").spec)
    written = packing.unpack(np.concatenate(writer.written))
    moves = int(sum(report["count/moves"] for report in reports)) // GAMES
    assembler, move = GameAssembler(experiment.actors), jax.jit(core.move)
    state, games = jax.jit(core.init)(jax.random.fold_in(jax.random.key(5), 0)), []
    for _ in range(moves):
        state, made = move(None, state)
        games += assembler.add(jax.device_get(made), 0)
    expected = packing.unpack(np.concatenate([packing.pack(game.samples) for game in games]))
    known = {row.tobytes() for row in np.round(expected.policy_target, 4)}
    assert all(row.tobytes() in known for row in np.round(written.policy_target, 4))
    per_item = experiment.replay.samples_per_item
    assert len(written.version) == len(expected.version) // per_item * per_item
    assert sum(report["count/samples"] for report in reports) == len(expected.version)
    assert sum(report["count/games"] for report in reports) == len(games)
    for report in reports:
        assert sum(share for name, share in report.items() if name.startswith("time/")) == pytest.approx(1.0)


class FullReplay:
    """Has no room until the actor stops."""

    def __init__(self):
        self.asked = threading.Event()

    def write(self, samples, priorities=None, stopping=None):
        self.asked.set()
        assert stopping.wait(30.0)


def test_it_ends_although_replay_has_no_room():
    replay = FullReplay()
    _, actor = actor_for(experiment_with(), jax.local_devices()[:1], ActorClients(Source(), replay, lambda *_: None))
    playing = threading.Thread(target=actor.run)
    playing.start()
    assert replay.asked.wait(60.0)
    actor.stop()
    playing.join(30.0)
    assert not playing.is_alive()


def test_samples_are_written_while_the_next_program_runs(monkeypatch):
    """A program as on a GPU, whose call returns at its end: from the second on, it ends only once a write has begun."""
    writer, programs, writes = Writer([], "samples", writes=3), [], threading.Semaphore(0)
    _, actor = actor_for(experiment_with(), jax.local_devices()[:1], ActorClients(Source(), writer, lambda *_: None))
    writer.enough = actor.stop
    play, write = actor.chips.play, actor._write

    def played(*arguments):
        programs.append(None)
        assert len(programs) == 1 or writes.acquire(timeout=30.0)
        return play(*arguments)

    def written(pieces, held):
        if pieces:
            writes.release()
        write(pieces, held)

    monkeypatch.setattr(actor.chips, "play", played)
    monkeypatch.setattr(actor, "_write", written)
    actor.run()
    assert len(programs) > 2


def test_who_shares_the_devices_hears_of_each_program_when_it_has_ended():
    """Not before its results are on the host, so that its time is known."""
    writer, began, reports = Writer([], "samples", writes=1), [], []
    clients = ActorClients(
        Source(), writer, lambda _, metrics: reports.append(metrics),
        executed=lambda start: began.append((start, time.perf_counter())),
    )  # fmt: skip
    _, actor = actor_for(experiment_with(), jax.local_devices()[:1], clients)
    writer.enough = actor.stop
    actor.run()
    assert len(began) == sum(report["count/moves"] for report in reports) / (GAMES * MOVES)
    assert all(start < end for start, end in began)
    assert all(ended <= start for (_, ended), (start, _) in pairwise(began))


class EveryProgram(Source):
    """A new version before each program."""

    def poll(self):
        self.polls += 1
        return Versioned(self.polls, 0.5)


def test_samples_of_an_item_come_from_several_programs():
    """The version says in which program a move was played; a game of nine moves spans three programs at most."""
    experiment, writer = experiment_with(), Writer([], "samples", writes=4)
    experiment = experiment.model_copy(update={"replay": experiment.replay.model_copy(update={"min_size": 512})})
    clients = ActorClients(EveryProgram(), writer, lambda name, metrics: None)
    _, actor = actor_for(experiment, jax.local_devices()[:1], clients)
    writer.enough = actor.stop
    actor.run()
    written = sample_packing(experiment, make_env("tic_tac_toe").spec).unpack(writer.written[0])
    items = written.version.reshape(-1, experiment.replay.samples_per_item)
    assert np.median(np.ptp(items, axis=1)) > 3


@pytest.mark.slow
def test_each_chip_plays_as_one_alone():
    """Four chips give the rows that four runs of one chip with the same keys give; in a process with four devices."""
    if jax.device_count() == 1:
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={CHIPS}",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "slow", "-k", "each_chip_plays", __file__]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
        return
    experiment = experiment_with().model_copy(update={"search": SearchConfig(targets=4)})
    env, search, key = make_env("tic_tac_toe"), drawn(make_env("tic_tac_toe")), jax.random.key(1)
    core = RolloutCore(SelfPlayCore(env, search, experiment.actors), experiment)
    chips, play, take = ChipRollouts(core, jax.devices(), piece=32), jax.jit(core.play), jax.jit(core.take)
    state = chips.init(key)
    assert [shard.data.shape[0] for shard in state.history.policy.addressable_shards] == [1] * CHIPS
    alone = [jax.jit(core.init)(one) for one in chip_keys(key, CHIPS)]
    for program in range(3):
        state, finished, played = chips.play({}, program, state)
        counts = jax.device_get(played.samples)
        rows, *_ = finish(chips.take(state, finished, counts))
        expected = []
        for chip in range(CHIPS):
            alone[chip], own, _ = play({}, np.int32(program), alone[chip])
            expected.append(take(alone[chip].history, own, np.arange(counts[chip], dtype=np.int32))[0])
        assert all(counts)
        packing, joined = sample_packing(experiment, env.spec), np.concatenate(expected)
        assert packing.decodes(rows).all()
        np.testing.assert_array_equal(rows[np.lexsort(rows.T)], joined[np.lexsort(joined.T)])


def test_games_that_devices_cannot_share_evenly_are_refused():
    clients = ActorClients(Source(), Writer([], "samples", writes=1), lambda name, metrics: None)
    with pytest.raises(ConfigError, match=r"actors\.games 16 .* 3 devices.* 18"):
        make_actor(experiment_with(), "actor-0", 0, [clients], devices=jax.local_devices() * 3)
