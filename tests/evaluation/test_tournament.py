import copy
import json
import shutil
from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.envs.host import HostEnv
from podzero.evaluation.games import PlayedGame, PlayedPair
from podzero.evaluation.players import RandomPlayer
from podzero.evaluation.tournament import (
    NumberedPair,
    Tournament,
    TournamentError,
    TournamentFiles,
    TournamentSettings,
    default_folder,
    open_tournament,
)
from podzero.files.directory_lock import TakenOver
from podzero.files.workdir import WorkdirError
from podzero.networks.snapshots import SnapshotError


class Fixed:
    """Plays the legal action that comes first after its own number."""

    deterministic = True

    def __init__(self, env, number):
        self.name, self._number, self._view = f"fixed:{number}", number, jax.jit(jax.vmap(env.view))

    def choose(self, key, states):
        legal = self._view(states).legal
        return (jnp.argmax(jnp.roll(legal, -self._number, axis=-1), axis=-1) + self._number) % legal.shape[-1]


@pytest.fixture(scope="module")
def env():
    return make_env("tic_tac_toe")


@pytest.fixture(scope="module")
def start(env):
    """Begins or resumes a tournament of three players in a folder."""
    players = [Fixed(env, 0), Fixed(env, 4), RandomPlayer(env)]

    def start(folder, seed=0, plies=2, players=players, env=env):
        settings = TournamentSettings(env.spec.name, tuple(p.name for p in players), None, plies, 4, seed)
        anchors = {players[-1].name: 0.0}
        return closing(Tournament(env, players, anchors, TournamentFiles(folder, settings)))

    return start


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """A tournament of 64 games, its folder and its standings."""
    folder = tmp_path_factory.mktemp("whole") / "t"
    with start(folder) as tournament:
        assert tournament.play(64) == "the most games were played"
        return folder, tournament.standings()


def lines(folder):
    return [json.loads(line) for line in (folder / "games.jsonl").read_text().splitlines()]


def test_every_game_is_kept(whole):
    folder, standings = whole
    games = lines(folder)
    assert len(games) == standings["games"] == 64
    assert {(game["opening_plies"], game["end"]) for game in games} == {(2, "over")}


def test_the_moves_lead_to_the_result(whole, env):
    step, view = jax.jit(env.step), jax.jit(env.view)
    for game in lines(whole[0])[:6]:
        state = env.init(jax.random.key(0))
        returns, mover = np.zeros(2), int(view(state).player)
        for move in game["moves"]:
            assert view(state).legal[move]
            state = step(state, jnp.int32(move))
            returns += np.asarray(view(state).rewards)
        assert view(state).done
        assert game["points"][0] == (np.sign(returns[mover]) + 1) / 2


def test_each_opening_is_played_from_both_sides(whole):
    games = lines(whole[0])
    for one, other in zip(games[::2], games[1::2], strict=True):
        assert one["moves"][:2] == other["moves"][:2]
        assert one["players"] == other["players"][::-1]
        assert one["pair"] == other["pair"]


def test_the_standings_are_those_of_the_games(whole):
    folder, standings = whole
    assert json.loads(json.dumps(standings, allow_nan=False)) == standings
    first, second = standings["players"][:2]
    games = [game for game in lines(folder) if {*game["players"]} == {first["name"], second["name"]}]
    won = sum(game["points"][game["players"].index(first["name"])] == 1 for game in games)
    cell = standings["cross"][0][1]
    assert (cell["wins"], sum(cell.values())) == (won, len(games))
    assert standings["cross"][0][0] is None
    anchor = next(player for player in standings["players"] if player["name"] == "random")
    assert (anchor["elo"], anchor["low"], anchor["high"]) == (0, 0, 0)


