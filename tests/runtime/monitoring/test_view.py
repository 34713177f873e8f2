"""What the line and the panel show of a status."""

import dataclasses
import io
import logging

import pytest
from rich.console import Console

from podzero.runtime.monitoring.ledger import Books
from podzero.runtime.monitoring.status import RunStatus
from podzero.runtime.monitoring.view import clock, status_line, status_panel

NEW = RunStatus("connect_four", "starting", 3.0)
FULL = RunStatus(
    "connect_four", "training", 812.0, time_left_s=388.0, step=12_344, games=30_211, moves=1_204_455, samples=1_100_233,
    moves_per_s=1520.3, games_per_s=38.2, steps_per_s=15.4, evaluations_per_s=50_123.0, replay_size=143_000,
    replay_capacity=200_000, samples_per_insert=4.02, policy_age=88.0, loss=1.823, policy_loss=1.5, value_loss=0.323,
    rating=812.2, rating_error=33.1, rated_step=11_000, keeps_value=0.8123, scores={"random": 1.0, "mcts:100": 0.83},
    restarts=2, shares={"actor": {"search": 0.93, "write": 0.02}, "learner": {"step": 0.55, "wait_replay": 0.41}},
    bottleneck="the learner waits for the actors (41% of its time)",
)  # fmt: skip
POD = dataclasses.replace(
    FULL, step_s=1 / 15.4, chips=16, hosts=4, samples_per_s_per_chip=12_345.0, samples_per_s_per_host=49_380.0,
    moves_per_s_per_chip=95.02, moves_per_s_per_host=380.1, share_of_peak=0.3123, device_busy=0.97,
    hbm_bytes=5.25 * 2**30, hbm_peak_bytes=6 * 2**30, hbm_limit_bytes=15.75 * 2**30,
    cost=12.341, cost_per_million_samples=11.217,
)  # fmt: skip
SINGLE_PLAYER = dataclasses.replace(
    FULL, name="cartpole", episodic=True, rating=None, rating_error=None, keeps_value=None, scores={},
    acting_return=312.5, mean_return=487.25, std_return=31.0, failed_episodes=3,
)  # fmt: skip


def drawn(status, width, log_lines=(), since_command_s=None):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(status_panel(status, log_lines, since_command_s))
    return capture.get()


def assert_shows(text, *values):
    assert [value for value in values if value not in text] == []


@pytest.mark.parametrize(
    ("saved", "line", "panel"),
    [
        ({"checkpoint_step": 1200, "checkpoint_age_s": 250.0}, "checkpoint 4:10 old", "step 1,200, 4 min 10 s old"),
        ({"checkpoint_age_s": 250.0}, "no checkpoint yet", "none yet"),
        (
            {"checkpoint_age_s": 250.0, "failed_saves": 3},
            "no checkpoint for 4:10 (3 SAVES FAILED)",
            "3 saves failed since",
        ),
        (
            {"checkpoint_step": 1200, "checkpoint_age_s": 1.0, "damaged_shards": 1},
            "checkpoint 0:01 old",
            "1 replay shards were damaged",
        ),
    ],
)
def test_the_age_of_the_newest_checkpoint_and_failed_saves_are_shown(saved, line, panel):
    status = dataclasses.replace(FULL, **saved)
    assert line in status_line(status)
    assert panel in drawn(status, 120)


def test_a_checkpoint_that_takes_long_is_shown():
    saved = {"checkpoint_step": 1200, "checkpoint_age_s": 250.0}
    quick, slow = (dataclasses.replace(FULL, **saved, saving_s=seconds) for seconds in (2.0, 95.0))
    assert "1:35" in status_line(slow)
    assert "1 min 35 s" in drawn(slow, 120)
    assert "being written" not in status_line(quick)


def test_silent_workers_are_shown_the_longest_first():
    silent = dataclasses.replace(FULL, silent={"actor-0": 31.0, "learner": 95.0})
    assert "silent: learner for 1:35, actor-0 for 0:31" in status_line(silent)
    assert "learner for 1 min 35 s, actor-0 for 31 s" in drawn(silent, 120)
    assert "silent" not in drawn(FULL, 120)


