import threading
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest

from podzero.core.errors import ConfigError
from podzero.learner import TrainingDiverged, publishing
from podzero.learner.publishing import Prefetcher


class EmptyReader:
    """A reader that blocks until it is closed."""

    def __init__(self):
        self._closed = threading.Event()

    def __iter__(self):
        return self

    def __next__(self):
        self._closed.wait(60)
        raise StopIteration

    def close(self):
        self._closed.set()


def test_stops_at_stop_steps_and_publishes_each_version_in_order(start, make_experiment):
    learner, reader, sink, reports = start(make_experiment(steps=10))
    learner.run()
    assert sink.versions == [0, 4, 8, 10]
    assert reader.closed
    worker, metrics = reports[-1]
    assert worker == "learner"
    assert metrics["learner/step"] == 10
    assert learner.acting_params().version == 10


def test_published_parameters_are_the_averaged_ones_on_the_host(start, make_experiment):
    learner, _, sink, _ = start(make_experiment(steps=4))
    learner.run()
    first, last = sink.published[0][1], sink.published[-1][1]
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(last))
    assert (first["heads"]["kernel"] != last["heads"]["kernel"]).any()
    ema = jax.device_get(learner.state.ema)
    jax.tree.map(np.testing.assert_array_equal, last, ema)


def test_reports_contain_all_metrics(start, make_experiment):
    learner, _, _, reports = start(make_experiment(steps=10))
    learner.run()
    metrics = {name for _, report in reports for name in report}
    assert metrics >= {
        "learner/step", "learner/loss", "learner/policy_loss", "learner/value_loss", "learner/gradient_norm",
        "learner/learning_rate", "learner/steps_per_s", "learner/samples_per_s", "learner/policy_age",
        "count/skipped_steps", "time/wait_replay", "time/host_to_device", "time/step", "time/publish",
    }  # fmt: skip
    for _, report in reports:
        assert sum(share for name, share in report.items() if name.startswith("time/")) == pytest.approx(1.0)


def test_the_policy_age_is_the_step_minus_the_version_of_the_samples(start, make_experiment):
    learner, _, _, reports = start(make_experiment(steps=10))
    learner.run()  # all samples are of version 0, the steps are 0 to 9
    ages = [report["learner/policy_age"] for _, report in reports if "learner/policy_age" in report]
    assert min(ages) >= 0
    assert max(ages) <= 9
    if len(ages) == 1:
        assert ages[0] == pytest.approx(4.5)


class Recorded(EmptyReader):
    """A reader of these dispatches, which blocks after the last one."""

    def __init__(self, dispatches):
        super().__init__()
        self._left = list(dispatches)

    def __next__(self):
        return self._left.pop(0) if self._left else super().__next__()


def test_a_resumed_run_equals_an_uninterrupted_run(start, make_experiment, make_dispatch, tmp_path):
    dispatches = [make_dispatch(2, 16, seed) for seed in range(6)]
    experiment = make_experiment(steps=12, optimizer={"schedule": "cosine"})
    uninterrupted, *_ = start(experiment, Recorded(dispatches))
    uninterrupted.run()

    first, *_ = start(experiment, Recorded(dispatches[:3]))
    thread = threading.Thread(target=first.run)
    thread.start()
    while first.step < 6:
        time.sleep(0.01)
    assert first.request_checkpoint(tmp_path / "6").result(60) == 6
    first.stop()
    thread.join(60)
    second, _, sink, reports = start(experiment, Recorded(dispatches[3:]), restore_from=tmp_path / "6")
    second.run()
    assert sink.versions == [6, 8, 12]
    assert reports[-1][1]["learner/step"] == 12
    assert words(second.state) == words(uninterrupted.state)


def words(state):
    """All bytes of a state: parameters, their average, the optimizer, the random key, steps and progress."""
    keys = jax.random.key_data(state.key)
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(replace(state, key=keys))]


def test_a_resumed_run_may_have_other_steps_per_dispatch(start, make_experiment, tmp_path):
    """On CPUs `auto` stands for 4."""
    first, *_ = start(make_experiment(steps=6))
    first.run()
    first.request_checkpoint(tmp_path / "6").result(60)
    experiment = make_experiment(steps=22, steps_per_dispatch="auto", publish_every=8)
    second, _, sink, _ = start(experiment, restore_from=tmp_path / "6")
    second.run()
    assert sink.versions == [6, 10, 18, 22]  # the dispatches with a multiple of 8, and the ends


