import json
import logging
import shutil
import threading
from types import SimpleNamespace

import jax
import pytest
from failing_callback import fail_in_callback

from podzero.core.errors import ConfigError
from podzero.envs import EnvironmentFailed, make_env
from podzero.evaluation.arena import Interrupted
from podzero.evaluation.evaluator import Evaluator, MatchRounds
from podzero.evaluation.games import GamesFolder
from podzero.evaluation.ratings import LadderError
from podzero.networks.snapshots import SnapshotError


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.text = ""

    def emit(self, record):
        self.text += record.getMessage() + "\n"


@pytest.fixture(scope="module")
def make(workdir, experiment):
    env = make_env("tic_tac_toe")

    def make(report=lambda role, metrics: None, ladder=None, **changes):
        section = experiment.evaluation.model_copy(update=changes)
        changed = experiment.model_copy(update={"evaluation": section})
        rounds = MatchRounds(changed, env, workdir.snapshots, workdir.games, ladder)
        return Evaluator(rounds, section.every_minutes, workdir.snapshots, report)

    return make


@pytest.fixture(scope="module")
def rounds(make, workdir, snapshots):
    """Three rounds of one evaluator, and JAX's log of compilations in the third."""
    reports, ladders, lines = [], [], Lines()
    evaluator = make(lambda role, metrics: reports.append((role, dict(metrics))))
    for step in (20, 30):
        snapshots(workdir, step)
        evaluator.judge_newest()
        ladders.append(evaluator.ladder())
    snapshots(workdir, 40)
    logging.getLogger("jax").addHandler(lines)
    with jax.log_compiles():
        jax.jit(lambda x: x + 1.5)(1.0)
        assert "Compiling" in lines.text, "JAX logs compilations in other words"
        lines.text = ""
        evaluator.judge_newest()
    logging.getLogger("jax").removeHandler(lines)
    return SimpleNamespace(evaluator=evaluator, reports=reports, ladders=ladders, compilations=lines.text)


def test_the_games_of_a_round_are_kept(rounds, workdir):
    folder = GamesFolder(workdir.games)
    assert folder.steps()[:3] == [20, 30, 40]
    players = {name for kept in folder.read(30) for name in (kept.game.first, kept.game.second)}
    assert {"@30", "@20", "random"} <= players
    assert all(len(kept.game.moves) >= 5 for kept in folder.read(30))


def test_a_round_reports_its_metrics(rounds):
    role, metrics = rounds.reports[0]
    assert role == "evaluator"
    assert set(metrics) == {
        "evaluation/step", "evaluation/elo", "evaluation/elo_error",
        "evaluation/score_random", "evaluation/games_random", "evaluation/keeps_value",
        "evaluation/keeps_value_0_9", "evaluation/positions_0_9",
    }  # fmt: skip
    assert metrics["evaluation/step"] == 20
    assert 0 <= metrics["evaluation/keeps_value"] <= 1
    assert set(rounds.ladders[0]["ratings"]) == {"random", "@20"}


def test_later_rounds_compile_nothing(rounds):
    assert "Compiling" not in rounds.compilations


def test_later_rounds_play_earlier_snapshots(rounds):
    metrics = rounds.reports[2][1]
    half_points = 2 * metrics["evaluation/score_earlier"] * metrics["evaluation/games_earlier"]
    assert metrics["evaluation/games_earlier"] >= 4
    assert half_points == pytest.approx(round(half_points))
    ladder = rounds.evaluator.ladder()
    assert set(ladder["ratings"]) == {"random", "@20", "@30", "@40"}
    played = {(row["first"], row["second"]) for row in ladder["results"]}
    assert {("@20", "@40"), ("@30", "@40"), ("@20", "@30")} <= played


def test_an_earlier_snapshot_that_is_gone_is_not_played(make, workdir, snapshots, rounds):
    """Of step 46, the evaluator would play step 40, and step 20 or 30, which are nearest to half of it."""
    evaluator = make(ladder=rounds.evaluator.ladder(), opponents=("random", "earlier"))
    for step in (20, 30):
        (workdir.snapshots / f"{step:09d}" / "manifest.json").unlink()
    snapshots(workdir, 46)
    evaluator.judge_newest()
    played = {row["second"] for row in evaluator.ladder()["results"] if row["first"] == "@40"}
    assert "@46" in played
    for step in (20, 30):
        snapshots(workdir, step)
    shutil.rmtree(workdir.snapshots / f"{46:09d}")


def test_each_opponent_gets_the_configured_number_of_games(rounds):
    games = {row["wins"] + row["draws"] + row["losses"] for row in rounds.evaluator.ladder()["results"]}
    assert games == {4}


def test_another_evaluator_continues_the_ladder(rounds, make):
    held = json.loads(json.dumps(rounds.evaluator.ladder()))
    assert make(ladder=held).ladder() == rounds.evaluator.ladder()


def test_another_evaluator_does_not_rate_a_snapshot_again(rounds, make):
    resumed = make(report=lambda *_: pytest.fail("was rated again"), ladder=rounds.evaluator.ladder())
    timer = threading.Timer(3, resumed.stop)
    timer.start()
    resumed.run()
    assert resumed.ladder() == rounds.evaluator.ladder()


def test_run_rates_each_snapshot_once_and_ends_when_stopped(rounds, workdir, snapshots):
    """`every_minutes` is over long before the timer stops the run, but there is no newer snapshot."""
    snapshots(workdir, 50)
    rated = len(rounds.reports)
    timer = threading.Timer(3, rounds.evaluator.stop)
    timer.start()
    rounds.evaluator.run()
    assert len(rounds.reports) == rated + 1
    assert rounds.reports[-1][1]["evaluation/step"] == 50


