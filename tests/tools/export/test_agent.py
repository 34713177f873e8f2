"""From working directories to checked files."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import onnxruntime
import pytest
from jax import export as jax_export

import podzero.tools.export.agent as agent_module
from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.envs import make_env, spec_of
from podzero.networks import make_network
from podzero.networks.snapshots import load_snapshot
from podzero.tools.export.agent import (
    BATCH_SIZES,
    BOUND,
    FORMATS,
    check_file,
    export_agent,
    greatest_difference,
    observations_of,
)
from podzero.tools.export.functions import ExportError

BOARD = ("network.channels=4", "network.blocks=1", "network.value_hidden=4")
MODEL = ("network.latent=4", "network.width=8", "network.layers=1", "network.support=3", "network.projection=4")


@pytest.fixture(scope="module")
def board_agent(make_agent):
    return make_agent("tic_tac_toe", *BOARD, steps=(7, 12))


@pytest.fixture(scope="module")
def model_agent(make_agent):
    return make_agent("cartpole", *MODEL)


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_an_agent_becomes_an_onnx_file_that_onnx_runtime_runs(board_agent, tmp_path):
    result = export_agent(str(board_agent.root), tmp_path / "agent.onnx")
    assert files_in(tmp_path) == ["agent.onnx"]
    assert result["files"] == [str(tmp_path / "agent.onnx")]
    assert result["player"] == f"{board_agent.root}@12"
    assert result["batch_sizes"] == list(BATCH_SIZES)
    assert set(result["differences"]) == {"policy_logits", "value"}
    assert max(result["differences"].values()) < result["bound"] == BOUND
    session = onnxruntime.InferenceSession(tmp_path / "agent.onnx")
    experiment = board_agent.experiment()
    spec = make_env(experiment.env).spec
    rows = observations_of(experiment.env, spec, 5)
    logits, value = session.run(["policy_logits", "value"], {"observation": rows})
    network = make_network(experiment.network, spec)
    expected = network.apply(load_snapshot(board_agent.snapshots, 12).params, rows)
    np.testing.assert_allclose(logits, expected[0], atol=1e-4)
    np.testing.assert_allclose(value, expected[1], atol=1e-4)


def test_the_metadata_say_what_the_file_is(board_agent, tmp_path):
    who = f"{board_agent.root}@7"
    expected = {
        "game": "tic_tac_toe", "players": 2, "actions": 9, "observation_shape": [3, 3, 2], "observation_dtype": "bool",
        "step": 7, "experiment": "tic_tac_toe", "network": "resnet",
    }  # fmt: skip
    result = export_agent(who, tmp_path / "agent.onnx")
    assert result["metadata"].items() >= expected.items()
    found = onnxruntime.InferenceSession(tmp_path / "agent.onnx").get_modelmeta().custom_metadata_map
    assert {name: found[name] for name in ("game", "step", "players")} == {
        "game": "tic_tac_toe", "step": "7", "players": "2",
    }  # fmt: skip
    assert json.loads(found["inputs"]) == {"observation": ["batch", 3, 3, 2]}
    assert json.loads(found["outputs"]) == {"policy_logits": ["batch", 9], "value": ["batch"]}
    export_agent(who, tmp_path / "agent.stablehlo")
    exported = jax_export.deserialize(bytearray((tmp_path / "agent.stablehlo").read_bytes()))
    assert json.loads(exported.fun_name).items() >= (expected | {"podzero": found["podzero"]}).items()
    assert set(exported.platforms) >= {"cpu", "cuda", "tpu"}


def test_a_learned_model_becomes_three_files(model_agent, tmp_path):
    result = export_agent(str(model_agent.root), tmp_path / "agent.onnx")
    names = ["agent.dynamics.onnx", "agent.prediction.onnx", "agent.representation.onnx"]
    assert files_in(tmp_path) == names
    assert set(result["differences"]) == {"latent", "policy_logits", "value", "next_latent", "reward"}
    dynamics, prediction, representation = (onnxruntime.InferenceSession(tmp_path / name) for name in names)
    (latent,) = representation.run(["latent"], {"observation": np.zeros((3, 4), np.float32)})
    logits, value = prediction.run(["policy_logits", "value"], {"latent": latent})
    actions = np.array([0, 1, 1], np.int32)
    after, reward = dynamics.run(["next_latent", "reward"], {"latent": latent, "action": actions})
    assert [array.shape for array in (logits, value, after, reward)] == [(3, 2), (3,), latent.shape, (3,)]


def test_a_file_of_changed_weights_is_not_kept(board_agent, tmp_path, monkeypatch):
    right = FORMATS[".onnx"]

    def wrong(function, metadata):
        params = jax.tree.map(np.array, function.params)
        params["heads"]["value"]["bias"] += 0.01
        return right.encode(function._replace(params=params), metadata)

    (tmp_path / "agent.onnx").write_bytes(b"an earlier file")
    monkeypatch.setitem(FORMATS, ".onnx", right._replace(encode=wrong))
    with pytest.raises(ExportError, match=r"agent\.onnx .*value differs .*0\.0\d+"):
        export_agent(str(board_agent.root), tmp_path / "agent.onnx")
    assert files_in(tmp_path) == ["agent.onnx"]
    assert (tmp_path / "agent.onnx").read_bytes() == b"an earlier file"


@pytest.mark.parametrize("who", ["mcts:400", "random", "gnugo:3"])
def test_players_without_a_network_are_refused(who, tmp_path):
    with pytest.raises(ConfigError, match=rf"'{who}' .*no network"):
        export_agent(who, tmp_path / "agent.onnx")


@pytest.mark.parametrize("name", ["agent.onx", "agent", "agent.pt"])
def test_unknown_endings_are_refused(name, board_agent, tmp_path):
    with pytest.raises(ConfigError, match=r"suffix '.*\.onnx, \.stablehlo"):
        export_agent(str(board_agent.root), tmp_path / name)


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_without_the_packages_the_message_says_what_to_install(missing, board_agent, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=r"\.onnx .*--extra export` .*pip install"):
        export_agent(str(board_agent.root), tmp_path / "agent.onnx")
    assert files_in(tmp_path) == []


def test_a_file_that_cannot_be_written_is_refused_before_the_work(board_agent, tmp_path):
    (tmp_path / "folder.onnx").mkdir()
    for file, why in (("missing/agent.onnx", "its folder does not exist"), ("folder.onnx", "it is a folder")):
        with pytest.raises(ExportError, match=f"cannot write .*: {why}; .*--to"):
            export_agent(str(board_agent.root), tmp_path / file)


def test_a_full_disk_leaves_nothing_behind(board_agent, tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("podzero.files.workdir.sync", full)
    with pytest.raises(ExportError, match=r"agent\.stablehlo: No space left"):
        export_agent(str(board_agent.root), tmp_path / "agent.stablehlo")
    assert files_in(tmp_path) == []


def test_parameters_beyond_the_limit_of_a_file_are_refused(board_agent, tmp_path, monkeypatch):
    monkeypatch.setattr(agent_module, "MOST_BYTES", 1000)
    with pytest.raises(ExportError, match=r"[\d,]+ bytes; .*1,000"):
        export_agent(str(board_agent.root), tmp_path / "agent.onnx")


ROWS = np.arange(64, dtype=np.float32)[:, None]


def test_differences_are_relative_to_the_greatest_value_if_it_exceeds_one():
    assert greatest_difference(np.array([1.0, 3.0]), np.array([1.0, -4.0])) == pytest.approx(7 / 4)
    assert greatest_difference(np.array([0.25, 0.5]), np.array([0.0, 0.5])) == pytest.approx(0.25)
    assert greatest_difference(np.array([np.nan, 0.5]), np.array([0.0, 0.5])) == np.inf
    assert greatest_difference(np.array([np.inf]), np.array([np.inf])) == np.inf


def test_a_file_is_called_with_every_batch_size_and_the_greatest_difference_is_returned():
    called = []

    def call(inputs):
        called.append(len(inputs["x"]))
        return {"y": 2 * inputs["x"] + (1e-3 if len(inputs["x"]) == 7 else 0)}

    found = check_file(Path("a"), call, {"x": ROWS}, {"y": 2 * ROWS})
    assert found == {"y": pytest.approx(1e-3 / 12, rel=1e-2)}
    assert called == list(BATCH_SIZES)


@pytest.mark.parametrize("found", [{}, {"y": ROWS[0]}, {"y": ROWS[:1].repeat(2, axis=1)}])
def test_missing_outputs_and_other_shapes_are_refused(found):
    with pytest.raises(ExportError, match=r"a: output y .*batch of 1 "):
        check_file(Path("a"), lambda inputs: found, {"x": ROWS}, {"y": ROWS})


@pytest.mark.parametrize("config", ["tic_tac_toe", "cartpole", "own_game"])
def test_observations_are_different_positions_of_the_environment(config):
    env = load(config).env
    spec = spec_of(env)
    found = observations_of(env, spec, 20)
    assert found.shape == (20, *spec.observation_shape)
    assert found.dtype == np.float32
    assert len(np.unique(found.reshape(20, -1), axis=0)) > 8
