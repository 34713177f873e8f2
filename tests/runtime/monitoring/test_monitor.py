"""The arithmetic of the monitor, with numbers and times made by hand."""

import math
import pickle

import pytest

from podzero.config import load
from podzero.runtime.monitoring.goodput import PaidTime
from podzero.runtime.monitoring.monitor import SILENT_AFTER_S, WINDOW_S, Monitor, RateWindow, bottleneck, kind_of
from podzero.runtime.monitoring.status import RunStatus


@pytest.fixture
def experiment():
    return load("tic_tac_toe", ["stop.minutes=10", "replay.min_size=2000", "replay.capacity=9000"])


@pytest.fixture
def monitor(experiment):
    return Monitor(experiment, now=1000.0)


def test_counts_are_summed_and_other_values_replaced(monitor):
    monitor.add("actor-0", {"count/moves": 100, "count/games": 10, "selfplay/version": 1}, 1001.0)
    monitor.add("actor-1", {"count/moves": 50, "count/games": 5, "count/samples": 45}, 1002.0)
    monitor.add("actor-0", {"count/moves": 25}, 1003.0)
    monitor.add("learner", {"learner/step": 8, "learner/loss": 2.0, "learner/policy_age": 3}, 1003.0)
    monitor.add("learner", {"learner/step": 16, "learner/loss": 1.5}, 1004.0)
    status = monitor.status(1004.0)
    assert (status.moves, status.games, status.samples, status.step) == (175, 15, 45, 16)
    assert (status.loss, status.policy_age) == (1.5, 3)


def test_the_shares_of_an_actor_that_has_ended_no_longer_count(monitor):
    monitor.add("actor-0", {"time/write": 1.0}, 1001.0)
    monitor.add("actor-1", {"time/write": 0.5, "time/search": 0.5}, 1001.0)
    monitor.ended("actor-0", 1002.0)
    assert monitor.status(1002.0).shares["actor"] == {"search": 0.5, "write": 0.5}


def test_training_counts_from_the_first_step_of_each_start_until_it_ends(experiment):
    """Ten minutes of training before; a start that took 40 s; 100 s with steps; a judgement after training."""
    monitor = Monitor(experiment, 1000.0, {"elapsed_s": 600.0}, step=400)
    monitor.add("learner", {"learner/step": 400}, 1030.0)
    assert (monitor.elapsed_s(1040.0), monitor.status(1040.0).phase) == (600.0, "starting")
    assert monitor.share_passed(1040.0) == 1.0
    monitor.add("learner", {"learner/step": 408}, 1040.0)
    assert monitor.status(1040.0).phase == "training"
    monitor.add("learner", {"learner/step": 800}, 1100.0)
    assert monitor.elapsed_s(1140.0) == 700.0
    monitor.enter("stopping", 1140.0)
    monitor.enter("judging", 1150.0, limit_s=60.0)
    status = monitor.status(1190.0)
    assert (status.phase, status.elapsed_s, status.time_left_s) == ("judging", 700.0, 20.0)


def test_a_lost_learner_ends_training_until_it_makes_a_step_again_and_counters_go_on(experiment):
    monitor = Monitor(experiment, 1000.0)
    monitor.add("learner", {"learner/step": 8, "learner/loss": 2.0}, 1010.0)
    monitor.add("learner", {"learner/step": 100, "learner/loss": 1.5}, 1050.0)
    monitor.add("actor-0", {"count/games": 7}, 1050.0)
    monitor.lose_learner(1060.0)
    monitor.step = 40
    assert monitor.share_passed(1060.0) == 0.0, "the progress so far is in the learner's checkpoint"
    status = monitor.status(1500.0)
    assert (status.phase, status.step, status.elapsed_s, status.games) == ("starting", 40, 50.0, 7)
    assert (status.steps_per_s, status.loss, status.bottleneck) == (0.0, None, "")
    monitor.add("learner", {"learner/step": 40}, 1510.0)
    assert monitor.status(1510.0).phase == "starting"
    monitor.add("learner", {"learner/step": 48}, 1520.0)
    assert (monitor.status(1530.0).phase, monitor.elapsed_s(1530.0), monitor.nodes_s(1530.0)) == (
        "training",
        60.0,
        530.0,
    )