@pytest.mark.parametrize("under_way", [50, 60])
def test_the_last_snapshot_is_judged_once_and_a_round_of_an_earlier_one_is_abandoned(snapshots, tmp_path, under_way):
    folder, judged, abandoned = tmp_path / "snapshots", [], []

    class Rounds:
        rated = -1

        def judge(self, step, params, keep_going):
            if not judged and not abandoned:
                snapshots(SimpleNamespace(snapshots=folder), 60)
                evaluator.stop(60)
            if not keep_going():
                abandoned.append(step)
                raise Interrupted
            self.rated = step
            judged.append(step)
            return {}

    evaluator = Evaluator(Rounds(), 60.0, folder, lambda role, metrics: None)
    snapshots(SimpleNamespace(snapshots=folder), under_way)
    evaluator.run()
    assert (judged, abandoned) == ([60], [50] if under_way == 50 else [])


def test_an_evaluator_that_starts_after_the_end_of_training_judges_the_last_snapshot(snapshots, tmp_path):
    folder, reports = tmp_path / "snapshots", []
    rounds = SimpleNamespace(rated=-1, judge=lambda *_: {"evaluation/mean_return": 1.0})
    evaluator = Evaluator(rounds, 60.0, folder, lambda role, metrics: reports.append(metrics))
    snapshots(SimpleNamespace(snapshots=folder), 60)
    evaluator.stop(60)
    evaluator.run()
    assert reports == [{"evaluation/step": 60.0, "evaluation/mean_return": 1.0}]


def test_an_interrupted_round_counts_for_nothing(make):
    evaluator = make(report=lambda *_: pytest.fail("has reported"))
    evaluator.stop()
    evaluator.run()
    assert evaluator.ladder()["results"] == []


def test_a_round_that_fails_is_followed_by_another(workdir, snapshots, caplog):
    """Because of a game that fails within a compiled program, of environments, of snapshots, and of storage."""

    def fail(error):
        raise error

    failures = [
        lambda: fail_in_callback("seven"),
        lambda: fail(EnvironmentFailed("eight")),
        lambda: fail(SnapshotError("nine")),
        lambda: fail(OSError("ten")),
    ]

    class Rounds:
        rated = -1

        def judge(self, step, params, keep_going):
            if failures:
                failures.pop(0)()
            self.rated = step
            evaluator.stop()
            return {"evaluation/mean_return": 1.0}

    reports = []
    snapshots(workdir, 50)
    evaluator = Evaluator(Rounds(), 1e-6, workdir.snapshots, lambda role, metrics: reports.append(metrics))
    evaluator.run()
    assert [metrics["evaluation/mean_return"] for metrics in reports] == [1.0]
    logged = [record.getMessage() for record in caplog.records if record.name == "podzero.evaluation.evaluator"]
    assert [message.rpartition(": ")[2] for message in logged] == ["seven", "eight", "nine", "ten"]


def test_a_snapshot_is_not_judged_again_because_the_newer_one_is_damaged(snapshots, tmp_path):
    folder = tmp_path / "snapshots"
    snapshots(SimpleNamespace(snapshots=folder), 50)
    (folder / f"{60:09d}").mkdir()
    rounds = SimpleNamespace(rated=50, judge=lambda *_: pytest.fail("was judged again"))
    evaluator = Evaluator(rounds, 1e-6, folder, lambda role, metrics: None)
    with pytest.raises(SnapshotError, match="step 50 is intact"):
        evaluator.judge_newest()


def test_an_evaluator_whose_snapshots_are_all_unreadable_waits_for_another_one(workdir, snapshots, tmp_path, caplog):
    folder, judged = tmp_path / "snapshots", []
    (folder / f"{50:09d}").mkdir(parents=True)

    class Rounds:
        rated = -1

        def judge(self, step, params, keep_going):
            judged.append(step)
            evaluator.stop()
            return {}

    evaluator = Evaluator(Rounds(), 1e-6, folder, lambda role, metrics: None)
    thread = threading.Thread(target=evaluator.run)
    thread.start()
    while "holds no intact snapshot" not in caplog.text:
        assert thread.is_alive()
        thread.join(0.1)
    snapshots(SimpleNamespace(snapshots=folder), 60)
    thread.join(20.0)
    assert judged == [60]


def test_an_unknown_opponent_is_refused_at_once(make):
    with pytest.raises(ConfigError, match="unknown player 'stranger'"):
        make(opponents=("stranger",))


def test_a_ladder_of_an_earlier_process_goes_on_and_ratings_that_are_no_longer_computed_stay(make, workdir, snapshots):
    games = {"second": "random", "wins": 5, "draws": 0, "losses": 3, "pairs": [1, 0, 1, 0, 2]}
    rating = {"elo": 90.0, "error": 200.0, "games": 8, "low": -110.0, "high": 290.0}
    results = [{"first": f"@{step}", **games} for step in range(30)]
    evaluator = make(
        ladder={"results": results, "ratings": {f"@{step}": rating for step in range(30)}}, opponents=("random",)
    )
    snapshots(workdir, 60)
    evaluator.judge_newest()
    shutil.rmtree(workdir.snapshots / f"{60:09d}")
    ratings = evaluator.ladder()["ratings"]
    assert ratings["@0"] == rating
    assert {"@29", "@60"} <= set(ratings)
    assert len(evaluator.ladder()["results"]) == 31


def test_a_damaged_ladder_is_refused(make):
    with pytest.raises(LadderError):
        make(ladder={"results": [{}]})
