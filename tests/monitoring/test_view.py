import dataclasses
import io
import logging

import pytest
from rich.console import Console

from podzero.monitoring.status import RunStatus
from podzero.monitoring.view import clock, plain_line, run_view

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
    scaling_efficiency=0.968, hbm_bytes=5.25 * 2**30, hbm_peak_bytes=6 * 2**30, hbm_limit_bytes=15.75 * 2**30,
    cost=12.341, cost_per_million_samples=11.217,
)  # fmt: skip


def drawn(status, width, lines=()):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(run_view(status, list(lines)))
    return capture.get()


ALONE = dataclasses.replace(
    FULL, name="cartpole", rating=None, rating_error=None, keeps_value=None, scores={}, acting_return=312.5,
    mean_return=487.25, std_return=31.0, failed_episodes=3,
)  # fmt: skip


def test_what_is_searched_again_is_told_where_anything_is():
    assert "412 samples/s searched again" in drawn(dataclasses.replace(FULL, reanalysed_per_s=412.3), 120)
    assert "searched again" not in drawn(FULL, 120)


def test_environments_for_one_are_told_in_episodes_and_returns():
    text = drawn(ALONE, 120)
    for words in ("acting", "30,211 episodes", "1,204,455 steps", "1,520 steps/s", "return 312.5", "failed 3",
                  "mean return 487.2 (sd 31.0)"):  # fmt: skip
        assert words in text, words
    assert "games" not in text
    assert "mean return 487.2 (sd 31.0)" in plain_line(ALONE)
    assert "return 312.5" in plain_line(dataclasses.replace(ALONE, mean_return=None))


@pytest.mark.parametrize("width", [80, 120])
def test_everything_a_person_asks_for_is_in_the_picture(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = drawn(FULL, width)
    for words in (
        "connect_four · training", "step 12,344", "15.4 steps/s", "loss 1.823", "policy 1.500", "value 0.323",
        "30,211 games", "1,520 moves/s", "50,123 evaluations/s", "restarts 2", "143,000 of 200,000",
        "4.02 samples/insert", "age 88 steps", "Elo 812 ± 33", "keeps value 81.2%", "vs mcts:100 83%",
        "at step 11,000", "search 93%", "wait replay 41%", "the learner waits", "13 min 32 s · 6 min 28 s left",
    ):  # fmt: skip
        assert words in text, words
    assert {len(line) for line in text.splitlines()} == {width}


def test_a_picture_of_a_run_that_has_said_nothing_yet_can_be_drawn():
    text = drawn(NEW, 80)
    assert "starting up" in text
    assert "not judged yet" in text
    assert "None" not in text
    assert "nan" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_a_pod_shows_what_its_chips_make_and_cost(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = drawn(POD, width)
    for words in (
        "16 on 4 hosts", "31.2% of peak", "busy 97%", "scaling 0.97", "12,345 samples/s a chip, 49,380 a host",
        "95.0 moves/s a chip, 380 a host", "HBM 5.2 of 15.8 GiB, at most 6.0", "12.34 so far",
        "11.22 per million samples", "64.9 ms a step",
    ):  # fmt: skip
        assert words in text, words
    assert {len(line) for line in text.splitlines()} == {width}


def test_a_laptop_is_not_shown_chips_and_a_single_accelerator_only_what_is_known():
    laptop = drawn(dataclasses.replace(FULL, chips=1, hosts=1, samples_per_s_per_chip=7885.0, device_busy=0.5), 80)
    assert laptop == drawn(FULL, 80)
    gpu = drawn(dataclasses.replace(FULL, chips=1, hosts=1, hbm_bytes=2**30), 80)
    assert "1 on 1 host · HBM 1.0 GiB" in gpu
    assert "of peak" not in gpu
    assert "cost" not in gpu


def test_a_long_log_line_stays_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    long = drawn(FULL, 80, [(logging.INFO, "x" * 500 + "\nsecond line")])
    assert len(long.splitlines()) == len(drawn(FULL, 80).splitlines()) + 2
    assert "second" not in long


def test_markup_in_log_lines_is_text():
    assert "[/nonsense] [red]" in drawn(FULL, 80, [(logging.WARNING, "[/nonsense] [red]")])


def test_a_plain_line_leaves_out_what_is_not_known():
    assert plain_line(NEW) == "[0:03] starting up  step 0  games 0"
    assert plain_line(FULL) == (
        "[13:32] training  step 12,344 (15.4/s)  games 30,211  moves/s 1,520  replay 72%  loss 1.823"
        "  Elo 812 ± 33  keeps value 81.2%  left 6:28"
    )


def test_a_plain_line_names_chips_and_cost_where_there_are_several_or_a_price():
    assert plain_line(POD) == plain_line(FULL).replace("  left", "  chips 16 (31.2% of peak)  cost 12.34  left")
    assert plain_line(dataclasses.replace(FULL, chips=1)) == plain_line(FULL)
    assert plain_line(dataclasses.replace(FULL, chips=2)) == plain_line(FULL).replace("  left", "  chips 2  left")


@pytest.mark.parametrize(("seconds", "words"), [(0, "0:00"), (61, "1:01"), (3599.6, "1:00:00"), (36_610, "10:10:10")])
def test_clock_times(seconds, words):
    assert clock(seconds) == words
