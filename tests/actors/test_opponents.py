"""Self-play against opponents: whose move is whose, and what becomes a sample."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.actors import ActorClients, Opponent
from podzero.actors.core import SelfPlayCore
from podzero.actors.selfplay import OpposedGames, SelfPlayActor, blocks
from podzero.config import ActorsConfig, parse
from podzero.envs import make_env

from .test_core import first_legal
from .test_reanalysis import Source, Writer

ENV = make_env("tic_tac_toe")


@jax.jit
def last_legal(key, states):
    """Plays the last legal action, where the search plays the first."""
    legal = jax.vmap(ENV.view)(states).legal
    return legal.shape[1] - 1 - jnp.argmax(legal[:, ::-1], axis=1).astype(jnp.int32)


def opposed(games, *opponents):
    core = SelfPlayCore(ENV, first_legal(ENV), ActorsConfig(games=games))
    return core, OpposedGames(core, games, opponents)


def test_each_opponent_has_its_share_of_the_games_and_both_sides():
    first, second = blocks([Opponent("a", 0.3, last_legal), Opponent("b", 0.01, last_legal)], games=40)
    assert (first.games, second.games) == (slice(0, 12), slice(12, 14))
    assert first.side.mean() == second.side.mean() == 0.5


def test_shares_that_round_up_still_fit():
    sizes = [len(block.side) for block in blocks([Opponent(name, 1 / 3, last_legal) for name in "abc"], games=8)]
    assert sorted(sizes) == [2, 2, 2]
    assert [len(block.side) for block in blocks([Opponent("a", 1.0, last_legal)], games=7)] == [6]


def test_the_opponent_moves_for_its_side_only():
    core, games = opposed(8, Opponent("last", 0.5, last_legal))
    state = jax.jit(core.init)(jax.random.key(0))
    side = np.array([0, 1, 0, 1])
    for _ in range(12):
        state, move = jax.device_get(games.move(None, state))
        own = move.player[:4] == side
        np.testing.assert_array_equal(move.own, [*own, *[True] * 4])
        first = np.argmax(move.legal, axis=1)
        last = 8 - np.argmax(move.legal[:, ::-1], axis=1)
        np.testing.assert_array_equal(move.action, np.where(move.own, first, last))


def test_without_a_player_yet_all_games_are_the_cores():
    core, games = opposed(6, Opponent("later", 0.5, lambda key, states: None))
    plain = jax.jit(core.move)
    state = same = jax.jit(core.init)(jax.random.key(0))
    same = jax.tree.map(jnp.copy, same)
    for _ in range(10):
        (state, move), (same, expected) = games.move(None, state), plain(None, same)
        assert np.all(move.own)
        jax.tree.map(np.testing.assert_array_equal, move._replace(own=None), expected)


@pytest.fixture(scope="module")
def played():
    """An actor that plays only against `last_legal`: its samples and reports."""
    experiment = parse(
        {"name": "test", "env": {"name": "tic_tac_toe"}, "actors": {"games": 8}, "replay": {"samples_per_item": 1}},
        "test",
    )
    reports, writer = [], Writer([], "samples", writes=6)
    actor = SelfPlayActor(
        experiment=experiment,
        name="actor-0",
        seed=0,
        core=SelfPlayCore(ENV, first_legal(ENV), experiment.actors),
        clients=ActorClients(Source(), writer, lambda name, report: reports.append(report)),
        opponents=[Opponent("last", 1.0, last_legal)],
    )
    writer.enough = actor.stop
    actor.run()
    return writer.written, reports


def test_samples_are_the_searchs_moves_only(played):
    written, reports = played
    first = [np.argmax(samples.legal, axis=1) for samples in written]
    for samples, action in zip(written, first, strict=True):
        np.testing.assert_array_equal(samples.policy_target, np.eye(9)[action])
    samples, games = (sum(report[f"count/{name}"] for report in reports) for name in ("samples", "games"))
    plies = sum(report.get("selfplay/plies_per_game", 0.0) * report["count/games"] for report in reports)
    # The sides alternate, so that each game gives half of its plies, or half a ply more or less.
    assert plies / 2 - games / 2 <= samples <= plies / 2 + games / 2


def test_reports_have_the_score_against_each_opponent(played):
    """The first three squares from the left win against the last three from the right, whoever begins."""
    scores = [report["selfplay/score_last"] for report in played[1] if "selfplay/score_last" in report]
    assert scores
    assert all(0.0 <= score <= 1.0 for score in scores)
