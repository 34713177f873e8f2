"""Recorded positions: what a folder holds, and their part of the learner's batches."""

import json
import shutil
from contextlib import closing, suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import mutated

from podzero.config import parse
from podzero.core.errors import ConfigError, PodzeroError
from podzero.core.types import EnvSpec, Sample
from podzero.envs import sample_packing
from podzero.replay import (
    PositionLayout,
    RecordsWriter,
    ShardedWriter,
    make_reader,
    open_records,
)
from podzero.replay.records import recorded_batches

BITS = EnvSpec("bits", (3, 5), "bool", 11)


def positions(spec, count, seed=0):
    """Random positions with auxiliary targets, whose policies choose legal actions."""
    random = np.random.default_rng(seed)
    action = random.integers(spec.num_actions, size=count)
    legal = random.random((count, spec.num_actions)) < 0.5
    legal[np.arange(count), action] = True
    observation = random.random((count, *spec.observation_shape))
    return Sample(
        observation=observation < 0.5 if spec.observation_dtype == "bool" else observation.astype(np.float32),
        legal=legal,
        policy_target=np.eye(spec.num_actions, dtype=np.float32)[action],
        value_target=random.uniform(-1, 1, count).astype(np.float32),
        version=np.full(count, -1, np.int32),
        outcome=random.integers(3, size=count).astype(np.int32),
        moves_left=random.integers(50, size=count).astype(np.int32),
        reply=random.integers(-1, 11, size=count).astype(np.int32),
    )


@pytest.fixture
def experiment_on(make_experiment):
    def make(folder, **data):
        return parse(make_experiment().model_dump(mode="json") | {"data": {"records": str(folder), **data}}, "test")

    return make


@pytest.fixture
def write(tmp_path, spec):
    def write(samples, folder="records", discount=1.0, searched=False):
        with RecordsWriter(tmp_path / folder, PositionLayout(spec, discount, searched)) as writer:
            writer.add(samples)
            writer.finish({"games": 1})
        return tmp_path / folder

    return write


@pytest.mark.parametrize("spec", [BITS, EnvSpec("line", (3,), "float32", 4)])
def test_samples_are_read_as_they_were_written(spec):
    layout, samples = PositionLayout(spec, 1.0), positions(spec, 20)
    read = layout.unpack(layout.pack(samples), auxiliary=True)
    for name, expected in samples._asdict().items():
        if expected is None:
            continue
        found = getattr(read, name)
        assert found.dtype == expected.dtype, name
        np.testing.assert_array_equal(found, expected, err_msg=name)
    plain = layout.unpack(layout.pack(samples), auxiliary=False)
    assert (plain.outcome, plain.moves_left, plain.reply) == (None, None, None)


def test_searched_policies_are_kept_in_half_precision_and_sum_to_one():
    samples = positions(BITS, 20)
    searched = np.where(samples.legal, np.random.default_rng(1).random(samples.legal.shape), 0).astype(np.float32)
    searched /= searched.sum(axis=1, keepdims=True)
    layout = PositionLayout(BITS, 1.0, searched=True)
    rows = layout.pack(samples._replace(policy_target=searched))
    found = layout.unpack(rows, auxiliary=False).policy_target
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, searched, atol=1e-3)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)


def test_a_folder_says_whether_its_policies_were_searched(write, spec, experiment_on):
    played, searched = write(positions(spec, 3)), write(positions(spec, 3), "searched", searched=True)
    assert open_records(experiment_on(played), spec).layout.text == PositionLayout(spec, 1.0).text
    records = open_records(experiment_on(searched), spec)
    assert records.layout.text == PositionLayout(spec, 1.0, searched=True).text
    assert "policy" in records.rows.dtype.names


def test_bits_are_packed():
    assert PositionLayout(BITS, 1.0).row.itemsize == 2 + 2 + 5 * 4


def test_without_self_play_batches_come_from_the_folder_alone(write, spec, experiment_on, samples_of):
    samples = positions(spec, 30)
    experiment = experiment_on(write(samples))
    with closing(make_reader(list, spec, experiment)) as reader:
        batch = next(reader)
        assert batch.weight is None
        assert batch.keys is None
        assert samples_of(batch).observation.shape == (2, 4, 3)
        assert (samples_of(batch).version == -1).all()
        found = {value for _ in range(40) for value in samples_of(next(reader)).value_target.ravel().tolist()}
    assert found <= set(samples.value_target.tolist())
    # 320 draws of 30 positions; each is missing with a probability of 2e-5.
    assert len(found) > 25
    with pytest.raises(StopIteration):
        next(reader)


