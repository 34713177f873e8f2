"""The agents that come with podzero: complete, small, and found by their names."""

import pytest

from podzero.core.errors import ConfigError
from podzero.files.players import game_to_play, parse_player, zoo_card, zoo_names, zoo_workdir
from podzero.networks.snapshots import load_snapshot, snapshot_steps


@pytest.mark.parametrize("name", zoo_names())
def test_an_agent_has_an_experiment_an_intact_snapshot_and_a_card(name):
    workdir, card = zoo_workdir(name), zoo_card(name)
    assert card["game"] == workdir.experiment().env.title
    assert card["command"].startswith("podzero train ")
    assert card["judged"]
    (step,) = snapshot_steps(workdir.snapshots)
    assert load_snapshot(workdir.snapshots, step).version == step
    assert parse_player(f"zoo:{name}").workdir.root == workdir.root
    assert game_to_play(None, f"zoo:{name}") == workdir.experiment().env


def test_all_agents_together_stay_below_ten_megabytes():
    files = [file for name in zoo_names() for file in zoo_workdir(name).root.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 10_000_000


def test_an_unknown_agent_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'go_9x8'.*'go_9x9'"):
        parse_player("zoo:go_9x8")