def test_the_progress_of_the_run_is_saved_and_the_rest_of_a_longer_run_is_spread_over_its_rest(
    start, make_experiment, tmp_path
):
    """Dispatches begin at the steps 0, 2, 4 and 6 of 8. Resumed there for 16 steps, 8 are left for the last quarter."""
    first, *_ = start(make_experiment(steps=8))
    first.run()
    assert float(first.state.progress) == 0.75
    first.request_checkpoint(tmp_path / "8").result(60)
    second, *_ = start(make_experiment(steps=16), restore_from=tmp_path / "8")
    assert [second.progress.at(step) for step in (8, 12, 16)] == [0.75, 0.875, 1.0]


def test_the_minutes_and_games_that_the_driver_tells_count_as_the_steps_do(start, make_experiment):
    learner, *_ = start(make_experiment(steps=8))
    learner.progress.tell(0.875)
    learner.run()
    assert float(learner.state.progress) == 0.875


def test_parameters_are_published_and_checkpoints_saved_while_replay_is_empty(start, make_experiment, tmp_path):
    learner, _, sink, _ = start(make_experiment(), EmptyReader())
    thread = threading.Thread(target=learner.run)
    thread.start()
    try:
        assert learner.request_checkpoint(tmp_path / "0").result(60) == 0
        assert sink.versions == [0]
    finally:
        learner.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert (tmp_path / "0" / "learner" / "manifest.json").is_file()


def test_a_checkpoint_is_taken_at_a_dispatch_boundary_of_a_running_learner(start, make_experiment, tmp_path):
    learner, *_ = start(make_experiment())
    thread = threading.Thread(target=learner.run)
    thread.start()
    try:
        step = learner.request_checkpoint(tmp_path / "x").result(60)
    finally:
        learner.stop()
        thread.join(60)
    assert step % 2 == 0
    restored, *_ = start(make_experiment(), restore_from=tmp_path / "x")
    assert int(restored.state.step) == step


