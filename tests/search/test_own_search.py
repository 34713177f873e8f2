"""Searches named by an import path: what they are built from, and a message for each fault."""

from pathlib import Path

import jax
import numpy as np
import pytest
from explorations import explorations
from toy_games import heaps, nim, uniform

from podzero.config import OwnAlgorithmConfig, SearchConfig, load
from podzero.core.errors import ConfigError
from podzero.core.types import Exploration
from podzero.search import check_search, make_search, rules_model

FILE = Path(__file__).with_name("own_searches.py")
BATCH = 4


def own(name, **more):
    return SearchConfig(algorithm=OwnAlgorithmConfig(name=f"{FILE}:{name}", **more), simulations=8)


@pytest.fixture(scope="module")
def model():
    env = nim()
    return rules_model(env, uniform(env))


@pytest.fixture(scope="module")
def roots():
    """Three of the five actions are legal."""
    return heaps(*[3] * BATCH)


def check(config, model, roots):
    search, legal = make_search(config, model), np.asarray(jax.jit(model.legal)(roots))
    check_search(search, None, roots, legal, model.bounds, "mine")


def test_the_search_is_made_of_the_model_the_section_and_its_arguments(model, roots):
    check(own("softer"), model, roots)
    exploration = explorations(np.zeros(BATCH), np.zeros(BATCH))
    puct, same, flat = (
        jax.jit(make_search(config, model))(None, jax.random.key(1), roots, exploration)
        for config in (
            SearchConfig(algorithm="puct", simulations=8),
            own("softer", temperature=1.0),
            own("softer", temperature=4.0),
        )
    )
    np.testing.assert_array_equal(puct.visits, same.visits)
    np.testing.assert_array_equal(puct.visits, flat.visits)
    np.testing.assert_allclose(puct.policy, same.policy, rtol=1e-6)
    expected = np.asarray(puct.policy) ** 0.25
    np.testing.assert_allclose(flat.policy, expected / expected.sum(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("everywhere", "illegal actions up to 0.2"),
        ("unnormalized", "no distribution: its rows sum to 2"),
        ("nan", "policy is not finite"),
        ("infinite", "value is not finite"),
        ("large", r"value lies between .* expected \[-1, 1\]"),
        ("illegal", "action is illegal in 4 of 4"),
        ("outside", "action is illegal in 4 of 4"),
    ],
)
def test_a_violation_of_the_contract_is_named(model, roots, name, message):
    with pytest.raises(ConfigError, match=rf"mine violates the contract.*\n(.*\n)*.*{message}"):
        check(own(name), model, roots)


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("column", {}, r"value of its SearchResult is of shape \[4, 1\]; expected \[4\]"),
        ("without", {}, r"qvalues of its SearchResult is missing; expected \[4, 5\]"),
        ("several", {}, "a tuple; expected .*SearchResult"),
        ("failing", {}, r"its search failed at line \d+ of own_searches.py: AttributeError"),
        ("deaf", {}, "its search failed.*TypeError"),
        ("nothing", {}, "returned a NoneType; expected a function"),
        ("softer", {"temprature": 3}, r"search.algorithm.temprature: .*did you mean 'temperature'"),
        ("softer", {"model": 3}, "search.algorithm.model: podzero passes"),
        ("soft", {}, "has no 'soft'.*did you mean 'softer'"),
    ],
)
def test_code_that_cannot_be_used_is_refused(model, roots, name, more, message):
    with pytest.raises(ConfigError, match=message):
        jax.eval_shape(make_search(own(name, **more), model), None, jax.random.key(0), roots, Exploration.none(BATCH))


def test_another_file_than_that_of_the_experiment_is_refused(tmp_path, model):
    file = tmp_path / "mine.py"
    file.write_text(FILE.read_text())
    first = load("tic_tac_toe", [f"search.algorithm={{name: '{file}:softer'}}"]).search
    file.write_text(f"{FILE.read_text()}\nCHANGED = True\n")
    with pytest.raises(ConfigError, match=f"not the one .*search.algorithm.sha256 = {first.algorithm.sha256}"):
        make_search(first, model)


def test_an_experiment_goes_back_to_a_built_in_search(tmp_path):
    """The section of another search is not merged with that of the parent."""
    (tmp_path / "base.yaml").write_text(
        f"extends: tic_tac_toe\nsearch: {{algorithm: {{name: '{FILE}:softer', temperature: 3}}}}\n"
    )
    for algorithm, expected in (("puct", "puct"), (f"{{name: '{FILE}:nan'}}", f"{FILE}:nan")):
        (tmp_path / "mine.yaml").write_text(f"extends: base.yaml\nsearch: {{algorithm: {algorithm}}}\n")
        found = load(str(tmp_path / "mine.yaml")).search
        assert getattr(found.algorithm, "name", found.algorithm) == expected
        assert found.simulations == 32
        assert not getattr(found.algorithm, "arguments", {})