def test_a_run_without_a_step_has_not_trained():
    monitor = Monitor(load("tic_tac_toe", ["stop.minutes=10", "stop.games=2"]), now=1000.0)
    monitor.add("learner", {"learner/step": 0}, 1100.0)
    monitor.add("actor-0", {"count/games": 1}, 1598.0)
    monitor.add("actor-0", {"count/games": 1}, 1599.0)
    status = monitor.status(1600.0)
    assert (status.elapsed_s, status.time_left_s) == (0.0, 600.0)
    monitor.enter("stopping", 1600.0)
    monitor.add("learner", {"learner/step": 8}, 1601.0)
    assert monitor.status(1700.0).elapsed_s == 0.0


def test_the_share_of_the_run_is_of_the_minutes_and_games_that_were_left(experiment):
    """Resumed after 4 of 10 minutes and 100 of 300 games: 3 minutes later half of the minutes left have passed, and
    with 150 games more three quarters of the games."""
    experiment = experiment.model_copy(update={"stop": experiment.stop.model_copy(update={"games": 300})})
    monitor = Monitor(experiment, 1000.0, {"elapsed_s": 240.0, "games": 100.0})
    monitor.add("learner", {"learner/step": 8}, 1000.0)
    assert monitor.share_passed(1000.0) == 0.0
    assert monitor.share_passed(1180.0) == pytest.approx(0.5)
    monitor.add("actor-0", {"count/games": 150}, 1180.0)
    assert monitor.share_passed(1180.0) == pytest.approx(0.75)
    assert monitor.share_passed(9999.0) == 1.0


def test_rates_leave_out_the_first_report(monitor):
    monitor.add("actor-0", {"count/moves": 1000}, 1040.0)  # 40 s of compilation
    assert monitor.status(1040.0).moves_per_s == 0.0
    monitor.add("actor-0", {"count/moves": 300}, 1050.0)
    assert monitor.status(1050.0).moves_per_s == pytest.approx(30.0)


def test_the_step_is_that_of_the_learner(experiment, monitor):
    assert Monitor(experiment, now=0.0, step=400).step == 400
    monitor.add("learner", {"learner/step": 8}, 1001.0)
    monitor.add("actor-0", {"count/moves": 8}, 1001.0)
    assert monitor.step == 8


def test_phases_follow_the_metrics(monitor):
    assert monitor.status(1001.0).phase == "starting"
    monitor.add("actor-0", {"count/moves": 0}, 1001.0)
    assert monitor.status(1001.0).phase == "starting"
    monitor.add("actor-0", {"count/moves": 64}, 1002.0)
    assert monitor.status(1002.0).phase == "collecting"
    monitor.add("learner", {"learner/step": 0}, 1003.0)
    assert monitor.status(1003.0).phase == "collecting"
    monitor.add("learner", {"learner/step": 8}, 1004.0)
    assert monitor.status(1004.0).phase == "training"
    monitor.enter("stopping", 1004.0)
    assert monitor.status(1004.0).phase == "stopping"


def test_the_best_snapshot_is_the_first_with_the_highest_score_and_a_resumed_run_knows_it(experiment, monitor):
    assert monitor.status(1000.0).best == {}
    for step, score in ((10, 0.5), (20, 0.8), (30, 0.8), (40, 0.6)):
        monitor.add("evaluator", {"evaluation/step": float(step), "evaluation/keeps_value": score}, 1000.0 + step)
    assert monitor.status(1050.0).best["best_step"] == 20
    counters = monitor.counters(1050.0)
    assert (counters["best_score"], counters["evaluations_since_best"]) == (0.8, 2)
    resumed = Monitor(experiment, 2000.0, counters, step=40)
    resumed.add("evaluator", {"evaluation/step": 50.0, "evaluation/elo": 900.0, "evaluation/keeps_value": 0.7}, 2001.0)
    assert resumed.status(2001.0).best["best_step"] == 20
    assert resumed.counters(2001.0)["evaluations_since_best"] == 3
    resumed.add("evaluator", {"evaluation/step": 60.0, "evaluation/keeps_value": math.nan}, 2002.0)
    resumed.add("evaluator", {"evaluation/step": 70.0, "evaluation/keeps_value": 0.9}, 2003.0)
    assert resumed.status(2003.0).best["best_step"] == 70
    assert resumed.counters(2003.0)["evaluations_since_best"] == 0


