"""Games in which each player has a value of its own."""

from pathlib import Path

import pytest

from podzero.config import parse
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec
from podzero.envs import check_values

THREE = {"name": f"{Path(__file__).resolve().parents[2] / 'configs' / 'own_three_players.py'}:ThreeInARow"}


@pytest.mark.parametrize("players", [1, 3])
def test_only_one_of_two_players_resigns(players):
    experiment = parse({"name": "test", "env": THREE, "actors": {"resign_value": -0.9}}, "test")
    with pytest.raises(ConfigError, match=rf"actors\.resign_value: some has {players} player"):
        check_values(experiment, EnvSpec("some", (5, 5, 3), "bool", 25, players=players))


@pytest.mark.parametrize(
    "changes",
    [
        {"actors": {"td_lambda": 0.9}},
        {"actors": {"root_value_weight": 0.2}},
        {"actors": {"opponents": [{"who": "self", "share": 0.5}, {"who": "random", "share": 0.5}]}},
        {"actors": {"inference": "int8"}},
        {"network": {"name": "resnet", "auxiliary": True}},
        {"reanalyse": {"share": 0.25}},
        {"data": {"records": "games", "share": 0.5}},
    ],
    ids=str,
)
def test_what_needs_one_value_per_position_is_refused_where_each_player_has_one(changes):
    experiment = parse({"name": "test", "env": THREE} | changes, "test")
    ((section, settings),) = changes.items()
    with pytest.raises(ConfigError, match=rf"{section}\.({'|'.join(settings)})"):
        check_values(experiment, EnvSpec("three", (5, 5, 3), "bool", 25, players=3, values=3))
