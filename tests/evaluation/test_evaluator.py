import json
import threading

import jax
import pytest

from podzero.config import ConfigError
from podzero.envs import make_env
from podzero.evaluation.evaluator import Evaluator
from podzero.evaluation.ratings import LadderError
from podzero.networks import make_network
from podzero.params import save_snapshot


class Reports(list):
    def __call__(self, role, figures):
        self.append((role, dict(figures)))


@pytest.fixture
def start(workdir, experiment):
    env = make_env("tic_tac_toe")
    network = make_network(experiment.network, env.spec)
    reports = Reports()

    def make(ladder=None, **changes):
        section = experiment.evaluation.model_copy(update=changes)
        changed = experiment.model_copy(update={"evaluation": section})
        return Evaluator(changed, env, network, workdir.snapshots, reports, ladder), reports

    return make


def test_a_round_reports_its_figures(start):
    evaluator, reports = start()
    evaluator.rate_newest()
    ((role, figures),) = reports
    assert role == "evaluator"
    assert set(figures) == {
        "evaluation/step", "evaluation/elo", "evaluation/elo_error",
        "evaluation/score_random", "evaluation/keeps_value",
    }  # fmt: skip
    assert figures["evaluation/step"] == 20
    assert 0 <= figures["evaluation/keeps_value"] <= 1
    assert set(evaluator.ladder()["ratings"]) == {"random", "@20"}


def test_later_rounds_meet_earlier_selves_and_compile_nothing_new(start, workdir, experiment, caplog):
    evaluator, reports = start()
    evaluator.rate_newest()
    network = make_network(experiment.network, make_env("tic_tac_toe").spec)
    save_snapshot(workdir.snapshots, 30, network.init(jax.random.key(30)), experiment)
    evaluator.rate_newest()  # two deterministic players: their openings are compiled
    save_snapshot(workdir.snapshots, 40, network.init(jax.random.key(40)), experiment)

    with jax.log_compiles():
        jax.jit(lambda x: x + 1.5)(1.0)
        assert "Compiling" in caplog.text  # the words by which JAX says it
        caplog.clear()
        evaluator.rate_newest()
    assert "Compiling" not in caplog.text
    assert "evaluation/score_earlier" in reports[-1][1]
    assert set(evaluator.ladder()["ratings"]) == {"random", "@20", "@30", "@40"}
    played = {(row["first"], row["second"]) for row in evaluator.ladder()["results"]}
    assert {("@20", "@40"), ("@30", "@40"), ("@20", "@30")} <= played


def test_the_ladder_goes_on_in_a_new_life(start, workdir, experiment):
    evaluator, _ = start()
    evaluator.rate_newest()
    resumed, _ = start(ladder=json.loads(json.dumps(evaluator.ladder())))
    assert resumed.ladder() == evaluator.ladder()
    network = make_network(experiment.network, make_env("tic_tac_toe").spec)
    save_snapshot(workdir.snapshots, 30, network.init(jax.random.key(30)), experiment)
    resumed.rate_newest()
    assert {"random", "@20", "@30"} == set(resumed.ladder()["ratings"])


def test_run_rates_a_snapshot_once_and_stops(start):
    evaluator, reports = start()
    thread = threading.Thread(target=evaluator.run, daemon=True)
    thread.start()
    for _ in range(600):
        if reports:
            break
        thread.join(0.1)
    thread.join(3)  # every_minutes has passed by now, but there is no newer snapshot
    evaluator.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert len(reports) == 1


def test_stop_before_run_plays_nothing(start):
    evaluator, reports = start()
    evaluator.stop()
    evaluator.run()
    assert reports == []


def test_an_unknown_opponent_is_refused_at_once(start):
    with pytest.raises(ConfigError, match="nobody is called 'stranger'"):
        start(opponents=("stranger",))


def test_a_damaged_ladder_is_refused(start):
    with pytest.raises(LadderError):
        start(ladder={"results": [{}]})