def test_counters_continue_from_the_checkpoint(experiment, monitor):
    monitor.add("learner", {"learner/step": 8}, 1020.0)
    monitor.add("actor-0", {"count/moves": 640, "count/games": 80, "count/samples": 600, "count/restarts": 1}, 1100.0)
    saved = monitor.counters(1120.0)
    assert saved == {
        "games": 80, "moves": 640, "samples": 600, "restarts": 1, "failed_episodes": 0, "damaged_shards": 0,
        "ledger/samples/lost": 0, "elapsed_s": 100.0, "nodes_s": 120.0, "training_s": 0.0,
    }  # fmt: skip

    resumed = Monitor(experiment, now=5.0, counters=saved, step=400)
    first = resumed.status(5.0)
    assert (first.games, first.moves, first.samples, first.step, first.elapsed_s) == (80, 640, 600, 400, 100.0)
    resumed.add("learner", {"learner/step": 408}, 20.0)
    resumed.add("actor-0", {"count/moves": 10, "count/games": 2, "count/samples": 18}, 15.0)
    assert resumed.counters(25.0) == {
        "games": 82, "moves": 650, "samples": 618, "restarts": 1, "failed_episodes": 0, "damaged_shards": 0,
        "ledger/samples/lost": 0, "elapsed_s": 105.0, "nodes_s": 140.0, "training_s": 0.0,
    }  # fmt: skip
    assert resumed.status(25.0).moves_per_s == 0.0, "restored counts are not a rate"


def test_a_count_that_is_nan_is_left_out(monitor):
    monitor.add("actor-0", {"count/moves": 5}, 1001.0)
    monitor.add("actor-0", {"count/moves": math.nan}, 1002.0)
    assert monitor.status(1002.0).moves == 5


def test_time_left_is_that_of_the_first_limit():
    experiment = load("tic_tac_toe", ["stop.minutes=10", "stop.steps=1000", "stop.games=500"])
    monitor = Monitor(experiment, now=0.0)
    monitor.add("learner", {"learner/step": 100}, 60.0)
    assert monitor.status(120.0).time_left_s == pytest.approx(540.0)
    monitor.add("learner", {"learner/step": 200}, 70.0)  # 10 steps/s: 80 s to go
    assert monitor.status(70.0).time_left_s == pytest.approx(80.0)
    monitor.add("actor-0", {"count/games": 300}, 60.0)
    monitor.add("actor-0", {"count/games": 100}, 70.0)  # 10 games/s: 10 s to go
    assert monitor.status(70.0).time_left_s == pytest.approx(10.0)
    monitor.add("learner", {"learner/step": 1000}, 70.0)
    assert monitor.status(70.0).time_left_s == 0.0


def test_without_limits_there_is_no_time_left():
    monitor = Monitor(load("tic_tac_toe", ["stop.minutes="]), now=0.0)
    assert monitor.status(9.0).time_left_s is None


def test_replay_is_the_sum_of_its_shards_and_its_ratio_their_weighted_mean(monitor):
    monitor.add("replay-0", {"replay/size": 100, "replay/inserted": 300, "replay/sampled": 1200}, 1001.0)
    monitor.add("replay-1", {"replay/size": 50, "replay/inserted": 100, "replay/sampled": 200}, 1001.0)
    status = monitor.status(1001.0)
    assert (status.replay_size, status.replay_capacity) == (150, 9000)
    assert status.samples_per_insert == pytest.approx((4.0 * 300 + 2.0 * 100) / 400)


def test_a_replay_without_inserts_has_no_ratio(monitor):
    monitor.add("replay-0", {"replay/size": 0, "replay/inserted": 0, "replay/sampled": 0}, 1001.0)
    assert monitor.status(1001.0).samples_per_insert is None