def test_an_interrupted_tournament_goes_on_as_if_nothing_had_happened(whole, start, tmp_path):
    """It is stopped in the middle of its third match, whose games are dropped."""
    folder, standings = whole
    matches = []
    with start(tmp_path / "t") as tournament:
        stopped = tournament.play(64, report=lambda *pair: matches.append(pair), keep_going=lambda: len(matches) < 2)
        assert stopped == "interrupted"
        assert tournament.games == 16
    with start(tmp_path / "t") as tournament:
        assert tournament.games == 16
        tournament.play(64)
        assert tournament.standings() == standings
    assert (tmp_path / "t" / "games.jsonl").read_bytes() == (folder / "games.jsonl").read_bytes()


def test_all_games_are_written_for_other_programs(whole, start, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "t")
    with start(folder) as tournament:
        tournament.write_records(folder / "games.pgn")
    text = (folder / "games.pgn").read_text()
    wins = [sum(game["points"][0] == points for game in lines(folder)) for points in (1.0, 0.5, 0.0)]
    assert [text.count(f'[Result "{result}"]') for result in ("1-0", "1/2-1/2", "0-1")] == wins
    assert text.count(f'[White "{lines(folder)[0]["players"][0]}"]') > 0


def test_half_a_line_is_dropped_and_the_tournament_goes_on(whole, start, tmp_path):
    copied = shutil.copytree(whole[0], tmp_path / "t")
    text = (copied / "games.jsonl").read_bytes()
    (copied / "games.jsonl").write_bytes(text[:-20])
    with start(copied) as tournament:
        assert tournament.games == 62
        tournament.play(64)
        assert tournament.games >= 64
    numbers = [game["pair"] for game in lines(copied)]
    assert numbers == sorted(numbers)
    assert {numbers.count(number) for number in numbers} == {2}


def test_it_ends_when_the_intervals_are_short_enough(whole, start, tmp_path):
    with start(shutil.copytree(whole[0], tmp_path / "t")) as tournament:
        assert tournament.play(1000, until=10_000) == "every interval is within ±10000 Elo"
        assert tournament.games == 64
        assert tournament.largest_error() < 10_000


def test_deterministic_players_meet_in_different_openings_until_there_are_none(env, start, tmp_path):
    """After one ply there are nine positions."""
    players = [Fixed(env, 0), Fixed(env, 4)]
    with start(tmp_path / "t", plies=1, players=players) as tournament:
        assert tournament.play(100) == "all pairs of players have played all their openings"
        assert tournament.games == 18
    openings = [game["moves"][0] for game in lines(tmp_path / "t")]
    assert sorted(openings) == sorted(2 * list(range(9)))


class Long:
    """Action 0 goes on for ever; action 1 wins."""

    num_actions = players = 2

    def reset(self, seed):
        self.plies, self.winner = 0, None

    def step(self, action):
        if action == 1:
            self.winner = self.plies % 2
        self.plies += 1

    def legal_actions(self):
        return [0, 1]

    def observation(self):
        return np.array([self.plies], np.float32)

    def player(self):
        return self.plies % 2

    def rewards(self):
        return [0.0, 0.0] if self.winner is None else [1.0 - 2 * self.winner, 2 * self.winner - 1.0]

    def done(self):
        return self.winner is not None

    def clone(self):
        return copy.deepcopy(self)


class Waits:
    name, deterministic = "waits", False

    def choose(self, key, states):
        return jnp.zeros(states.plies.shape, jnp.int32)


def test_games_that_are_cut_off_count_as_drawn_and_are_named(start, tmp_path):
    env = HostEnv(Long(), "long", max_plies=5)
    other = Waits()
    other.name = "waits too"
    with start(tmp_path / "t", plies=0, players=[Waits(), other], env=env) as tournament:
        tournament.play(8)
        standings = tournament.standings()
    assert standings["cut_off"] == standings["games"] == 8
    assert standings["players"][0]["score"] == 0.5
    assert {(game["end"], len(game["moves"]), *game["points"]) for game in lines(tmp_path / "t")} == {
        ("cut off", 5, 0.5, 0.5)
    }


