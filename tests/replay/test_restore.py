"""Checkpoints of a shard are restored exactly or refused with a reason."""

from __future__ import annotations

import errno
import shutil
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import damaged, mutated

from podzero.core.errors import PodzeroError
from podzero.files import storage
from podzero.files.storage import StorageError, sealed, unsealed
from podzero.replay import (
    ReplayRestoreError,
    ReplayTimeout,
    ShardedWriter,
    make_reader,
    server,
    tables_of,
)
from podzero.replay.errors import ReplayMismatch, ReplayUnavailable, RequestRefused
from podzero.replay.shard import SAMPLES, Shard


@pytest.fixture
def saved(pristine, tmp_path) -> Path:
    """A copy of that checkpoint, for tests to damage."""
    return Path(shutil.copytree(pristine, tmp_path / "000000010" / "replay" / "shard-0"))


def rewrite(saved, change):
    """Changes the manifest of a checkpoint before its digest is taken."""
    manifest = unsealed((saved / "shard.json").read_text())
    change(manifest)
    (saved / "shard.json").write_text(sealed(manifest))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_manifest_says_the_shard_is_refused_or_its_own_files_are_restored(
    saved, make_experiment, spec, data
):
    """Also one with its own digest, of somebody else's checkpoint."""
    tables = tables_of(make_experiment(), spec)
    if not (whole := saved.parent / "whole.json").exists():
        shutil.copyfile(saved / "shard.json", whole)
    tree = unsealed(whole.read_text())
    content = st.one_of(
        mutated(tree, keys=("../../x", "a\0", "zz")).map(lambda tree: sealed(tree).encode()),
        damaged(whole.read_bytes()),
    )
    (saved / "shard.json").write_bytes(data.draw(content))
    with suppress(PodzeroError):
        assert server.unseal(saved, tables)[0].parent == saved


def test_a_restored_shard_continues_with_its_samples_and_counts(
    serve, make_experiment, make_samples, spec, saved, samples_of
):
    experiment = make_experiment()
    server = serve(experiment, restore_from=saved)
    limits = server.limits()
    assert (limits.size, limits.inserted) == (12, 12)
    assert limits.sampled >= 8
    writer = ShardedWriter(lambda: [server.address()], spec, experiment)
    reader = make_reader(lambda: [server.address()], spec, experiment)
    for start in range(12, 112, 8):  # far beyond the tolerance: neither side may be blocked forever
        writer.write(make_samples(8, start))
        for _ in range(2):
            assert samples_of(next(reader)).version.max() < start + 8
    writer.flush()
    reader.close()
    writer.close()
    assert server.limits().size == 116


def test_a_checkpoint_replaces_the_one_in_its_folder(serve, make_experiment, make_samples, spec, saved):
    experiment = make_experiment()
    server = serve(experiment, restore_from=saved)
    writer = ShardedWriter(lambda: [server.address()], spec, experiment)
    writer.write(make_samples(1))
    writer.flush()
    writer.close()
    assert server.checkpoint(saved) == saved
    server.stop()
    assert serve(experiment, restore_from=saved).limits().size == 13


