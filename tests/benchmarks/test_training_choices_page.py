"""The tables of choices in other games than connect four."""

from podzero.benchmarks.training_choices_page import horizon, root_values

SAID = {"command": "train", "hardware": "2 cores", "date": "2026-11-24", "finding": "One is ahead."}


def test_each_player_has_its_rating_and_what_its_training_made():
    players = [
        {"targets": "lambda 0.95", "steps": 1600, "trained_games": 7100, "elo": 12.4, "low": -30.2, "high": 55.0,
         "score": 0.625, "games": 240},
        {"targets": "mcts:200", "steps": None, "trained_games": None, "elo": -99.9, "low": -150.0, "high": -50.0,
         "score": 0.25, "games": 240},
    ]  # fmt: skip
    text = "\n".join(horizon(SAID | {"minutes": 25, "tournament": "compare", "players": players}))
    assert (
        "`train` and the same with other targets, 25 minutes each, then `compare`; 2 cores; 2026-11-24. One is ahead."
        in text
    )
    assert "| lambda 0.95 | 1,600 | 7,100 | 12 | -30 to 55 | 62.5% of 240 games |" in text
    assert "| mcts:200 |  |  | -100 | -150 to -50 | 25.0% of 240 games |" in text


def test_seeds_of_one_choice_share_a_row():
    def run(kind, seed, mean):
        return {"experiment": "lander", "root_value": kind, "seed": seed, "steps": 9000 + seed, "mean_return": mean,
                "low": mean - 1, "high": mean + 1}  # fmt: skip

    text = "\n".join(
        root_values(SAID | {"runs": [run("policy", 0, 250.0), run("mean", 0, 240.0), run("mean", 1, 8.0)]})
    )
    assert "| lander | mean | 9,000, 9,001 | 240.0 (239.0 to 241.0), 8.0 (7.0 to 9.0) |" in text
    assert "| lander | policy | 9,000 | 250.0 (249.0 to 251.0) |" in text
