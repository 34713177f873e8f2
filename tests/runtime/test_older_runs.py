"""A run that began under JAX 0.7.1, Flax 0.10, Orbax 0.11, NumPy 1 and Python 3.11 goes on under today's versions.

`data/run_of_jax_0.7.tar.gz` is the working directory of
`podzero train tic_tac_toe network.channels=4 network.blocks=1 search.simulations=4 actors.games=16 replay.min_size=64
replay.capacity=512 replay.samples_per_insert=8 replay.tolerance=128 learner.batch_size=16 learner.steps_per_dispatch=4
learner.publish_every=8 stop.steps=40` without its logs.
"""

from __future__ import annotations

import tarfile
from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest

from podzero.config import load
from podzero.envs import sample_packing, spec_of
from podzero.files.workdir import Workdir
from podzero.learner import make_training
from podzero.learner.build import learner_parts
from podzero.learner.checkpoints import LearnerCheckpoints
from podzero.networks.snapshots import load_snapshot
from podzero.replay import ReplayServer, make_reader
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.train import train

ARCHIVE = Path(__file__).parent / "data" / "run_of_jax_0.7.tar.gz"


@pytest.fixture
def older(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return Workdir(tmp_path)


@pytest.fixture
def experiment(older):
    return load(str(older.experiment_file))


def test_its_learner_is_restored_with_every_leaf_as_it_was_saved(older, experiment):
    """Restoring compares each leaf with the fingerprint that was saved with it."""
    (checkpoint,) = checkpoints(older)
    network, spec, symmetries = learner_parts(experiment)
    training = make_training(experiment, network, spec, symmetries, jax.devices()[:1])
    with closing(LearnerCheckpoints(training.mesh)) as learner:
        state = learner.restore(checkpoint.folder, training.like)
    assert int(state.step) == checkpoint.step == 40
    published = load_snapshot(older.snapshots)
    assert published.version == 40
    for kept, shown in zip(jax.tree.leaves(state.ema), jax.tree.leaves(published.params), strict=True):
        np.testing.assert_array_equal(kept, shown)


def test_its_replay_is_restored_read_saved_and_restored_again(older, experiment, tmp_path):
    (checkpoint,) = checkpoints(older)
    spec = spec_of(experiment.env)
    with ReplayServer(experiment, spec, 0, checkpoint.shard(0)[0].folder) as server:
        limits = server.limits()
        assert (limits.size, [shard.samples for shard in checkpoint.shards]) == (176, [176])
        with closing(make_reader(lambda: [server.address()], spec, experiment)) as reader:
            rows = next(reader).rows
        saved = server.checkpoint(tmp_path / "again" / "shard-0")
    with ReplayServer(experiment, spec, 0, saved) as again:
        assert again.limits().size == 176
        assert again.address() != server.address()
    samples = sample_packing(experiment, spec).unpack(rows)
    assert samples.version.shape == (experiment.learner.steps_per_dispatch, experiment.learner.batch_size)
    assert np.abs(samples.value_target).max() <= 1.0
    np.testing.assert_allclose(samples.policy_target.sum(-1), 1.0, rtol=1e-5)
    assert not samples.policy_target[~samples.legal].any()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_trains_on(older, experiment, watch):
    more = experiment.model_copy(update={"stop": experiment.stop.model_copy(update={"steps": 80})})
    watcher = watch()
    assert "80 steps" in train(more, older.root, None, watcher).reason
    assert watcher.statuses[0].step == 40
    assert checkpoints(older)[0].step == 80
    assert checkpoints(older)[0].counters["games"] >= 36
