"""The opponents of self-play, made from their names."""

import jax
import numpy as np
import pytest

from podzero.config import parse
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.evaluation import resolve
from podzero.evaluation.resolve import make_opponents
from podzero.files.workdir import Workdir
from podzero.inference import QuantizedNetwork


def with_opponents(experiment, *names, **changes):
    share = 1 / len(names)
    tree = experiment.model_dump(mode="json") | changes
    tree["actors"] |= {"opponents": [{"who": name, "share": share} for name in names]}
    return parse(tree, "test")


@pytest.fixture(scope="module")
def states():
    env = make_env("tic_tac_toe")
    return jax.vmap(env.init)(jax.random.split(jax.random.key(0), 4))


def test_players_have_the_names_of_the_command_line(experiment, workdir, states):
    names = ["self", "random", "mcts:4", "solver", str(workdir.root)]
    made = make_opponents(with_opponents(experiment, *names), workdir.snapshots, seed=0)
    assert [opponent.name for opponent in made] == ["random", "mcts:4", "solver", f"{workdir.root}@20"]
    for opponent in made:
        assert opponent.share == pytest.approx(0.2)
        assert np.asarray(opponent.choose(jax.random.key(0), states)).shape == (4,)


def test_earlier_waits_for_a_snapshot_and_then_draws_among_all(
    experiment, snapshots, states, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(resolve, "MOVES_PER_DRAW", 1)
    workdir = Workdir(tmp_path / "run")
    (earlier,) = make_opponents(with_opponents(experiment, "self", "earlier"), workdir.snapshots, seed=0)
    assert earlier.choose(jax.random.key(0), states) is None
    played = {}
    for step in (1, 2, 3):
        newest = snapshots(workdir, step)
        found = {np.asarray(earlier.choose(jax.random.key(0), states)).tobytes() for _ in range(20)}
        played[step] = len(found)
    assert played[3] > played[1] == 1
    (newest / "params.msgpack").write_bytes(b"damaged")
    assert all(earlier.choose(jax.random.key(0), states) is not None for _ in range(10))
    assert "no earlier snapshot was drawn" in caplog.text


@pytest.mark.parametrize(
    ("inference", "instructions", "quantized"), [("int8", True, 1), ("int8", False, 0), ("local", True, 0)]
)
def test_earlier_is_evaluated_as_the_run_evaluates_itself(
    experiment, workdir, states, monkeypatch, inference, instructions, quantized
):
    loaded, load = [], QuantizedNetwork.load
    monkeypatch.setattr(QuantizedNetwork, "load", lambda self, params: loaded.append(params) or load(self, params))
    monkeypatch.setattr(resolve, "has_int8_instructions", lambda: instructions)
    own = experiment.model_dump(mode="json")
    changes = {"actors": own["actors"] | {"inference": inference}}
    (earlier,) = make_opponents(with_opponents(experiment, "self", "earlier", **changes), workdir.snapshots, seed=0)
    actions = np.asarray(earlier.choose(jax.random.key(0), states))
    assert actions.shape == (4,)
    assert set(actions) <= set(range(9))
    assert len(loaded) == quantized


@pytest.mark.parametrize(
    ("who", "message"),
    [("nobody", r"actors\.opponents.*nobody"), ("gnugo:1", "gnugo")],
)
def test_players_that_cannot_oppose_are_refused(experiment, tmp_path, who, message):
    with pytest.raises(ConfigError, match=message):
        make_opponents(with_opponents(experiment, "self", who), tmp_path, seed=0)


@pytest.mark.parametrize("who", ["gnugo:1", "gtp:touch {}"])
def test_engines_are_too_slow_and_are_not_started(experiment, tmp_path, who):
    started = tmp_path / "started"
    with pytest.raises(ConfigError, match=r"actors\.opponents: .* one game at a time"):
        make_opponents(with_opponents(experiment, "self", who.format(started)), tmp_path, seed=0)
    assert not started.exists()


def test_a_game_of_one_player_has_no_opponents(experiment, tmp_path):
    car = {"name": "gymnasium_simulator", "id": "MountainCar-v0", "max_plies": 300, "reward_scale": 1 / 300}
    others = {"env": car, "network": {"name": "mlp"}, "evaluation": {"opponents": []}}
    alone = with_opponents(experiment, "self", "random", **others)
    with pytest.raises(ConfigError, match="MountainCar-v0 has 1"):
        make_opponents(alone, tmp_path, seed=0)
