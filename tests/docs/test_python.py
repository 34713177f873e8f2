"""The code of docs/python.md and docs/notebook.ipynb works, with small untrained agents where that is faster."""

import re
from pathlib import Path

import jax
import pytest
from run_files import lines_of
from untrained_agents import write_untrained

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "python.md"
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
MOST_BYTES = 300_000
TRAINED = 'podzero.load("zoo:go_9x9")'


def notebook():
    import nbformat  # here: it brings Jupyter with it

    return nbformat.read(NOTEBOOK, as_version=4)


def code_cells():
    return [cell for cell in notebook().cells if cell.cell_type == "code"]


def blocks():
    """The code of the page: about agents of games, of environments, then about training."""
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty present directory, and figures that are not shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    return tmp_path


@pytest.fixture
def _quick_compilation():
    """Tiny programs that run a few times: most of their time would be spent on making them fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.usefixtures("_quick_compilation")
def test_the_code_of_the_page_plays_searches_and_reads_metrics(folder, capsys):
    write_untrained(folder / "runs" / "connect_four", "connect_four")
    (folder / "runs" / "connect_four" / "metrics.jsonl").write_bytes(b"\n".join([*lines_of(30), b""]))
    code, _, _ = blocks()
    found = {}
    exec(code.replace("mcts:200", "mcts:4"), found)
    assert found["search"].visits.sum() == 64
    assert found["played"].game.over
    assert found["played"].moves[:3] == ["d", "d", "c"]
    assert (folder / "game.pgn").read_text().count("mcts:4") == 1
    assert found["loss"].values.tolist() == [2.0, 2.0, 2.0]
    assert found["search"].best in capsys.readouterr().out


def test_the_code_of_the_page_acts_in_an_environment(capsys):
    _, code, _ = blocks()
    exec(f"import podzero\n{code}", {})
    returns = [float(word) for word in capsys.readouterr().out.strip("[]\n ").split()]
    assert len(returns) == 3
    assert min(returns) > 100


@pytest.mark.usefixtures("_quick_compilation")
def test_the_cells_of_the_notebook_run_with_an_untrained_agent(folder):
    import matplotlib.pyplot as plt

    agent = write_untrained(folder / "agent", "go_9x9")
    cells = [cell.source.replace(TRAINED, f'podzero.load("{agent}", simulations=2)') for cell in code_cells()]
    assert sum(agent in cell for cell in cells) == 1
    found = {}
    for cell in cells:
        exec(cell, found)
    assert len(plt.get_fignums()) == 3
    plt.close("all")
    assert found["played"].game.over
    assert found["search"].heat_map.shape == (9, 9)


@pytest.mark.slow
def test_the_code_of_the_page_trains_a_run_and_uses_its_agent(folder, capsys):
    _, _, code = blocks()
    found = {}
    exec(code, found)
    *lines, ended, best = capsys.readouterr().out.splitlines()
    assert int(lines[-1].split()[0]) > 0
    assert f"games in {folder / 'runs' / 'first'}" in ended
    assert re.fullmatch("[abc][123]", best)
    assert found["run"].status.step >= 100


def test_the_notebook_is_committed_with_its_outputs_and_nothing_of_a_machine():
    text = NOTEBOOK.read_text()
    assert len(text) < MOST_BYTES
    cells = code_cells()
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"execute_result", "stream", "display_data"}
    assert {output.name for output in outputs if output.output_type == "stream"} == {"stdout"}
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    without_pictures = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|usr|Users)/", without_pictures)


@pytest.mark.slow
def test_the_notebook_runs_as_it_is(folder, monkeypatch):
    monkeypatch.delenv("MPLBACKEND")
    from nbclient import NotebookClient

    executed = notebook()
    NotebookClient(executed, timeout=600, kernel_name="python3").execute()
    printed = "".join(output.text for cell in executed.cells for output in cell.get("outputs", []) if "text" in output)
    assert "zoo:go_9x9 against random: first player wins" in printed