def test_evaluations_carry_their_step(monitor):
    assert monitor.status(1001.0).rated_step is None
    metrics = {"step": 400, "elo": 120.0, "elo_error": 30.0, "keeps_value": 0.7, "score_mcts:100": 0.25}
    monitor.add("evaluator", {f"evaluation/{name}": value for name, value in metrics.items()}, 1001.0)
    status = monitor.status(1001.0)
    assert (status.rated_step, status.rating, status.rating_error, status.keeps_value) == (400, 120.0, 30.0, 0.7)
    assert status.scores == {"mcts:100": 0.25}


def test_the_kind_of_environment_decides_how_it_is_told(monitor):
    assert not monitor.status(1001.0).episodic
    assert Monitor(load("cartpole"), now=0.0).status(1.0).episodic


def test_returns_are_those_of_the_evaluator_and_the_mean_over_actors(monitor):
    assert monitor.status(1001.0).acting_return is None
    monitor.add("actor-0", {"acting/mean_return": 100.0, "count/failed_episodes": 2}, 1001.0)
    monitor.add("actor-1", {"acting/mean_return": 300.0, "count/failed_episodes": 1}, 1001.0)
    monitor.add("evaluator", {"evaluation/mean_return": 480.0, "evaluation/std_return": 20.0}, 1001.0)
    status = monitor.status(1001.0)
    assert (status.acting_return, status.mean_return, status.std_return) == (200.0, 480.0, 20.0)
    assert status.failed_episodes == 3


def test_shares_of_time_are_means_over_the_workers_that_reported_lately(monitor):
    monitor.add("actor-0", {"time/search": 0.5, "time/write": 0.5}, 1000.0)
    monitor.add("actor-1", {"time/search": 1.0}, 1100.0)
    assert monitor.status(1100.0).shares == {"actor": {"search": 0.75, "write": 0.25}}
    assert monitor.status(1001.0 + SILENT_AFTER_S).shares == {"actor": {"search": 1.0}}


def test_shares_of_each_kind_add_up_to_one_also_those_of_devices_that_train_and_play(monitor):
    monitor.add("learner", {"time/step": 0.5, "time/other": 0.5}, 1000.0)
    monitor.add("actor-0", {"time/search": 1.0}, 1001.0)
    monitor.add("actor-1", {"time/write": 0.25, "time/other": 0.75}, 1001.0)
    assert list(monitor.status(1001.0).shares) == ["actor", "learner"]
    for at, trained, played in ((1002.0, 9.0, 9.0), (1004.0, 1.0, 0.0), (1006.0, 0.0, 2.0)):
        monitor.add("learner", {"count/device_s": trained, "count/play_s": played}, at)
    shares = monitor.status(1006.0).shares
    assert list(shares) == ["actor", "device", "learner"]
    assert shares["device"] == {"train": 0.25, "play": 0.5, "idle": 0.25}  # the first report only marks the start
    assert [sum(stages.values()) for stages in shares.values()] == pytest.approx([1.0] * 3)


def test_shares_of_time_are_those_of_one_report(monitor):
    monitor.add("actor-0", {"time/wait_params": 1.0}, 1000.0)
    monitor.add("actor-0", {"time/search": 0.75, "time/write": 0.25}, 1002.0)
    monitor.add("actor-0", {"selfplay/version": 8}, 1004.0)
    assert monitor.status(1004.0).shares == {"actor": {"search": 0.75, "write": 0.25}}


@pytest.mark.parametrize(
    ("worker", "kind"), [("actor-0", "actor"), ("actor-12", "actor"), ("learner", "learner"), ("a-b", "a-b")]
)
def test_the_kind_of_a_worker_is_its_name_without_the_number(worker, kind):
    assert kind_of(worker) == kind


def test_reanalysed_samples_are_counted_apart_from_new_ones(monitor):
    for second in (1010.0, 1020.0):
        monitor.add("reanalyser-0", {"count/reanalysed": 500.0}, second)
    status = monitor.status(1020.0)
    assert status.reanalysed_per_s == 50.0
    assert status.samples == status.moves == 0


