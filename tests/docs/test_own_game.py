"""The code and the commands of docs/own_game.md work."""

import re
import sys

import pytest

from podzero.config import load

from .printed import ROOT, SHORT, PrintedPage, run_script

PAGE = PrintedPage("own_game.md")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the files of the page."""
    PAGE.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("own_game", None)


def test_the_files_of_the_page_are_the_built_in_experiment(folder):
    assert PAGE.files["own_game.py"] == (ROOT / "configs" / "own_game.py").read_text()
    here, built_in = load("own_game.yaml"), load("own_game")
    assert here.env.id == f"{folder / 'own_game.py'}:Domineering"
    assert here.model_copy(update={"env": built_in.env}) == built_in


def test_the_python_of_the_page_runs(folder, capsys):
    for text in PAGE.blocks("python")[:2]:
        exec(compile(text, "own_game.md", "exec"), {"__name__": "page"})
    won, lost = map(int, re.findall(r"\d+", capsys.readouterr().out))
    assert won + lost == 20
    assert won > lost


def test_the_error_of_the_page_is_raised(folder):
    game = (folder / "own_game.py").read_text().replace("self.taken.copy()", "self.taken")
    (folder / "own_game.py").write_text(game)
    with pytest.raises(ValueError, match="clones are not independent") as refusal:
        exec(PAGE.blocks("python")[0], {})
    assert str(refusal.value) == PAGE.blocks("text")[0].strip()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_run(folder):
    """Trains for a few steps, with a small network."""
    script = "\n".join(PAGE.blocks("sh")).replace("podzero train own_game.yaml", f"podzero train own_game.yaml {SHORT}")
    assert '"value":' in run_script(script.replace("--games 100", "--games 4"))


def test_the_excerpt_of_the_game_in_jax_is_that_of_its_file():
    lines = {line.strip() for line in (ROOT / "configs" / "own_jax_game.py").read_text().splitlines()}
    assert {line.strip() for line in PAGE.blocks("python")[2].splitlines()} - {"..."} <= lines


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("inference", ["local", "device", "server"])
def test_the_game_in_jax_is_trained_in_every_placement(folder, inference):
    (folder / "own_jax_game.py").write_text((ROOT / "configs" / "own_jax_game.py").read_text())
    (env,) = PAGE.blocks("yaml")
    lines = [line for line in PAGE.files["own_game.yaml"].splitlines() if not line.startswith("env:")]
    (folder / "jax.yaml").write_text("\n".join([env, *lines]))
    run_script(
        f"podzero train jax.yaml actors.inference={inference} {SHORT}\n"
        "podzero evaluate runs/jax --opponent random --games 4 --json"
    )
