import dataclasses
import io
import logging
import re

import pytest
from rich.console import Console

from podzero.launch.dashboard import STARTING, LiveView, PlainView, clock, picture, plain_line
from podzero.launch.status import RunStatus

NEW = RunStatus("connect_four", "starting", 3.0)
FULL = RunStatus(
    "connect_four", "training", 812.0, time_left_s=388.0, step=12_344, games=30_211, moves=1_204_455, samples=1_100_233,
    moves_per_s=1520.3, games_per_s=38.2, steps_per_s=15.4, evaluations_per_s=50_123.0, replay_size=143_000,
    replay_capacity=200_000, samples_per_insert=4.02, policy_age=88.0, loss=1.823, policy_loss=1.5, value_loss=0.323,
    rating=812.2, rating_error=33.1, rated_step=11_000, keeps_value=0.8123, scores={"random": 1.0, "mcts:100": 0.83},
    restarts=2, shares={"actor": {"search": 0.93, "write": 0.02}, "learner": {"step": 0.55, "wait_replay": 0.41}},
    bottleneck="the learner waits for the actors (41% of its time)",
)  # fmt: skip


def drawn(status, width, lines=()):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(picture(status, list(lines)))
    return capture.get()


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


@pytest.mark.parametrize(("seconds", "words"), [(0, "0:00"), (61, "1:01"), (3599.6, "1:00:00"), (36_610, "10:10:10")])
def test_clock_times(seconds, words):
    assert clock(seconds) == words


def test_the_plain_view_speaks_at_once_of_phases_and_the_first_game_and_else_every_ten_seconds(monkeypatch):
    present = [0.0]
    monkeypatch.setattr("podzero.launch.dashboard.time.monotonic", lambda: present[0])
    out = io.StringIO()
    collecting = dataclasses.replace(NEW, phase="collecting")
    with PlainView(out) as view:
        for at, status in [
            (0, NEW), (1, NEW), (2, collecting), (3, dataclasses.replace(collecting, games=1)),
            (4, dataclasses.replace(collecting, games=2)), (14, dataclasses.replace(collecting, games=3)),
        ]:  # fmt: skip
            present[0] = float(at)
            view.show(status)
    found = re.findall(r"(starting up|filling replay)  step 0  games (\d)", out.getvalue())
    assert found == [("starting up", "0"), ("filling replay", "0"), ("filling replay", "1"), ("filling replay", "3")]


def test_log_records_of_podzero_appear_in_a_view_only_while_it_is_open():
    out = io.StringIO()
    with PlainView(out):
        logging.getLogger("podzero.launch").warning("actor-1 died")
    logging.getLogger("podzero.launch").warning("nobody looks")
    assert out.getvalue() == f"{STARTING}\nwarning: actor-1 died\n"


def test_the_live_view_draws_the_newest_status_and_leaves_it_standing():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    with LiveView(console) as view:
        view._live.refresh()
        assert STARTING in out.getvalue()
        view.show(NEW)
        view.show(FULL)
        logging.getLogger("podzero").warning("a shard is full")
    assert "step 12,344" in out.getvalue()
    assert "a shard is full" in out.getvalue()
