"""The code and the commands of docs/own_parts.md work."""

import pytest

from podzero.config import load
from podzero.launch.train import check_parts

from .printed import PrintedPage, run_script

PAGE = PrintedPage("own_parts.md")
EXPERIMENTS = [name for name in PAGE.files if name.endswith(".yaml")]
SHORT = "stop.steps=40 replay.min_size=512 search.simulations=8 actors.games=32 evaluation.final_minutes=0"
"""Settings with which a training takes a minute."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the files of the page."""
    PAGE.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_parts_of_the_page_fulfil_their_contracts(folder, name):
    experiment = load(name)
    assert [part.sha256 is not None for part in experiment.own_parts.values()] == [True]
    check_parts(experiment)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "inference"), [*((name, "local") for name in EXPERIMENTS), ("my_search.yaml", "device")]
)
def test_an_experiment_of_the_page_is_trained(folder, name, inference):
    run_script(
        f"podzero train {name} {SHORT} actors.inference={inference} --workdir runs/mine\n"
        "podzero evaluate runs/mine --games 4 --json"
    )