def test_draws_are_uniform(write, spec, experiment_on, samples_of):
    samples = positions(spec, 4)._replace(value_target=np.arange(4, dtype=np.float32) / 4)
    experiment = experiment_on(write(samples))
    reader = recorded_batches(open_records(experiment, spec), sample_packing(experiment, spec), (4000,), seed=7)
    counts = np.bincount((4 * samples_of(next(reader)).value_target).astype(int), minlength=4)
    assert abs(counts - 1000).max() < 5 * 27, "five standard deviations"


def test_a_share_of_every_batch_is_recorded(serve, connect, write, spec, make_samples, experiment_on, samples_of):
    experiment = experiment_on(write(positions(spec, 30)), share=0.3)
    assert experiment.batch_parts == (3, 0, 1)
    server = serve(experiment)
    writer = connect(ShardedWriter, experiment, server)
    writer.write(make_samples(16))
    writer.flush()
    reader = connect(make_reader, experiment, server)
    for _ in range(2):
        batch = next(reader)
        np.testing.assert_array_equal((samples_of(batch).version == -1).sum(axis=1), [1, 1])
        assert samples_of(batch).policy_target.shape == (2, 4, 4)


def test_a_folder_is_not_overwritten_and_a_failed_import_leaves_nothing(tmp_path, write, spec):
    folder = write(positions(spec, 3))
    with pytest.raises(ConfigError, match="exists"):
        write(positions(spec, 3))
    with pytest.raises(AttributeError), RecordsWriter(tmp_path / "other", PositionLayout(spec, 1.0)) as writer:
        writer.add(None)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_folders_that_cannot_be_used_are_refused(tmp_path, write, spec, experiment_on):
    folder = write(positions(spec, 3))
    assert len(open_records(experiment_on(folder), spec).rows) == 3
    with pytest.raises(ConfigError, match="no records"):
        open_records(experiment_on(tmp_path / "missing"), spec)
    with pytest.raises(ConfigError, match=r"holds 'line .*needs 'bits "):
        open_records(experiment_on(folder), BITS)
    with pytest.raises(ConfigError, match=r"discount:0\.5"):
        open_records(experiment_on(write(positions(spec, 3), "other", discount=0.5)), spec)
    with (folder / "positions.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ConfigError, match="damaged"):
        open_records(experiment_on(folder), spec)
    (folder / "positions.bin").unlink()
    with pytest.raises(ConfigError, match="damaged"):
        open_records(experiment_on(folder), spec)


def test_the_folder_says_what_it_holds(write, spec):
    tree = json.loads((write(positions(spec, 3)) / "records.json").read_text())
    assert tree == {"layout": PositionLayout(spec, 1.0).text, "positions": 3, "games": 1}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_folder_holds_it_is_refused_or_read_within_its_bounds(tmp_path, write, experiment_on, spec, data):
    shutil.rmtree(tmp_path / "records", ignore_errors=True)
    folder = write(positions(spec, 4))
    for name in ("records.json", "positions.bin"):
        whole = (folder / name).read_bytes()
        place, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.binary(min_size=1, max_size=1))
        content = st.sampled_from([whole, whole[:place] + byte + whole[place + 1 :], whole[:place]])
        if name == "records.json":
            content |= mutated(json.loads(whole)).map(lambda tree: json.dumps(tree).encode())
        (folder / name).write_bytes(data.draw(content))
    with suppress(PodzeroError):
        found = open_records(experiment_on(folder), spec)
        drawn = found.draw(np.random.default_rng(1), 16)
        assert drawn.legal.shape == drawn.policy_target.shape == (16, spec.num_actions)


@pytest.mark.parametrize("action", [-1, 2**30])
def test_an_action_that_there_is_not_is_damage(write, experiment_on, spec, action):
    folder = write(positions(spec, 4))
    rows = np.fromfile(folder / "positions.bin", PositionLayout(spec, 1.0).row)
    rows["action"][:] = action
    rows.tofile(folder / "positions.bin")
    with pytest.raises(ConfigError, match="action outside 0"):
        open_records(experiment_on(folder), spec).draw(np.random.default_rng(1), 2)