def test_before_any_game_nobody_has_a_rating(start, tmp_path):
    with start(tmp_path / "t") as tournament:
        standings = tournament.standings()
    assert [player["elo"] for player in standings["players"]] == [None] * 3
    assert standings["games"] == 0


def test_trained_players_and_named_ones_play(workdir, tmp_path):
    who = [str(workdir.root), f"{workdir.root}@10", "random"]
    with closing(open_tournament(who, tmp_path / "t", simulations=2)) as tournament:
        tournament.play(32)
        names = {player["name"] for player in tournament.standings()["players"]}
    assert names == {f"{workdir.root}@20", f"{workdir.root}@10", "random"}
    assert json.loads((tmp_path / "t" / "tournament.json").read_text())["opening_plies"] == 4
    with pytest.raises(TournamentError, match=r"holds: .*@20, .*given: solver"):
        open_tournament([f"{workdir.root}@10", "random", "solver"], tmp_path / "t", simulations=2)
    with pytest.raises(TournamentError, match=r"simulations: holds 2, given 3"):
        open_tournament(who, tmp_path / "t", simulations=3)


def test_a_corrupt_checkpoint_is_refused(workdir, tmp_path):
    copied = shutil.copytree(workdir.root, tmp_path / "run")
    for params in copied.glob("snapshots/*/params.msgpack"):
        params.write_bytes(params.read_bytes()[:-50])
    with pytest.raises(SnapshotError, match="is damaged"):
        open_tournament([f"{copied}@10", "random"], tmp_path / "t")
    with pytest.raises(SnapshotError, match="no intact snapshot"):
        open_tournament([str(copied), "random"], tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_players_of_another_game_are_refused(workdir, tmp_path):
    with pytest.raises(ConfigError, match="these play different games"):
        open_tournament([str(workdir.root), "random"], tmp_path / "t", game="hex")
    with pytest.raises(ConfigError, match="no solver for 'hex_11x11'"):
        open_tournament(["random", "solver"], tmp_path / "t", game="hex")
    with pytest.raises(ConfigError, match="has a single agent"):
        open_tournament(["random", "solver"], tmp_path / "t", game="cartpole")


@pytest.mark.parametrize(
    ("who", "anchors", "words"),
    [
        (["random"], None, "at least two players"),
        (["random", "random", "mcts:2"], None, "each named once"),
        (["random", "mcts:2"], {"mcts:3": 0.0}, r"anchor 'mcts:3' does not play \(did you mean 'mcts:2'"),
        (["random", "mcts:2"], {"random": 0.0, "mcts:2": 5.0}, "nothing to rate"),
    ],
)
def test_wrong_players_and_anchors_are_refused(tmp_path, who, anchors, words):
    with pytest.raises(ConfigError, match=words):
        open_tournament(who, tmp_path / "t", anchors, game="tic_tac_toe")


def test_the_same_command_has_the_same_folder():
    settings = TournamentSettings("hex", ("a", "b"), None, 0, 8, 0)
    assert default_folder("hex", settings) == default_folder("hex", settings)
    assert default_folder("hex", settings) != default_folder("hex", settings._replace(seed=1))


SETTINGS = TournamentSettings("tic_tac_toe", ("mcts:2", "random"), None, 0, 8, 0)


def game(first, second, points, **end):
    return PlayedGame(first, second, (4, 0, 8), points, 0, "abcd", **end)


def pair(number, first="random", second="mcts:2"):
    replied = game(second, first, 0.5, end="cut off" if number == 1 else "over")
    opened = game(first, second, 1.0, end="given up" if number == 2 else "over")
    return NumberedPair(number // 2, number, PlayedPair(opened, replied))


PAIRS = [pair(0), pair(1, "mcts:2", "random"), pair(2)]


@pytest.fixture
def open_files(tmp_path):
    """Opens the folder of the test, and closes it at the end."""
    opened = []

    def open_(settings=SETTINGS):
        for one in opened:
            one.close()
        opened.append(TournamentFiles(tmp_path / "t", settings))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


@pytest.fixture
def games(open_files, tmp_path):
    """The file of games, with those of `PAIRS`."""
    files = open_files()
    files.append(PAIRS[:2])
    files.append(PAIRS[2:])
    return tmp_path / "t" / "games.jsonl"


def test_games_are_read_as_they_were_written(games, open_files):
    assert open_files().read() == PAIRS


def test_a_line_says_who_moved_first_and_what_was_played(games):
    lines = [json.loads(line) for line in games.read_text().splitlines()]
    assert lines[0] == {
        "batch": 0, "pair": 0, "players": ["random", "mcts:2"], "moves": [4, 0, 8], "opening_plies": 0,
        "position": "abcd", "points": [1.0, 0.0], "end": "over", "seed": 0,
    }  # fmt: skip
    assert lines[1]["players"] == ["mcts:2", "random"]
    assert [line["end"] for line in lines] == ["over", "over", "over", "cut off", "given up", "over"]


@pytest.mark.parametrize("missing", [1, 30, 200, 330])
def test_what_an_interruption_left_is_dropped(games, open_files, missing):
    """Half a line, and a game without the other one of its opening, at the end of the file."""
    whole = games.read_bytes()
    games.write_bytes(whole[:-missing])
    files = open_files()
    assert files.read() == PAIRS[:2]
    files.append(PAIRS[2:])
    assert games.read_bytes() == whole


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "not JSON",
        '{"batch": 0, "pair": 1, "players": ["x", "y"], "moves": [], "points": [1, 0]}',
        '{"batch": 0, "pair": 1, "players": ["random", "mcts:2"], "moves": ["a"], "opening_plies": 0, '
        '"position": "", "points": [1, 0], "end": "over"}',
    ],
)
def test_a_damaged_line_is_refused_by_its_number(games, open_files, line):
    lines = games.read_text().splitlines()
    games.write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n")
    with pytest.raises(TournamentError, match=r"games.jsonl, line 3 is damaged"):
        open_files().read()