def test_the_figures_of_inference_servers_are_rates_means_or_those_of_the_slowest(monitor):
    for second in (1010.0, 1020.0):
        monitor.add("inference-0", {"count/served": 500.0, "server/busy": 0.5, "server/latency_ms_p99": 4.0}, second)
        monitor.add("inference-1", {"server/busy": 0.9, "server/latency_ms_p99": 9.0}, second)
    status = monitor.status(1020.0)
    assert status.served_per_s == 50.0
    assert status.server_busy == pytest.approx(0.7)
    assert status.server_latency_p99_ms == 9.0
    assert status.server_fill is None


def test_shares_of_time_stay_the_same_while_the_run_stops(monitor):
    monitor.add("actor-0", {"time/search": 0.9, "time/write": 0.1}, 1002.0)
    monitor.enter("stopping", 1002.0)
    monitor.add("actor-0", {"time/write": 1.0, "count/moves": 5}, 1003.0)
    assert monitor.status(1003.0).shares == {"actor": {"search": 0.9, "write": 0.1}}


@pytest.fixture
def pod():
    """A run on a pod with 5 steps of 512 samples and 3,000 moves a second, half an hour after its start."""
    experiment = load("tic_tac_toe", ["learner.batch_size=512", "cluster.price_per_hour=24"])
    monitor = Monitor(experiment, now=0.0, counters={"samples": 1_500_000, "elapsed_s": 3600.0})
    for second in (1790.0, 1800.0):
        monitor.add("learner", {"learner/step": 5 * (second - 1780), "learner/chips": 16, "learner/hosts": 4}, second)
        monitor.add("actor-0", {"count/moves": 30_000, "count/samples": 250_000}, second)
    return monitor


def test_rates_are_divided_by_chips_and_hosts(pod):
    status = pod.status(1800.0)
    assert (status.chips, status.hosts) == (16, 4)
    assert status.step_s == pytest.approx(0.2)
    assert status.samples_per_s == pytest.approx(2560.0)
    assert status.samples_per_s_per_chip == pytest.approx(160.0)
    assert status.samples_per_s_per_host == pytest.approx(640.0)
    assert status.moves_per_s_per_chip == pytest.approx(187.5)
    assert status.moves_per_s_per_host == pytest.approx(750.0)


def test_cost_includes_all_resumptions_and_what_comes_before_and_after_training(pod):
    pod.enter("judging", 1795.0)
    status = pod.status(1800.0)
    assert status.cost == pytest.approx(36.0)  # an hour before and half an hour now, at 24
    assert status.cost_per_million_samples == pytest.approx(18.0)  # two million samples


def test_utilization_needs_a_learner_and_cost_needs_a_price(monitor):
    status = monitor.status(1001.0)
    assert (status.chips, status.samples_per_s_per_chip, status.step_s, status.share_of_peak) == (None,) * 4
    assert (status.hbm_bytes, status.cost, status.cost_per_million_samples) == (None,) * 3
    priced = Monitor(load("tic_tac_toe", ["cluster.price_per_hour=24"]), now=0.0).status(150.0)
    assert (priced.cost, priced.cost_per_million_samples) == (1.0, None)


def test_memory_is_that_of_the_fullest_chip_of_all_hosts(pod):
    pod.add("learner", {"learner/hbm_bytes": 5.0, "learner/hbm_peak_bytes": 8.0, "learner/hbm_limit_bytes": 16.0}, 1.0)
    pod.add("learner-1", {"learner/hbm_bytes": 7.0, "learner/hbm_peak_bytes": 7.0, "time/step": 0.5}, 1.0)
    status = pod.status(1800.0)
    assert (status.hbm_bytes, status.hbm_peak_bytes, status.hbm_limit_bytes) == (7.0, 8.0, 16.0)


def test_share_of_peak_and_busy_devices_cover_the_last_minute(pod):
    peak = {"learner/peak_flops": 2.56e12, "learner/flops_per_sample": 1e8}
    pod.add("learner", peak | {"learner/device_busy": 0.9, "count/device_s": 1.8}, 1790.0)
    pod.add("learner", {"learner/share_of_peak": 0.0, "learner/device_busy": 0.0, "count/device_s": 4.0}, 1800.0)
    status = pod.status(1800.0)
    assert status.share_of_peak == pytest.approx(0.1)  # 2,560 samples/s of 0.1 GFLOP each
    assert status.device_busy == pytest.approx(0.4)  # four of the ten seconds since the first report


