"""Parts of a user's own are made and checked as the experiment has them."""

from pathlib import Path

import pytest

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.launch.train import check_parts

SEARCHES = Path(__file__).parents[1] / "search" / "own_searches.py"


def with_search(name, *more):
    return load("cartpole", [f"search.algorithm={{name: '{SEARCHES}:{name}'}}", *more])


def test_a_search_is_checked_with_a_learned_model():
    with pytest.raises(ConfigError, match=r"violates the contract of searches.*\n.*sum to 2, 2"):
        check_parts(with_search("unnormalized", "search.simulations=2"))


def test_opponents_are_made_before_the_start():
    who = "{who: runs/nowhere, share: 0.5}"
    with pytest.raises(ConfigError, match=r"actors\.opponents.*runs/nowhere"):
        check_parts(load("tic_tac_toe", [f"actors.opponents=[{{who: self, share: 0.5}}, {who}]"]))


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), ("env.id=Pendulum-v1", "env.vectorization=sync", "search.candidates=4")])
def test_a_search_of_a_learned_model_fulfils_the_contract(overrides):
    check_parts(with_search("softer", *overrides))
