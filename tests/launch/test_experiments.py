"""`podzero diff` and `podzero new`: what differs between experiments, and a first experiment for an environment."""

import json

import pytest
import yaml

from podzero.config import SimulatorConfig, builtin_configs, load
from podzero.core.types import EnvSpec
from podzero.files.workdir import Workdir, read_json
from podzero.launch.new import REPLAY_BYTES, first_experiment

GAME = SimulatorConfig(name="open_spiel", id="some_game")
GYMNASIUM = load("cartpole").env
VECTOR = EnvSpec("vector", (6,), "float32", 3, players=1)


def settings_of(env, length=None, **spec):
    """The sections of a first experiment."""
    base = VECTOR if env is GYMNASIUM else EnvSpec("game", (6, 7, 2), "bool", 7)
    return yaml.safe_load(first_experiment(env, base._replace(**spec), length))


def test_settings_that_differ_are_printed_with_both_values(command, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: tic_tac_toe\nnetwork: {name: mlp, width: 8}\nstop: {minutes: null}\n")
    run = Workdir(tmp_path / "run")
    run.open(load("tic_tac_toe", ["seed=1"]))
    code, out, _ = command("diff", str(run.root), str(mine))
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    assert code == 0
    assert lines["seed"] == "1 -> 0"
    assert lines["network.name"] == "resnet -> mlp"
    assert lines["network.width"] == "absent -> 8"
    assert lines["stop.minutes"].endswith(" -> null")
    code, out, _ = command("diff", str(run.root), str(mine), "--json")
    found = {difference["setting"]: difference for difference in json.loads(out)["differences"]}
    assert {*found} == {*lines}
    assert (found["seed"]["a"], found["seed"]["b"]) == (1, 0)


def test_equal_experiments_have_the_same_settings_whatever_their_names(command, tmp_path):
    copy = tmp_path / "copy.yaml"
    copy.write_text(builtin_configs()["hex"].read_text())
    code, out, _ = command("diff", "hex", str(copy))
    assert code == 0
    assert "same settings" in out
    assert json.loads(command("diff", "hex", str(copy), "--json")[1])["differences"] == []


def test_what_cannot_be_compared_is_refused(command, tmp_path):
    for other in ("conect_four", str(tmp_path)):
        code, _, error = command("diff", "hex", other)
        assert code == 2
        assert other in error


@pytest.mark.usefixtures("made_here")
@pytest.mark.parametrize(
    ("option", "name", "env", "network"),
    [
        ("--env", "CartPole-v1", {"vectorization": "own"}, {"name": "muzero_mlp"}),
        ("--env", "Pendulum-v1", {"vectorization": "sync"}, {"name": "muzero_mlp"}),
        ("--env", "ALE/Pong-v5", {"module": "ale_py"}, {"name": "muzero_resnet", "channels_first": True}),
        ("--game", "tic_tac_toe", {}, {"name": "resnet", "blocks": 2}),
        ("--game", "go_9x9", {}, {"name": "resnet", "channels": 64}),
        ("--game", "backgammon", {"name": "backgammon"}, {"name": "mlp"}),
        ("--game", "2048", {"name": "2048"}, {"name": "resnet"}),
        ("--game", "open_spiel/breakthrough", {"id": "breakthrough"}, {"name": "resnet"}),
        ("--game", "gymnax/CartPole-v1", {"reward_scale": 1 / 500}, {"name": "mlp"}),
    ],
)
def test_a_first_experiment_is_accepted_by_train(command, tmp_path, option, name, env, network):
    library = name.partition("/")[0]
    if library != name:
        pytest.importorskip({"ALE": "ale_py", "open_spiel": "pyspiel"}.get(library, library))
    file = tmp_path / "first.yaml"
    code, out, _ = command("new", option, name, "--to", str(file))
    assert (code, str(file) in out) == (0, True)
    first = load(str(file))
    assert {field: getattr(first.env, field) for field in env} == env
    assert {field: getattr(first.network, field) for field in network} == network
    assert "# " in file.read_text()
    code, out, error = command("train", str(file), "--check")
    assert (code, error) == (0, "")
    assert "name: first" in out


def test_without_a_file_the_experiment_is_printed(command, tmp_path):
    code, out, _ = command("new", "--game", "hex")
    file = tmp_path / "hex.yaml"
    file.write_text(out)
    assert code == 0
    assert load(str(file)).env.name == "hex"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["--env ID", "--game NAME"]),
        (("--env", "CartPole-v1", "--game", "hex"), ["either"]),
        (("--game", "hexx"), ["hexx", "did you mean 'hex'"]),
        (("--game", "chequers/draughts"), ["unknown game"]),
        (("--game", "gomoku"), ["shogi", "2048", "backgammon", "open_spiel/GAME", "jumanji/GAME"]),
        (("--game", "gymnax/CartPole-v2"), ["did you mean 'CartPole-v1'"]),
        (("--env", "Cartpole-v1"), ["did you mean 'CartPole-v1'"]),
        (("--env", "no_such_module:Mine-v0"), ["no_such_module cannot be imported"]),
        (("--game", "hex", "--to", "."), ["exists", "not overwritten"]),
        (("--game", "hex", "--to", "no/such/folder.yaml"), ["cannot write no/such/folder.yaml"]),
    ],
)
def test_what_no_experiment_can_be_written_for_is_refused(command, arguments, words):
    code, out, error = command("new", *arguments)
    assert (code, out) == (2, "")
    for word in words:
        assert word in error