def test_games_of_different_openings_are_not_joined(games, open_files):
    lines = games.read_text().splitlines()
    games.write_text("\n".join([*lines[:1], *lines[2:], lines[1]]) + "\n")
    with pytest.raises(TournamentError, match="two games of an opening"):
        open_files().read()


def test_another_tournament_is_refused_with_what_differs(games, open_files):
    with pytest.raises(TournamentError, match=r"seed: holds 0, given 3"):
        open_files(SETTINGS._replace(seed=3))
    with pytest.raises(TournamentError, match=r"players: .*holds: mcts:2, .*given: mcts:4"):
        open_files(SETTINGS._replace(players=("mcts:4", "random")))
    assert open_files().read() == PAIRS


def test_damaged_settings_are_refused(games, open_files):
    (games.parent / "tournament.json").write_text('{"format"')
    with pytest.raises(TournamentError, match=r"tournament.json is damaged"):
        open_files()


def test_games_without_settings_are_not_overwritten(games, open_files):
    (games.parent / "tournament.json").unlink()
    with pytest.raises(TournamentError, match=r"without tournament.json"):
        open_files()


def test_a_tournament_that_another_process_has_taken_over_writes_nothing_more(open_files, tmp_path):
    files = open_files()
    (tmp_path / "t" / ".lock").write_text("7 elsewhere 000000000001")
    files._lock._look()
    with pytest.raises(TakenOver, match="process 7 on elsewhere"):
        files.append([])
    assert files.read() == []


def test_two_processes_do_not_play_in_one_folder(games, tmp_path):
    with pytest.raises(WorkdirError, match="in use"):
        TournamentFiles(tmp_path / "t", SETTINGS)
