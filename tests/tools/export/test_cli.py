"""`podzero export`."""

import json
import re


def test_an_agent_of_the_zoo_is_exported(command, tmp_path):
    code, out, _ = command("export", "zoo:go_9x9", "--to", str(tmp_path / "go.onnx"), "--json")
    assert code == 0
    result = json.loads(out)
    assert result["files"] == [str(tmp_path / "go.onnx")]
    assert result["metadata"]["game"] == "go_9x9"
    assert result["metadata"]["trained_with_commit"]
    assert max(result["differences"].values()) < result["bound"]
    assert (tmp_path / "go.onnx").stat().st_size > 1e6


def test_people_see_where_the_file_is_and_how_far_it_is_from_jax(command, tmp_path):
    code, out, _ = command("export", "zoo:go_9x9", "--to", str(tmp_path / "go.stablehlo"))
    assert code == 0
    shown = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert shown["files"] == str(tmp_path / "go.stablehlo")
    assert re.search(r"by at most \d\S* \((policy_logits|value)\)", shown["checked"])


def test_errors_are_messages(command, tmp_path):
    code, _, err = command("export", "zoo:go_9x9", "--to", str(tmp_path / "go.pb"))
    assert code == 2
    assert err.startswith("podzero: --to ")
    code, out, _ = command("export", "mcts:3", "--to", str(tmp_path / "go.onnx"), "--json")
    assert code == 2
    assert json.loads(out)["kind"] == "ConfigError"
