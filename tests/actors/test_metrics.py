"""What actors report of self-play."""

from podzero.actors.clients import SelfPlayMetrics

MOVE = {
    "moves": 1, "evaluations": 9, "samples": 14, "games": 2, "abs_root_value": 0.5, "version": 3,
}  # fmt: skip


def test_counts_are_of_all_games_and_start_anew_after_a_report():
    metrics = SelfPlayMetrics(games=4)
    for _ in range(2):
        metrics.add(**MOVE)
    report = metrics.flush()
    assert (report["count/moves"], report["count/evaluations"]) == (8.0, 72.0)
    assert (report["count/samples"], report["count/games"]) == (28.0, 4.0)
    assert report["selfplay/plies_per_game"] == 7.0
    assert "count/dropped_actions" not in report
    assert metrics.flush()["count/moves"] == 0.0


def test_actions_without_a_slot_are_counted_and_logged_once(caplog):
    metrics = SelfPlayMetrics(games=4)
    metrics.add(**MOVE, dropped=0)
    assert caplog.text == ""
    for _ in range(2):
        metrics.add(**MOVE, dropped=3)
    assert metrics.flush()["count/dropped_actions"] == 6.0
    assert caplog.text.count("search.slots is too small for the legal actions of some positions") == 1