def test_long_games_bootstrap_and_short_ones_begin_at_random():
    long, short = settings_of(GAME, 200)["actors"], settings_of(GAME, 42)["actors"]
    assert long["td_lambda"] < 1
    assert "opening_fraction" not in long
    assert 0 < short["opening_plies"] <= 42 / 3
    assert "td_lambda" not in short


def test_larger_boards_have_larger_networks_and_more_actions_more_simulations():
    boards = [(3, 3, 2), (6, 7, 2), (9, 9, 8), (19, 19, 8)]
    sizes = [settings_of(GAME, observation_shape=shape)["network"] for shape in boards]
    weights = [size["channels"] ** 2 * size["blocks"] for size in sizes]
    assert weights == sorted(weights)
    assert settings_of(GAME, observation_shape=(40,))["network"]["name"] == "mlp"
    few, many = (settings_of(GAME, num_actions=actions)["search"] for actions in (7, 400))
    assert few["simulations"] < many["simulations"]
    assert (few["max_considered_actions"], many["max_considered_actions"]) == (7, 16)


def test_the_discount_weighs_a_part_of_an_episode_and_the_targets_too():
    short, long = settings_of(GYMNASIUM, 50), settings_of(GYMNASIUM, 10_000)
    assert short["env"]["discount"] < long["env"]["discount"] < 1
    assert short["muzero"]["td_steps"] < long["muzero"]["td_steps"] < 50


def test_replay_holds_what_fits_in_memory():
    large = settings_of(GYMNASIUM, observation_shape=(84, 84, 12), observation_dtype="uint8")
    assert large["replay"]["capacity"] * 84 * 84 * 12 <= REPLAY_BYTES
    assert large["network"]["downsample"] == 16
    assert not large["network"]["channels_first"]
    assert large["replay"]["capacity"] < settings_of(GYMNASIUM)["replay"]["capacity"]


def test_continuous_actions_are_sampled():
    torques = settings_of(GYMNASIUM, num_actions=0, action_bounds=((-1.0,), (1.0,)))
    assert torques["search"]["candidates"] == torques["search"]["max_considered_actions"]
    assert torques["muzero"]["entropy_weight"] > 0


@pytest.mark.slow
def test_a_first_experiment_learns(command, tmp_path):
    """As far as a minute of an idle machine takes it."""
    file, run = tmp_path / "first.yaml", tmp_path / "run"
    command("new", "--env", "CartPole-v1", "--to", str(file))
    code, out, error = command("train", str(file), "stop.steps=100", "stop.minutes=15", "--workdir", str(run))
    assert code == 0, out + error
    status = read_json(Workdir(run).status_file)
    assert status["step"] >= 100
    assert status["loss"] > 0
