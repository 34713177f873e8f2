"""Each file of a checkpoint is flipped, cut short or deleted: none is read wrong, and the next complete one is used."""

import shutil
from types import SimpleNamespace
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_cluster import FakeRemoteActor

from podzero.config import MeshConfig, OptimizerConfig, parse
from podzero.core.types import EnvSpec, Sample
from podzero.files.storage import checkpoint_of, digests
from podzero.files.workdir import Workdir
from podzero.learner.build import learner_parts, make_training
from podzero.learner.checkpoints import LearnerCheckpoints
from podzero.learner.optimizers import make_optimizer
from podzero.learner.sharding import make_mesh, placed, state_shardings
from podzero.learner.step import init_state
from podzero.replay import ReplayServer, ShardedWriter, tables_of
from podzero.replay.server import unseal
from podzero.runtime import kinds
from podzero.runtime.checkpoints import add_replay, checkpoints, write_learner
from podzero.runtime.kinds import ReplayProcess
from podzero.runtime.process import RunContext, hosted
from podzero.runtime.start import start_workers
from podzero.runtime.train import train

SPEC = EnvSpec("line", (3,), "float32", 4)
EXPERIMENT = parse({"name": "t", "env": {"name": "tic_tac_toe"}, "replay": {"samples_per_item": 1}}, "t")


@pytest.fixture(scope="module")
def learners():
    learners = LearnerCheckpoints(make_mesh(MeshConfig()))
    yield learners
    learners.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory, learners):
    """Checkpoints of the steps 10 and 20, and of the learner alone of step 21, and how to read them."""
    workdir = Workdir(tmp_path_factory.mktemp("saved"))
    optimizer = make_optimizer(OptimizerConfig())
    shapes = jax.eval_shape(lambda: init_state(lambda key: {"w": jnp.zeros((8, 5))}, optimizer, jax.random.key(0)))
    like = placed(shapes, state_shardings(make_mesh(MeshConfig()), shapes, MeshConfig()))
    server = ReplayServer(EXPERIMENT, SPEC, 0)
    writer = ShardedWriter(lambda: [server.address()], SPEC, EXPERIMENT)
    for step in (10, 20, 21):
        state = jax.tree.map(lambda leaf, step=step: filled(leaf, step), like)
        write_learner(workdir, saver(learners, state, step), {"games": step}, {})
        if step < 21:
            writer.write(samples(step))
            writer.flush()
            shard = FakeRemoteActor("replay-0", checkpoint=lambda folder, step=step: server.checkpoint(folder) and step)
            add_replay(workdir, step, [shard], {"games": step}, {})
    writer.close()
    server.stop()
    return workdir, like, EXPERIMENT, SPEC