def test_a_rate_that_nobody_asks_for_takes_no_more_memory_than_its_window():
    window = RateWindow()
    for now in range(1000):
        window.add(float(now), now)
    assert len(window._points) <= WINDOW_S + 1
    assert window.per_s(999.0) == pytest.approx(1.0)


def test_the_rate_covers_the_window_only():
    window = RateWindow()
    for second in range(0, 301, 10):
        window.add(float(second), 5.0 * min(second, 200) + 50.0 * max(second - 200, 0))
        rate = {200: 5.0, 230: (30 * 5.0 + 30 * 50.0) / 60, 260: 50.0}.get(second)
        assert rate is None or window.per_s(float(second)) == pytest.approx(rate)
    assert window.per_s(300.0) == pytest.approx(50.0)
    assert window.per_s(300.0 + 2 * WINDOW_S) == 0.0


def test_the_rate_falls_during_a_silence():
    window = RateWindow()
    window.add(0.0, 0.0)
    window.add(30.0, 300.0)
    assert window.per_s(30.0) == pytest.approx(10.0)
    assert window.per_s(59.0) == pytest.approx(300 / 59)
    assert window.per_s(1000.0) == 0.0


def test_a_rate_ends_soon_after_the_last_report():
    window = RateWindow()
    for second in range(0, 41, 2):
        window.add(float(second), 5.0 * second)
    assert window.per_s(44.0) > 4.0
    assert window.per_s(52.0) == 0.0


def test_silent_workers_are_in_the_status_and_their_shares_of_time_are_not(monitor):
    for worker, stage in (("learner", "wait_replay"), ("actor-0", "write")):
        monitor.add(worker, {f"time/{stage}": 1.0}, 1000.0)
    status = monitor.status(1030.0, {"learner": 25.0})
    assert status.silent == {"learner": 25.0}
    assert set(status.shares) == {"actor"}


def test_workers_that_start_again_have_no_rate_of_before(monitor):
    for second in (1000.0, 1010.0):
        monitor.add("learner", {"learner/step": second}, second)
    assert monitor.status(1011.0).steps_per_s > 0
    monitor.enter("starting", 1011.0)
    status = monitor.status(1011.0)
    assert (status.steps_per_s, status.samples_per_s, status.step_s, status.shares) == (0.0, 0.0, None, {})


def test_many_reporters_take_bounded_memory():
    window = RateWindow()
    for tick in range(100_000):
        window.add(tick / 1000, float(tick))
    assert len(pickle.dumps(window)) < 5_000
    assert window.per_s(100.0) == pytest.approx(1000.0, rel=0.05)


def limit(phase, shares, size, min_size, busy=None, **more):
    status = RunStatus("test", phase, 0.0, shares=shares, replay_size=size, server_busy=busy)
    return bottleneck(status, min_size, **more)


@pytest.mark.parametrize(
    ("actor", "learner", "words"),
    [
        ({"search": 0.9, "write": 0.05}, {"step": 0.5, "wait_replay": 0.5}, ("learner waits", "actors", "50%")),
        ({"search": 0.9, "write": 0.05}, {"step": 0.5, "wait_replay": 0.5}, ("90%", "search")),
        ({"search": 0.4, "write": 0.6}, {"step": 1.0}, ("actors wait", "learner", "60%")),
        ({"search": 0.9}, {"step": 0.7, "host_to_device": 0.3}, ("learner", "30%", "host to device")),
        ({"search": 0.9, "write": 0.1}, {"step": 0.9, "wait_replay": 0.1}, ("none",)),
    ],
)
def test_the_side_that_waits_longest_is_named(actor, learner, words):
    text = limit("training", {"actor": actor, "learner": learner}, 5000, 2000)
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("blocked", "starved", "words"),
    [
        ((0.9, 0.0), 0.6, ("learner waits", "reanalysers", "60%")),
        ((0.0, 0.9), 0.6, ("learner waits", "actors", "60%")),
        ((0.4, 0.5), 0.0, ("actors wait", "learner", "40%")),
    ],
)
def test_of_actors_and_reanalysers_the_slower_kind_is_named(blocked, starved, words):
    shares = {kind: {"write": write} for kind, write in zip(("actor", "reanalyser"), blocked, strict=True)}
    shares["learner"] = {"wait_replay": starved}
    text = limit("training", shares, 5000, 2000)
    for word in words:
        assert word in text


