"""The code and the commands of docs/own_game.md work."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from podzero.config import load

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "own_game.md").read_text()
BLOCKS = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def files():
    return {name: text for _, name, text in BLOCKS if name}


def blocks(language):
    return [text for kind, name, text in BLOCKS if kind == language and not name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the files of the page."""
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("own_game", None)


def test_the_files_of_the_page_are_the_built_in_experiment(folder):
    assert files()["own_game.py"] == (ROOT / "configs" / "own_game.py").read_text()
    here, built_in = load("own_game.yaml"), load("own_game")
    assert here.env.id == f"{folder / 'own_game.py'}:Domineering"
    assert here.model_copy(update={"env": built_in.env}) == built_in


def test_the_python_of_the_page_runs(folder, capsys):
    for text in blocks("python")[:2]:
        exec(compile(text, "own_game.md", "exec"), {"__name__": "page"})
    won, lost = map(int, re.findall(r"\d+", capsys.readouterr().out))
    assert won + lost == 20
    assert won > lost


def test_the_error_of_the_page_is_raised(folder):
    game = (folder / "own_game.py").read_text().replace("self.taken.copy()", "self.taken")
    (folder / "own_game.py").write_text(game)
    with pytest.raises(ValueError, match="clones are not independent") as refusal:
        exec(blocks("python")[0], {})
    assert str(refusal.value) == blocks("text")[0].strip()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_run(folder):
    """Trains for a few steps, with a small network."""
    short = "stop.steps=40 network.channels=8 replay.min_size=512 search.simulations=8 actors.games=32"
    podzero = Path(sys.executable).parent / "podzero"
    script = "\n".join(blocks("sh")).replace("podzero train own_game.yaml", f"podzero train own_game.yaml {short}")
    script = script.replace("--games 100", "--games 4").replace("podzero ", f"{podzero} ")
    found = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=800, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert '"value":' in found.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("inference", ["local", "device", "server"])
def test_the_game_in_jax_is_trained_in_every_placement(folder, inference):
    (folder / "own_jax_game.py").write_text((ROOT / "configs" / "own_jax_game.py").read_text())
    lines = files()["own_game.yaml"].splitlines()
    (env,) = blocks("yaml")
    (folder / "jax.yaml").write_text("\n".join([env, *(line for line in lines if not line.startswith("env:"))]))
    podzero = Path(sys.executable).parent / "podzero"
    short = "stop.steps=40 network.channels=8 replay.min_size=512 search.simulations=8 actors.games=32"
    train = [podzero, "train", "jax.yaml", f"actors.inference={inference}", *short.split()]
    found = subprocess.run(train, capture_output=True, text=True, timeout=800, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    evaluate = [podzero, "evaluate", "runs/jax", "--opponent", "random", "--games", "4", "--json"]
    found = subprocess.run(evaluate, capture_output=True, text=True, timeout=800, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