@pytest.mark.usefixtures("real_server")
def test_a_checkpoint_is_written_in_its_place_and_a_failed_one_leaves_nothing(
    serve, connect, make_experiment, make_samples, tmp_path, monkeypatch
):
    """The file system refuses files of more than 64 KiB, as a full one would."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "memory"))
    (tmp_path / "memory").mkdir()
    before = set(psutil.Process().children())
    server = serve(make_experiment(capacity=100_000, min_size=5000))
    writer = connect(ShardedWriter, make_experiment(), server)
    writer.write(make_samples(4000))
    writer.flush()
    (process,) = set(psutil.Process().children()) - before
    soft, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (2**16, hard))
    with pytest.raises(RequestRefused, match="File too large"):
        server.checkpoint(tmp_path / "saves" / "shard-0")
    process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "saves").iterdir()) == []
    server.checkpoint(tmp_path / "saves" / "shard-0")
    assert sorted(path.name for path in (tmp_path / "saves" / "shard-0").iterdir()) == ["reverb", "shard.json"]
    assert list((tmp_path / "memory").iterdir()) == []


def test_no_second_checkpoint_begins_while_the_first_is_written(serve, make_experiment, tmp_path, monkeypatch):
    shard, seal, second = serve(make_experiment()), server.seal, []

    def meanwhile(*arguments):
        with pytest.raises(RequestRefused) as raised:
            shard.checkpoint(tmp_path / "second")
        second.append(raised.value)
        return seal(*arguments)

    monkeypatch.setattr(server, "seal", meanwhile)
    shard.checkpoint(tmp_path / "first")
    assert len(second) == 1
    assert not (tmp_path / "second").exists()
    monkeypatch.setattr(server, "seal", seal)
    shard.checkpoint(tmp_path / "third")


def test_a_checkpoint_that_never_ends_is_given_up_and_a_later_one_written(
    serve, make_experiment, tmp_path, monkeypatch
):
    shard, limits = serve(make_experiment()), []
    connection = shard._shards[SAMPLES].connection
    write = connection.checkpoint

    def never(timeout_s):
        limits.append(timeout_s)
        raise ReplayUnavailable("DEADLINE_EXCEEDED")

    monkeypatch.setattr(connection, "checkpoint", never)
    with pytest.raises(ReplayUnavailable):
        shard.checkpoint(tmp_path / "first")
    assert not (tmp_path / "first").exists()
    monkeypatch.setattr(connection, "checkpoint", lambda timeout_s: limits.append(timeout_s) or write(timeout_s))
    for name in ("second", "third"):
        assert shard.checkpoint(tmp_path / name).exists()
    assert limits[0] == limits[1] > limits[2], "it may take a multiple of the time of the one before"


@pytest.mark.parametrize("name", ["chunks.tfrecord", "items.tfrecord", "tables.tfrecord"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_a_damaged_file_is_named(serve, make_experiment, saved, name, damage):
    file = saved / "reverb" / name
    content = bytearray(file.read_bytes())
    if damage == "truncate":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    else:
        file.unlink()
    with pytest.raises(ReplayRestoreError, match=f"{name} .*altered"):
        serve(make_experiment(), restore_from=saved)


def test_a_checkpoint_without_its_done_file_is_refused(serve, make_experiment, saved):
    (saved / "reverb" / "DONE").unlink()  # Reverb itself would start with an empty table
    with pytest.raises(ReplayRestoreError, match="DONE is missing"):
        serve(make_experiment(), restore_from=saved)


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '{"tables": {"samples": {"layout": ""}}}'])
def test_a_damaged_manifest_is_refused(serve, make_experiment, saved, content):
    manifest = saved / "shard.json"
    manifest.unlink() if content is None else manifest.write_text(content)
    with pytest.raises(ReplayRestoreError, match=r"shard.json is (missing|damaged)"):
        serve(make_experiment(), restore_from=saved)


def test_every_digit_of_a_manifest_counts(saved, make_experiment, spec):
    """Another capacity would be taken for that of another experiment, which the run refuses."""
    tables, file = tables_of(make_experiment(), spec), saved / "shard.json"
    text = file.read_text()
    server.unseal(saved, tables)
    for place in (index for index, letter in enumerate(text) if letter.isdigit()):
        file.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
        with pytest.raises(ReplayRestoreError, match=r"shard.json is damaged"):
            server.unseal(saved, tables)


def test_damage_that_only_reverb_notices_is_refused(serve, make_experiment, saved):
    """The file was damaged before its digest was taken."""
    file = saved / "reverb" / "items.tfrecord"
    file.write_bytes(file.read_bytes()[:40])
    rewrite(saved, lambda manifest: manifest["files"].pop("items.tfrecord"))
    with pytest.raises(ReplayRestoreError, match="Reverb cannot read it"):
        serve(make_experiment(), restore_from=saved)


@pytest.mark.parametrize(
    ("field", "value", "change"),
    [
        ("samples_per_insert", 2.5, r"samples_per_insert 2.0 \(now 2.5\)"),
        ("capacity", 50, r"capacity 1000 \(now 50\)"),
        ("sampler", "prioritized", r"priority_exponent None \(now 0.6\)"),
    ],
)
def test_other_settings_are_refused_and_listed(serve, make_experiment, saved, field, value, change):
    with pytest.raises(ReplayMismatch, match=change):
        serve(make_experiment(**{field: value}), restore_from=saved)


def test_other_settings_in_reverbs_own_files_are_refused(serve, make_experiment, saved):
    """The manifest has other settings than Reverb's files."""
    rewrite(saved, lambda manifest: manifest["tables"]["samples"]["settings"].update(capacity=500))
    with pytest.raises(ReplayRestoreError, match=r"restored TableSettings.*1000.*expected TableSettings.*500"):
        serve(make_experiment(capacity=500), restore_from=saved)


def test_another_game_is_refused(serve, make_experiment, spec, saved):
    with pytest.raises(ReplayMismatch, match=r"'line .*needs 'ring "):
        serve(make_experiment(), restore_from=saved, spec=spec._replace(name="ring"))


@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_shard_of_a_checkpoint_is_refused_and_so_is_one_without_the_folder_of_all_shards(
    serve, make_experiment, saved, missing
):
    shutil.rmtree([saved, saved.parent][missing])
    with pytest.raises(ReplayRestoreError, match=r"shard.json is missing"):
        serve(make_experiment(), restore_from=saved)


def test_a_checkpoint_that_is_not_found_at_all_is_no_damage(serve, make_experiment, tmp_path):
    with pytest.raises(StorageError, match="storage that all nodes share"):
        serve(make_experiment(), restore_from=tmp_path / "not mounted" / "000000010" / "replay" / "shard-0")


def test_a_restored_server_that_does_not_answer_in_time_is_no_damage(serve, make_experiment, saved, monkeypatch):
    def silent(shard, timeout_s):
        raise ReplayTimeout(f"replay did not answer within {timeout_s:g} s")

    monkeypatch.setattr(Shard, "wait", silent)
    with pytest.raises(ReplayTimeout, match="within 600 s"):
        serve(make_experiment(), restore_from=saved)


def test_a_file_that_cannot_be_read_is_no_damage(serve, make_experiment, saved, monkeypatch):
    def fail(file):
        raise OSError(errno.EIO, "Input/output error", str(file))

    monkeypatch.setattr(storage, "digest_of", fail)
    with pytest.raises(StorageError, match=r"cannot be read .*Input/output error"):
        serve(make_experiment(), restore_from=saved)


def test_restored_samples_are_the_saved_ones(serve, make_experiment, make_samples, spec, saved, samples_of):
    experiment = make_experiment()
    server = serve(experiment, restore_from=saved)
    writer = ShardedWriter(lambda: [server.address()], spec, experiment)
    writer.write(make_samples(8))  # so that the limiter lets a batch pass, whatever was sampled before
    with closing(make_reader(lambda: [server.address()], spec, experiment)) as reader:
        batch = samples_of(next(reader))
    writer.close()
    for observation, version in zip(batch.observation.reshape(-1, 3), batch.version.ravel(), strict=True):
        np.testing.assert_array_equal(observation, make_samples(1, int(version)).observation[0])