@pytest.mark.parametrize(("busy", "named"), [(0.97, True), (0.5, False), (None, False)])
def test_servers_that_limit_the_actors_are_named(busy, named):
    shares = {"actor": {"search": 0.9}, "learner": {"wait_replay": 0.5}}
    text = limit("training", shares, 5000, 2000, busy)
    assert ("inference servers' devices are busy 97%" in text) == named


def test_while_replay_fills_the_learner_waits_for_its_first_samples():
    waiting = limit("collecting", {}, 500, 2000)
    assert "2,000" in waiting
    assert "25%" in waiting
    assert "compiling" in limit("collecting", {}, 2000, 2000)


def test_without_shares_of_time_there_is_no_bottleneck():
    assert limit("starting", {}, 0, 2000) == ""
    assert limit("training", {}, 5000, 2000) == ""


def test_a_learner_without_self_play_waits_for_recorded_games():
    shares = {"learner": {"wait_replay": 0.4, "step": 0.6}}
    assert "recorded games" in limit("training", shares, 0, 2000, has_self_play=False)
    assert limit("training", {"learner": {"step": 1.0}}, 0, 2000, has_self_play=False) == ""


def test_what_a_run_has_taken_counts_waits_for_nodes_and_no_checkpoint_takes_it_back():
    experiment = load("tic_tac_toe", ["stop.minutes=", "stop.hours=2", "cluster.price_per_hour=24"])
    monitor = Monitor(experiment, 0.0, {"nodes_s": 1800.0}, paid=PaidTime(0.0, {"start": 3600.0}))
    monitor.enter("starting", 600.0)
    status = monitor.status(1800.0)
    assert (status.hours, status.cost, monitor.counters(1800.0)["nodes_s"]) == (1.5, 36.0, 5400.0)
    assert monitor.share_passed(1800.0) == 0.5  # of the hour that was left
    assert Monitor(experiment, 0.0, paid=PaidTime(0.0, {"start": 3600.0})).status(1800.0).time_left_s == 1800.0
    monitor.enter("ended", 2400.0)
    assert monitor.nodes_s(9999.0) == 6000.0


def test_the_publication_lag_counts_the_learners_publications_since_the_actors_parameters(monitor):
    """Published every 32 steps: versions 64, 96 and 128 are 2, 1 and 0 publications behind 128, and 160 is newer. At
    48 steps/s there are three publications more after two seconds, and no more are assumed of a silent learner."""
    monitor.add("actor-9", {"selfplay/version": 0}, 1000.0)
    assert monitor.status(1000.0).publication_lag == {}, "the learner has not said what it published"
    monitor.add("learner", {"learner/published": 128, "learner/publish_steps": 32}, 1001.0)
    for index, version in enumerate((64, 96, 128, 160)):
        monitor.add(f"actor-{index}", {"acting/version": version}, 1002.0)
    assert monitor.status(1002.0).publication_lag == {"min": 0, "median": 0, "p99": 2, "max": 2}
    assert monitor.metrics(1002.0)["actors/lag_max"] == 2
    for at, step in ((1002.0, 128), (1003.0, 176)):
        monitor.add("learner", {"learner/step": step, "learner/published": step}, at)
    for at in (1005.0, 1009.0):
        monitor.add("actor-0", {"acting/version": 176}, at)
        assert monitor.status(at).publication_lag["max"] == 3


def test_the_spread_of_the_policy_age_is_the_learners(monitor):
    assert monitor.status(1001.0).policy_age_spread == {}
    ages = {
        "learner/policy_age": 4,
        "learner/policy_age_median": 3,
        "learner/policy_age_p99": 9,
        "learner/policy_age_max": 12,
    }
    monitor.add("learner", ages, 1001.0)
    assert monitor.status(1001.0).policy_age_spread == {"median": 3, "p99": 9, "max": 12}
