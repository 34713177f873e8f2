"""What people see of results: the same numbers as `--json`, with their intervals, in words and a few digits."""

from collections import defaultdict

import pytest

from podzero.launch.evaluate import episode_rows, judgement_table, match_rows
from podzero.tools.commands.printing import share
from podzero.tools.export.cli import export_rows
from podzero.tools.report.info import agent_rows


@pytest.mark.parametrize(
    ("value", "trials", "words"),
    [(0.0, 2, "0% (0 to 66%)"), (0.92345, 1000, "92.3% (90.5 to 93.8%)"), (1.0, 100, "100.0% (96.3 to 100.0%)")],
)
def test_a_share_has_as_many_digits_as_its_trials_allow(value, trials, words):
    ends = {2: (0.0, 0.6576), 1000: (0.905, 0.938), 100: (0.963, 1.0)}[trials]
    assert share(value, trials, ends) == words


def test_a_match_is_one_line_for_each_opponent():
    result = {"games": 2, "wins": 0, "draws": 0, "losses": 2, "score": 0.0, "interval": [0, 0.6576], "records": "m.sgf"}
    found = {"game": "hex", "player": "random", "opponent": "mcts:9", **result}
    assert match_rows(found)[2:] == [("against mcts:9", "0 won, 2 lost: 0% (0 to 66%)"), ("games", "m.sgf")]
    both = {"game": "hex", "player": "random", "matches": {"a": result | {"draws": 1}, "b": result | {"records": None}}}
    assert [name for name, _ in match_rows(both)[2:]] == ["against a", "games", "against b"]
    assert "0 won, 1 drawn, 2 lost" in match_rows(both)[2][1]


def judged(keeps, positions):
    return {"positions": positions, "keeps_value": keeps, "exact": 0.5, "interval": [0.4, 0.9]}


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize("network", [False, True])
def test_a_judgement_is_a_row_for_all_plies_and_for_each_band(network, strong):
    found = judged(0.75, 100) | {"by_ply": {"0": 1.0}, "bands": {"plies 0 to 9": judged(0.5, 40)}}
    alone = found | {"value_error": 0.125, "bands": {"plies 0 to 9": judged(0.5, 40) | {"value_error": 0.25}}}
    found |= {"network": alone} if network else {}
    found |= {"games": dict(found)} if strong else {}
    table = judgement_table({"game": "connect_four", "player": "me", **found})
    assert [row[:3] for row in table.rows] == [
        (prefix + name, *rest)
        for prefix in ("", "strong games, ")[: 1 + strong]
        for name, *rest in (("all", "100", "75.0% (40.0 to 90.0%)"), ("0 to 9", "40", "50% (40 to 90%)"))
    ]
    assert {len(row) for row in table.rows} == {len(table.header)} == {7 if network else 4}
    assert not network or [row[-1] for row in table.rows[:2]] == ["0.125", "0.250"]


def test_episodes_have_a_mean_with_its_interval_and_a_spread():
    found = {"game": "pendulum", "player": "random", "episodes": 20, "mean_return": -1286.51, "std_return": 257.1}
    rows = dict(episode_rows(found | {"interval": [-1337.0, -1236.1], "mean_length": 200.0, "failures": 0}))
    assert rows["mean return"] == "-1,286.5 (95%: -1,337.0 to -1,236.1)"
    assert rows["standard deviation"] == "257.1"
    assert "failures" not in rows
    assert dict(episode_rows(found | {"interval": None}))["mean return"] == "-1,286.5"
    assert "failed" in dict(episode_rows(found | {"interval": None, "failures": 2}))


def info(**fields):
    return defaultdict(lambda: None, {"network": {"name": "resnet"}, "step": 40} | fields)


def test_an_agents_strength_is_said_in_words():
    strength = {
        "step": 40.0, "elo": 568.2, "elo_error": 338.7, "games_random": 40.0, "score_random": 1.0,
        "keeps_value": 0.7467, "keeps_value_0_9": 0.5976, "positions_0_9": 82.0, "positions_10_19": 218.0,
    }  # fmt: skip
    rows = agent_rows(info(hours=0.01, samples=9136, strength=strength))
    assert ("at step 40", "Elo 568 ± 339 (random play has 0)") in rows
    assert ("", "100% in 40 games against random") in rows
    assert ("", "keeps the game's value in 74.7% of 300 positions") in rows
    assert ("trained for", "36 s, 40 steps, 9,136 samples") in rows


def test_what_is_not_known_of_an_agent_is_left_out():
    assert [name for name, _ in agent_rows(info())] == ["network", "trained for"]
    returns = {"step": 8, "mean_return": 485.31, "std_return": 36.3, "episodes": 20.0}
    assert ("at step 8", "mean return 485.3 (standard deviation 36.3) in 20 episodes") in agent_rows(
        info(strength=returns)
    )


def test_an_export_says_what_was_written_and_how_near_it_is_to_jax():
    metadata = {
        "game": "go_9x9", "players": 2, "actions": 82, "observation_shape": [9, 9, 17], "observation_dtype": "bool",
        "step": 120, "experiment": "go_9x9", "network": "resnet", "podzero": "0.1.0",
    }  # fmt: skip
    rows = export_rows({
        "player": "me@120", "files": ["a.onnx", "b.onnx"], "metadata": metadata,
        "differences": {"policy_logits": 3.1e-7, "value": 1e-8}, "bound": 1e-4, "batch_sizes": [1, 64],
    })  # fmt: skip
    assert rows[:2] == [("files", "a.onnx"), ("", "b.onnx")]
    assert any("9 x 9 x 17" in text and "82 actions" in text for _, text in rows)
    assert "3.1e-07" in rows[-1][1]