def test_a_failed_save_fails_its_future_and_not_the_training(start, make_experiment, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    learner, _, sink, _ = start(make_experiment(steps=4))
    future = learner.request_checkpoint(tmp_path / "file" / "x")
    learner.run()
    with pytest.raises(OSError, match="file"):
        future.result(10)
    assert sink.versions[-1] == 4


def test_an_earlier_failed_save_does_not_fail_the_end_of_the_run(start, make_experiment, tmp_path, monkeypatch):
    wait = orbax.checkpoint.AsyncCheckpointer.wait_until_finished

    def fail(checkpointer):
        wait(checkpointer)
        raise OSError(28, "No space left on device")

    learner, _, sink, _ = start(make_experiment(steps=4))
    monkeypatch.setattr(orbax.checkpoint.AsyncCheckpointer, "wait_until_finished", fail)
    future = learner.request_checkpoint(tmp_path / "x")
    learner.run()
    with pytest.raises(OSError, match="No space left"):
        future.result(10)
    assert sink.versions[-1] == 4


def test_an_error_of_the_reader_ends_the_run_with_that_error(start, make_experiment):
    class Broken(EmptyReader):
        def __next__(self):
            raise ConnectionError("replay is gone")

    learner, *_ = start(make_experiment(steps=4), Broken())
    with pytest.raises(ConnectionError, match="replay is gone"):
        learner.run()


def test_a_learner_that_waits_for_its_first_batch_for_long_trains_when_it_comes(start, make_experiment, make_dispatch):
    """It reports meanwhile that all of its time is spent waiting."""
    arrived = threading.Event()

    class Late(EmptyReader):
        def __next__(self):
            arrived.wait(60)
            return make_dispatch(2, 16)

    learner, _, sink, reports = start(make_experiment(steps=4), Late())
    thread = threading.Thread(target=learner.run)
    thread.start()
    while not any(report["time/wait_replay"] > 0.9 for _, report in reports):
        time.sleep(0.05)
    assert learner.step == 0
    arrived.set()
    thread.join(60)
    assert sink.versions == [0, 4]


def test_what_runs_beside_it_may_end_the_run_with_an_error_while_replay_is_empty(start, make_experiment):
    learner, *_ = start(make_experiment(steps=4), EmptyReader())
    learner.fail(ConnectionError("the server beside it is gone"))
    with pytest.raises(ConnectionError, match=r"server .*gone"):
        learner.run()


def test_publications_that_fail_are_skipped_and_counted_and_training_goes_on(start, make_experiment, caplog):
    learner, _, sink, reports = start(make_experiment(steps=20))
    publish, failures = sink.publish, [ConnectionError("the store restarts"), TimeoutError("no answer for 60 s")]

    def fail_twice(version, params):
        if failures:
            raise failures.pop()
        publish(version, params)

    sink.publish = fail_twice
    learner.run()
    assert sink.versions == [8, 12, 16, 20]
    assert sum(report["count/skipped_publications"] for _, report in reports) == 2
    assert learner.acting_params().version == 20
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "parameters were not published" in warning
    assert "no answer for 60 s" in warning


def test_parameters_that_are_not_finite_are_neither_published_nor_kept_for_snapshots(start, make_experiment, caplog):
    learner, _, sink, reports = start(make_experiment(steps=8))
    learner.state = replace(learner.state, ema=jax.tree.map(lambda leaf: leaf * jnp.nan, learner.state.ema))
    learner.run()  # the moving average never loses a NaN
    assert sink.versions == []
    assert learner.acting_params() is None
    assert sum(report["count/skipped_publications"] for _, report in reports) >= 2
    assert any("not finite" in record.getMessage() for record in caplog.records)


def test_snapshots_get_the_newest_parameters_although_none_can_be_published(start, make_experiment):
    learner, _, sink, _ = start(make_experiment(steps=8))

    def publish(version, params):
        raise ConnectionError("the store is gone")

    sink.publish = publish
    learner.run()
    assert learner.acting_params().version == 8


def test_a_publication_that_hangs_delays_training_once(start, make_experiment, monkeypatch):
    monkeypatch.setattr("podzero.learner.publishing.PUBLISH_WAIT_S", 0.2)
    waits, go_on = [], threading.Event()
    wait = publishing.wait

    def recorded(futures, timeout):
        waits.extend({timeout} & {0.0, 0.2})  # not those for batches
        return wait(futures, timeout)

    monkeypatch.setattr(publishing, "wait", recorded)
    learner, _, sink, reports = start(make_experiment(steps=16))

    def hang(version, params):
        go_on.wait(60)

    sink.publish = hang
    try:
        learner.run()
    finally:
        go_on.set()
    assert learner.step == 16
    assert waits[0] == 0.2
    assert set(waits[1:]) == {0.0}
    assert sum(report["count/skipped_publications"] for _, report in reports) == 4


def test_steps_that_are_not_finite_are_counted_in_the_report(start, make_experiment, make_reader, make_dispatch):
    good, bad = make_dispatch(2, 16), make_dispatch(2, 16, value_target=((0, 0), np.nan))
    learner, _, _, reports = start(make_experiment(steps=8), make_reader([good, bad]))
    learner.run()
    assert sum(report["count/skipped_steps"] for _, report in reports) == 2


def test_training_that_stays_not_finite_ends_with_an_error(start, make_experiment, make_reader, make_dispatch):
    bad = make_dispatch(100, 1, value_target=(slice(None), np.nan))
    experiment = make_experiment(batch_size=1, steps_per_dispatch=100, publish_every=100)
    learner, *_ = start(experiment, make_reader([bad]))
    with pytest.raises(TrainingDiverged, match="last 1,000 steps, after step 0,"):
        learner.run()


def test_stop_before_run_publishes_without_training(start, make_experiment):
    learner, _, sink, _ = start(make_experiment())
    learner.stop()
    learner.run()
    assert sink.versions == [0]


def test_a_slow_sink_blocks_the_loop_instead_of_queueing(start, make_experiment):
    learner, _, sink, _ = start(make_experiment(steps=12))
    in_progress, counts = [], []
    fast_publish = sink.publish

    def publish(version, params):
        in_progress.append(version)
        counts.append(len(in_progress))
        time.sleep(0.05)
        fast_publish(version, params)
        in_progress.remove(version)

    sink.publish = publish
    learner.run()
    assert max(counts) == 1
    assert sink.versions == [0, 4, 8, 12]


def test_a_mesh_that_does_not_fit_the_devices_is_refused(start, make_experiment):
    with pytest.raises(ConfigError, match=r"learner\.mesh"):
        start(make_experiment(mesh={"model": 64}))


def test_the_prefetcher_reads_at_most_one_dispatch_ahead(make_dispatch):
    read = []

    class Counting(EmptyReader):
        def __next__(self):
            read.append(len(read))
            return make_dispatch(1, 4)

    with Prefetcher(Counting()) as prefetcher:
        for wanted in range(1, 4):
            assert prefetcher.poll(10.0) is not None
            time.sleep(0.1)
            assert len(read) <= wanted + 1
