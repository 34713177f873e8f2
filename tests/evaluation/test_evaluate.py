import json

import pytest
from random_parameters import random_parameters
from random_walk import SECTION

from podzero.config import parse
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.evaluation.evaluate import evaluate, records_file
from podzero.files.workdir import Workdir
from podzero.networks import make_model_network
from podzero.networks.snapshots import save_snapshot


def test_a_match_as_plain_values():
    result = evaluate("solver", opponent="random", games=20, game="tic_tac_toe", seed=1)
    assert json.loads(json.dumps(result)) == result
    assert result["losses"] == 0
    assert result["games"] == result["wins"] + result["draws"] == 20
    assert result["score"] == (result["wins"] + result["draws"] / 2) / 20
    assert result["interval"][0] < result["score"] <= result["interval"][1] <= 1


def test_an_odd_number_of_games_is_rounded_up():
    assert evaluate("solver", opponent="solver", games=3, game="tic_tac_toe")["games"] == 4


def test_a_judgement_as_plain_values(workdir):
    result = evaluate(str(workdir.root), positions=30)
    judged = {"positions", "keeps_value", "exact", "interval", "by_ply", "bands"}
    assert set(result) == {"game", "player", "network"} | judged
    assert set(result["network"]) == judged | {"value_error"}
    assert set(result["bands"]) == {"plies 0 to 9"}
    assert result["positions"] == result["bands"]["plies 0 to 9"]["positions"] == 30
    assert result["interval"][0] <= result["keeps_value"] <= result["interval"][1]


def test_all_positions_of_tic_tac_toe_are_judged():
    """5,478 positions can be reached, 4,520 of which are not over."""
    result = evaluate("solver", game="tic_tac_toe")
    assert (result["keeps_value"], result["exact"]) == (1, 1)
    assert 1000 < result["positions"] < 4520
    assert "network" not in result
    assert evaluate("solver", positions=30, game="tic_tac_toe")["positions"] == 30


def test_connect_four_is_judged_in_positions_of_strong_games_too():
    result = evaluate("random", positions=20, game="connect_four")
    assert (result["positions"], result["games"]["positions"]) == (20, 1000)
    assert set(result["games"]["bands"]) == {"plies 0 to 9", "plies 10 to 19", "plies 20 to 30"}


def test_the_seed_decides():
    one, same, other = (evaluate("random", "random", 40, game="tic_tac_toe", seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_two_games_are_refused(workdir):
    with pytest.raises(ConfigError, match=r"--game plays hex_11x11, .*tic_tac_toe"):
        evaluate(str(workdir.root), opponent="random", game="hex")


def test_no_game_is_refused():
    with pytest.raises(ConfigError, match="no game given"):
        evaluate("random", opponent="mcts:10")


def test_without_opponent_and_solver_a_match_is_played_against_search_and_one_against_random_play(monkeypatch):
    """Small numbers of simulations stand in for the default ones."""
    monkeypatch.setattr("podzero.evaluation.evaluate.DEFAULT_OPPONENTS", ("mcts:2", "random"))
    result = evaluate("random", games=4, game="hex")
    assert json.loads(json.dumps(result)) == result
    assert {key: value for key, value in result.items() if key != "matches"} == {
        "game": "hex_11x11", "player": "random",
    }  # fmt: skip
    assert list(result["matches"]) == ["mcts:2", "random"]
    for match in result["matches"].values():
        assert match["games"] == match["wins"] + match["draws"] + match["losses"] == 4
        assert match["interval"][0] <= match["score"] <= match["interval"][1]


@pytest.mark.parametrize(
    ("who", "arguments", "words"),
    [
        ("random", {"game": "hex"}, r"--positions 30: hex_11x11 has no solver .* leave --positions out"),
        ("random", {"game": "cartpole"}, r"--positions 30: .* has no solver .* leave --positions out"),
        ("random", {"game": "tic_tac_toe", "opponent": "solver"}, "remove it, or --opponent"),
    ],
)
def test_positions_without_a_solver_that_judges_them_are_refused(who, arguments, words):
    with pytest.raises(ConfigError, match=words):
        evaluate(who, positions=30, **arguments)


def test_matches_of_an_agent_that_comes_with_podzero_leave_its_folder_alone():
    assert records_file("zoo:go_9x9", "zoo:go_9x9@3888", "random", make_env("go_9x9").spec) is None


def test_games_of_three_players_have_no_records(three_players, tmp_path):
    result = evaluate("random", "random", games=10, game=str(three_players))
    assert result["games"] == 10
    assert result["records"] is None
    with pytest.raises(ConfigError, match="records"):
        evaluate("random", "random", games=2, game=str(three_players), records=tmp_path / "games.pgn")


def test_an_agent_that_has_learned_the_model_of_a_simulator_acts_by_its_observations(tmp_path):
    learned = {
        "name": "walk",
        "env": SECTION,
        "network": {"name": "muzero_mlp", "latent": 4, "width": 4, "layers": 1},
        "search": {"simulations": 2, "max_considered_actions": 2},
        "actors": {"inference": "device", "games": 4},
    }
    experiment, workdir = parse(learned, "test"), Workdir(tmp_path / "walk")
    workdir.open(experiment)
    network = make_model_network(experiment.network, make_env(experiment.env).spec)
    save_snapshot(workdir.snapshots, 3, random_parameters(network), experiment)
    result = evaluate(str(workdir.root), games=5)
    assert (result["game"], result["episodes"]) == ("jax/RandomWalk, learned", 5)
    assert result["player"].endswith("@3")
    assert result["mean_return"] > 0