def filled(leaf, step):
    """A leaf whose every element depends on the step."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(np.full(2, step, np.uint32))
    numbers = np.arange(leaf.size).reshape(leaf.shape)
    return jax.device_put((numbers + step).astype(leaf.dtype), leaf.sharding)


def saver(learners, state, step):
    def save(folder):
        learners.save(folder, state).result(60)
        return step

    return save


def samples(count):
    zeros = np.zeros((count, 3), np.float32)
    policy = np.full((count, 4), 0.25, np.float32)
    return Sample(zeros, np.ones((count, 4), bool), policy, zeros[:, 0], np.zeros(count, np.int32))


@pytest.fixture(scope="module")
def real_run(tmp_path_factory, tiny, watch):
    """The same of three real runs in one directory, the last of which saves the learner alone."""
    workdir = Workdir(tmp_path_factory.mktemp("run"))
    for steps in (80, 160):
        train(tiny(f"stop.steps={steps}"), workdir.root, None, watch())
    experiment = tiny("stop.steps=2000", "checkpoint.learner_minutes=0.05", "checkpoint.every_minutes=60")
    newest = []

    def keep(status):
        """Copies the checkpoints as soon as the learner was saved alone."""
        found = checkpoints(workdir)
        if not newest and found and not found[0].whole:
            shutil.copytree(workdir.checkpoints, workdir.root / "kept", ignore=shutil.ignore_patterns(".*"))
            newest.append(found[0].step)
        return bool(newest)

    train(experiment, workdir.root, None, watch(keep))
    network, spec, symmetries = learner_parts(experiment)
    shutil.rmtree(workdir.checkpoints)
    (workdir.root / "kept").rename(workdir.checkpoints)
    return workdir, make_training(experiment, network, spec, symmetries).like, experiment, spec


@pytest.fixture
def resume(monkeypatch, learners):
    """Resumes a run: the step, the learner's state as bytes, and the folder that the shard reads."""

    def serve(experiment, spec, shard, restore_from=None, host=""):
        if restore_from is not None:
            unseal(restore_from, tables_of(experiment, spec))
        limits = SimpleNamespace(size=0)
        return SimpleNamespace(folder=restore_from, limits=lambda: limits, info=dict, address=lambda: "here:7#1")

    monkeypatch.setattr("podzero.replay.ReplayServer", serve)
    monkeypatch.setattr(kinds, "keep_announced", lambda *_: None)
    monkeypatch.setattr(kinds, "watch_for_notices", lambda _: None)

    states = {}

    def start(workdir, like, experiment, spec):
        monkeypatch.setattr("podzero.envs.spec_of", lambda env: spec)
        found = []

        def build(checkpoint):
            files = tuple(digests(checkpoint.folder / "learner").items())
            if files not in states:
                states[files] = words(learners.restore(checkpoint.folder, like))
            found[:] = [states[files], None]
            context = RunContext(experiment, workdir, "run", None, None)
            shard = ReplayProcess("replay-0", context, contents=checkpoint.shard(0))
            shard = hosted(ReplayProcess)(shard)
            shard.ready()
            found[1] = shard.process.server.folder

        step = start_workers(SimpleNamespace(start=build, kill=lambda: None), workdir).step
        return step, *found

    return start


def words(state):
    return [
        np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf).tobytes()
        for leaf in jax.tree.leaves(state)
    ]


def flip(file):
    content = bytearray(file.read_bytes() or b"\0")
    content[crc32(str(file).encode()) % len(content)] ^= 0x10
    file.write_bytes(bytes(content))


DAMAGES = {
    "flip": flip,
    "truncate": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "delete": lambda file: file.unlink(),
}


def check(origin, resume, damage, folder, caplog):
    """Damages one file after the other, and resumes after each from what the others hold."""
    (kept, *how), states, workdir = origin, {}, Workdir(folder)
    pristine = {path: path.read_bytes() for path in kept.checkpoints.rglob("*") if path.is_file()}
    newest, before, oldest = (found.step for found in checkpoints(kept))
    for path in [None, *(path for path in pristine if damage != "truncate" or pristine[path])]:
        shutil.rmtree(workdir.checkpoints, ignore_errors=True)
        shutil.copytree(kept.checkpoints, workdir.checkpoints)
        caplog.clear()
        used = replay = False
        if path is not None:
            of, part = path.relative_to(kept.checkpoints).parts[:2]
            used, replay = int(of) == newest, int(of) == before and part.startswith("replay")
            DAMAGES[damage](workdir.checkpoints / path.relative_to(kept.checkpoints))
        step, state, shard = resume(workdir, *how)
        assert step == (before if used else newest), path
        assert int(checkpoint_of(shard).name) == (oldest if replay else before), path
        assert not (used or replay) or path.name in caplog.text, f"{path} was not named"
        assert state == states.setdefault(step, state), f"{path} was read wrong"
        for file in (file for file in shard.rglob("*") if file.is_file()):
            assert file.read_bytes() == pristine[kept.checkpoints / file.relative_to(workdir.checkpoints)], path
    assert len(states) == 2


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damaged_file_is_read_and_the_newest_complete_checkpoint_is_used(saved, resume, damage, tmp_path, caplog):
    names = {path.name for path in saved[0].checkpoints.rglob("*") if path.is_file()}
    assert names >= {"run.json", "manifest.json", "shard.json", "_sharding", "manifest.ocdbt", "tables.tfrecord"}
    check(saved, resume, damage, tmp_path, caplog)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damaged_file_of_a_real_run_is_read(real_run, resume, damage, tmp_path, caplog):
    check(real_run, resume, damage, tmp_path, caplog)
