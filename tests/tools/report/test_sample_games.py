"""Games of the evaluator as boards of the report."""

import json
import re

from podzero.config import load
from podzero.evaluation.games import GamesFolder, PlayedGame, StoredGame
from podzero.tools.report.page import make_report
from podzero.tools.report.record import RunReader
from podzero.tools.report.sample_games import MOST_GAMES, sample_games

WON = PlayedGame("@20", "random", (0, 3, 1, 4, 2), 1.0, 2)


def kept(*games):
    return [StoredGame("step 20", game) for game in games]


def section(*games, config="tic_tac_toe"):
    return sample_games(load(config), kept(*games))


def test_a_game_is_drawn_position_by_position():
    (replay,) = section(WON).replays
    assert replay.moves == ["a1", "a2", "b1", "b2", "c1"]
    stones = [sum("<circle" in replay.elements[number] for number in frame) for frame in replay.frames]
    assert stones == [0, 1, 2, 3, 4, 5]
    assert replay.title == "step 20: @20 - random 1-0, 5 plies"
    assert replay.caption == "@20 moves first. The first 2 plies are a random opening."


def test_the_last_move_is_framed_and_no_element_is_there_twice():
    (replay,) = section(WON).replays
    frames = [[number for number in frame if 'fill="none"' in replay.elements[number]] for frame in replay.frames]
    assert [len(frame) for frame in frames] == [0, 1, 1, 1, 1, 1]
    assert len(set(replay.elements)) == len(replay.elements)


def test_one_game_of_each_pair_of_players_is_shown():
    names = [("@20", "random"), ("random", "@20"), ("@20", "mcts:100")]
    many = [(f"@{step}", "random") for step in range(10)]
    assert len(section(*(WON._replace(first=a, second=b) for a, b in names)).replays) == 2
    assert len(section(*(WON._replace(first=a, second=b) for a, b in many)).replays) == MOST_GAMES


def test_games_of_other_rules_and_environments_are_left_out():
    assert not section(WON._replace(moves=(0, 0)))
    assert not section(WON, config="cartpole")
    assert not section()


def test_the_report_of_a_run_has_the_games_of_its_newest_round(make_run):
    workdir = make_run(config="tic_tac_toe")
    folder = GamesFolder(workdir.games)
    folder.write(20, [WON])
    folder.write(40, [WON._replace(first="<b>", moves=(4, 0, 8), end="cut off", points=0.5)])
    page = make_report(RunReader(workdir).read())
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    (replay,) = json.loads(data)["replays"]
    assert replay["moves"] == ["b2", "a1", "c3"]
    assert "step 40: &lt;b&gt; - random draw (cut off), 3 plies" in page
    shown = re.search(r'<svg viewBox="0 0 248 248".*?</svg>', page, re.DOTALL)[0]
    assert shown.count("<circle") == 3
