import json
import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podzero.core.errors import ConfigError
from podzero.evaluation.games import (
    MOST_READ,
    GamesFolder,
    PlayedGame,
    StoredGame,
    game_from_tree,
    game_to_tree,
    stored_games,
    superfluous,
)
from podzero.files.workdir import Workdir

GAME = PlayedGame("@20", "random", (4, 0, 8), 1.0, 1, "abcd")
GIVEN_UP = PlayedGame("random", "@20", (4, 1), 0.0, 0, "", end="given up")
CUT_OFF = PlayedGame("random", "@20", (2,), 0.5, 0, "", end="cut off")


@pytest.mark.parametrize("game", [GAME, GIVEN_UP, CUT_OFF])
def test_a_game_is_read_as_it_was_written(game):
    assert game_from_tree(json.loads(json.dumps(game_to_tree(game)))) == game


@pytest.mark.parametrize(
    "changes",
    [{"points": [1, 1]}, {"points": [2, -1]}, {"moves": ["a1"]}, {"end": "never"}, {"players": ["one"]}, {"moves": 3}],
)
def test_a_game_that_cannot_be_is_refused(changes):
    with pytest.raises((ValueError, TypeError)):
        game_from_tree(game_to_tree(GAME) | changes)


def test_a_run_keeps_the_games_of_its_rounds(tmp_path):
    folder = GamesFolder(Workdir(tmp_path).games)
    folder.write(20, [GAME])
    folder.write(1300, [GIVEN_UP, CUT_OFF])
    assert folder.steps() == [20, 1300]
    assert stored_games(tmp_path) == [
        StoredGame("step 1,300", GIVEN_UP), StoredGame("step 1,300", CUT_OFF), StoredGame("step 20", GAME),
    ]  # fmt: skip


def test_no_more_rounds_than_allowed_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("podzero.evaluation.games.MOST_ROUNDS", 4)
    folder = GamesFolder(tmp_path / "games")
    for step in range(0, 160, 10):
        folder.write(step, [GAME])
    steps = folder.steps()
    assert (len(steps), steps[0], steps[-1]) == (4, 0, 150)
    assert min(after - before for before, after in pairwise(steps)) >= 20


def test_rounds_of_steps_that_a_resumption_makes_again_are_forgotten(tmp_path):
    folder = GamesFolder(tmp_path / "games")
    for step in (10, 20, 30, 15):
        folder.write(step, [GAME])
    assert folder.steps() == [10, 15]


def test_of_a_tournament_the_newest_games_are_read_newest_first(tmp_path):
    lines = [json.dumps(game_to_tree(GAME._replace(opening_plies=number))) for number in range(MOST_READ + 5)]
    (tmp_path / "games.jsonl").write_text("\n".join(lines) + "\n")
    found = [kept.game.opening_plies for kept in stored_games(tmp_path)]
    assert found == list(range(MOST_READ + 4, 4, -1))


@given(st.sets(st.integers(0, 10_000), min_size=1), st.integers(2, 20))
def test_the_first_and_the_last_round_stay(steps, most):
    dropped = superfluous(sorted(steps), most)
    kept = steps - set(dropped)
    assert len(kept) == min(most, len(steps))
    assert {min(steps), max(steps)} <= kept


def test_what_is_being_written_is_left_out(tmp_path):
    file = tmp_path / "games.jsonl"
    whole = json.dumps({"pair": 0, **game_to_tree(GAME)})
    file.write_text(f"{whole}\n{whole[:40]}")
    assert stored_games(tmp_path) == [StoredGame(tmp_path.name, GAME)]


def test_a_folder_without_games_is_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no games"):
        stored_games(tmp_path)


def test_a_run_goes_on_where_its_games_cannot_be_written(tmp_path, caplog):
    (tmp_path / "games").write_text("a file in the way")
    with caplog.at_level(logging.WARNING):
        GamesFolder(tmp_path / "games").write(20, [GAME])
    assert "the games of step 20 cannot be stored" in caplog.text