def test_the_rate_of_reanalysis_is_shown_if_there_is_any():
    assert "412" in drawn(dataclasses.replace(FULL, reanalysed_per_s=412.3), 120)
    assert "reanalys" not in drawn(FULL, 120)


def test_inference_servers_are_shown_with_their_figures_if_there_are_any():
    served = dataclasses.replace(
        FULL,
        served_per_s=12_345.0,
        server_busy=0.87,
        server_fill=0.93,
        server_latency_ms=2.25,
        server_latency_p99_ms=9.5,
    )
    shown = ("servers", "12,345 positions/s", "busy 87%", "batches 93% full", "latency 2.2 ms, p99 9.5 ms")
    assert_shows(drawn(served, 120), *shown)
    assert "servers" not in drawn(FULL, 120)


def test_failing_workers_are_shown_with_their_errors_and_the_last_of_many_counted(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    failures = {"evaluator": "7 times in a row: the program gnugo is not installed"}
    one = dataclasses.replace(FULL, failing=failures)
    assert_shows(drawn(one, 120), "failing", "evaluator failed 7 times in a row: the program gnugo is not installed")
    assert "failing: evaluator" in status_line(one)
    many = dataclasses.replace(FULL, failing={f"actor-{index}": "once: a bug" for index in range(150)})
    assert_shows(drawn(many, 120), "actor-2 failed once: a bug and 147 more")
    assert_shows(status_line(many), "failing: actor-0, actor-1, actor-2 and 147 more")
    assert "failing" not in drawn(FULL, 120) + status_line(FULL)


def test_paid_time_is_shown_with_its_largest_causes(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    paid_s = {"training": 5400.0, "wait_actors": 1080.0, "start": 710.0, "idle": 10.0, "other": 0.0}
    text = drawn(dataclasses.replace(FULL, paid_s=paid_s, goodput=0.75), 120)
    assert_shows(text, "paid time", "2 h 00 min, goodput 75% · training 75% · wait actors 15% · start 10%")
    assert not any(word in text for word in ("idle", "other"))


def test_single_player_environments_are_shown_in_episodes_and_returns():
    text = drawn(SINGLE_PLAYER, 120)
    assert_shows(text, "30,211 episodes", "1,204,455 steps", "1,520 steps/s", "312.5", "failed 3", "487.2", "31.0")
    assert "games" not in text
    assert_shows(status_line(SINGLE_PLAYER), "return 312.5", "episodes 30,211", "steps/s 1,520")
    assert_shows(status_line(SINGLE_PLAYER), "at step 11,000: mean return 487.2 (sd 31.0)")
    assert "at step" not in status_line(dataclasses.replace(SINGLE_PLAYER, mean_return=None, rated_step=None))


def test_environments_are_told_in_episodes_before_the_first_return():
    new = dataclasses.replace(NEW, episodic=True)
    for text in (drawn(new, 120), status_line(new)):
        assert "episodes" in text
        assert not any(word in text for word in ("games", "moves", "self-play"))


@pytest.mark.parametrize("width", [80, 120])
def test_the_panel_shows_every_value_and_fits_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = drawn(FULL, width)
    assert_shows(text, "connect_four", "training", "step 12,344", "15.4 steps/s", "1.823", "1.500", "0.323")
    assert_shows(text, "30,211 games", "1,520 moves/s", "50,123 evaluations/s", "restarts 2", "143,000 of 200,000")
    assert_shows(text, "4.02", "88 steps", "812 ± 33", "81.2%", "mcts:100 83%", "11,000", "search 93%")
    assert_shows(text, "wait replay 41%", FULL.bottleneck, "13 min 32 s", "6 min 28 s")
    assert {len(line) for line in text.splitlines()} == {width}


def test_a_run_without_reports_can_be_drawn():
    text = drawn(NEW, 80)
    assert "starting up" in text
    assert "None" not in text
    assert "nan" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_a_pod_shows_utilization_and_cost(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = drawn(POD, width)
    assert_shows(text, "16 on 4 hosts", "31.2%", "97%", "12,345 samples/s", "49,380", "95.0 moves/s", "380")
    assert_shows(text, "5.2 of 15.8 GiB", "6.0", "12.34", "11.22", "64.9 ms")
    assert {len(line) for line in text.splitlines()} == {width}


def test_a_single_cpu_shows_no_utilization_and_a_gpu_what_is_known():
    laptop = drawn(dataclasses.replace(FULL, chips=1, hosts=1, samples_per_s_per_chip=7885.0, device_busy=0.5), 80)
    assert laptop == drawn(FULL, 80)
    gpu = drawn(dataclasses.replace(FULL, chips=1, hosts=1, hbm_bytes=2**30), 80)
    assert_shows(gpu, "1 on 1 host", "HBM 1.0 GiB")
    assert "of peak" not in gpu
    assert "cost" not in gpu


def test_a_log_record_takes_one_line_of_the_panel(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    long = drawn(FULL, 80, [(logging.INFO, "x" * 500 + "\nsecond line")])
    assert len(long.splitlines()) == len(drawn(FULL, 80).splitlines()) + 2
    assert "second" not in long


def test_markup_in_log_records_is_text():
    assert "[/nonsense] [red]" in drawn(FULL, 80, [(logging.WARNING, "[/nonsense] [red]")])


def test_the_line_shows_the_values_that_are_known():
    assert_shows(status_line(NEW), "0:03", "starting up", "step 0", "games 0")
    assert not {"loss", "Elo", "moves/s", "left", "cost"} & set(status_line(NEW).split())
    assert_shows(status_line(FULL), "13:32", "training", "12,344", "15.4/s", "30,211", "1,520", "72%", "1.823")
    assert_shows(status_line(FULL), "at step 11,000: Elo 812 ± 33, keeps value 81.2%", "6:28")
    assert "\n" not in status_line(FULL)


def test_until_training_time_passes_the_time_since_the_command_is_shown():
    new = dataclasses.replace(NEW, elapsed_s=0.0)
    assert_shows(status_line(new, 57.4), "0:57 since the command")
    assert_shows(drawn(new, 80, since_command_s=57.4), "57 s since the command")
    waiting = dataclasses.replace(new, phase="collecting", time_left_s=600.0)
    assert_shows(status_line(waiting), "0:00", "10:00 left from the first step")
    assert_shows(drawn(waiting, 100), "0 s", "10 min 00 s left from the first step")
    assert status_line(FULL, 57.4) == status_line(FULL)
    assert drawn(FULL, 80, since_command_s=57.4) == drawn(FULL, 80)


def test_the_line_shows_chips_if_there_are_several_and_cost_if_there_is_a_price():
    assert_shows(status_line(POD), "chips 16", "31.2%", "cost 12.34")
    assert status_line(dataclasses.replace(FULL, chips=1)) == status_line(FULL)
    assert "chips 2" in status_line(dataclasses.replace(FULL, chips=2))


@pytest.mark.parametrize(("seconds", "words"), [(0, "0:00"), (61, "1:01"), (3599.6, "1:00:00"), (36_610, "10:10:10")])
def test_clock_times(seconds, words):
    assert clock(seconds) == words


def test_the_ledger_is_shown_and_a_sum_that_does_not_close_also_in_the_line():
    books = Books("samples", 1, 0.0, {})
    books.add("replay-0", {"replay/inserted": 0, "replay/size": 0, "replay/sampled": 0}, 0.0)
    books.add("actor-0", {"count/samples/made": 1234, "count/samples/in_flight": 1234}, 1.0)
    whole = dataclasses.replace(FULL, ledger={"samples": books.ledger(0, 2.0)})
    assert_shows(drawn(whole, 120), "1,234 made", "1,234 in flight", "closes")
    assert "LEDGER" not in status_line(whole)
    books.add("actor-0", {"count/samples/made": 5}, 3.0)
    open_one = dataclasses.replace(FULL, ledger={"samples": books.ledger(0, 4.0)})
    assert_shows(drawn(open_one, 120), "does not close", "+5 made")
    assert_shows(status_line(open_one), "LEDGER", "samples: +5 made")
