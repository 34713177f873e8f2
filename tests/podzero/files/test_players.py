import pytest

from podzero.config import GameConfig, load
from podzero.core.errors import ConfigError
from podzero.files.players import BuiltinPlayer, game_to_play, knows_komi, parse_player
from podzero.files.workdir import Workdir, step_folder


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path / "run@3")
    workdir.open(load("hex"))
    return workdir


@pytest.mark.parametrize("name", ["random", "solver"])
def test_builtin_players(name):
    assert parse_player(name) == BuiltinPlayer(name)


def test_mcts_has_a_number_of_simulations():
    assert parse_player("mcts:400") == BuiltinPlayer("mcts", 400)


@pytest.mark.parametrize(("suffix", "step"), [("", None), ("@1200", 1200)])
def test_a_working_directory_whose_name_contains_an_at(workdir, suffix, step):
    step_folder(workdir.snapshots, 1200).mkdir(parents=True)
    player = parse_player(f"{workdir.root}{suffix}")
    assert (player.workdir.root, player.step) == (workdir.root, step)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "rando",
            r"unknown player 'rando' \(did you mean 'random'\?\); known: random, solver, mcts:N, zoo:NAME, hf:USE",
        ),
        ("no/such/dir", "unknown player 'no/such/dir'; known: "),
        ("", "unknown player ''"),
        ("mcts", "expected a positive number of simulations, for example mcts:400"),
        ("mcts:0", "expected a positive number"),
        ("mcts:many", "expected a positive number"),
        ("random:3", "'random' takes no number"),
    ],
)
def test_unknown_players_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        parse_player(name)


def test_a_step_that_is_not_a_number_is_refused(workdir):
    with pytest.raises(ConfigError, match="a learner step or `best` after the @"):
        parse_player(f"{workdir.root}@last")


def test_the_best_snapshot_is_that_of_the_status(workdir):
    step_folder(workdir.snapshots, 1200).mkdir(parents=True)
    workdir.status_file.write_text('{"best": {"best_step": 1200.0}}')
    assert parse_player(f"{workdir.root}@best").step == 1200


@pytest.mark.parametrize("status", [None, '{"best": {}}', "{}", "[]", '{"best'])
def test_a_run_without_a_judged_snapshot_has_no_best_one(workdir, status):
    if status is not None:
        workdir.status_file.write_text(status)
    with pytest.raises(ConfigError, match=r"run@3@best: no snapshot of this run has been judged"):
        parse_player(f"{workdir.root}@best")


def test_the_snapshots_that_are_there_are_listed(workdir):
    for step in (5, 1200):
        step_folder(workdir.snapshots, step).mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"run@3 .*step 7; .* 5, 1200"):
        parse_player(f"{workdir.root}@7")


def test_the_game_is_that_of_the_trained_players(workdir):
    assert game_to_play(None, str(workdir.root), "random", None) == GameConfig(name="hex")
    assert game_to_play("hex", str(workdir.root)) == GameConfig(name="hex")
    assert game_to_play("tic_tac_toe", "random") == GameConfig(name="tic_tac_toe")
    assert game_to_play("own_game", "random") == load("own_game").env


@pytest.mark.parametrize(
    ("game", "message"),
    [
        ("othello", r"these play different games: --game plays othello, .*run@3 plays hex"),
        ("othelo", "no experiment 'othelo' .did you mean 'othello'"),
    ],
)
def test_a_wrong_game_is_refused(workdir, game, message):
    with pytest.raises(ConfigError, match=message):
        game_to_play(game, str(workdir.root))


def test_a_network_with_global_pooling_plays_on_other_boards(tmp_path):
    for pooling in (True, False):
        workdir = Workdir(tmp_path / f"pooling_{pooling}")
        workdir.open(load("go_9x9", [f"network.global_pooling={pooling}"]))
    assert game_to_play("go_19x19", str(tmp_path / "pooling_True")) == GameConfig(name="go_19x19")
    with pytest.raises(ConfigError, match="these play different games"):
        game_to_play("go_19x19", str(tmp_path / "pooling_False"))
    with pytest.raises(ConfigError, match="these play different games"):
        game_to_play("hex", str(tmp_path / "pooling_True"))


def test_a_player_knows_komi_if_its_network_observes_it_or_it_has_none(tmp_path):
    known = []
    for number, komi in enumerate(["null", "[0.5, 9.5]"]):
        workdir = Workdir(tmp_path / str(number))
        workdir.open(load("go_9x9", [f"env.komi={komi}"]))
        known.append(knows_komi(parse_player(str(workdir.root))))
    assert [*known, knows_komi(parse_player("mcts:8"))] == [False, True, True]


def test_a_game_of_go_to_play_begins_with_the_komi_of_matches(tmp_path):
    workdir = Workdir(tmp_path / "run")
    workdir.open(load("go_9x9", ["env.komi=[0.5, 9.5]"]))
    assert game_to_play(None, str(workdir.root)) == GameConfig(name="go_9x9", komi=(7.5, 7.5))


def test_no_game_is_refused():
    with pytest.raises(ConfigError, match=r"random, mcts:10 .*--game"):
        game_to_play(None, "random", "mcts:10")
