"""A player that needs no compilation: it prefers actions with low numbers; and an untrained agent of an environment."""

from concurrent.futures import Future
from threading import Event

import jax
import numpy as np
import pytest
from random_parameters import random_parameters

from podzero.config import load
from podzero.core.types import SearchResult
from podzero.envs import make_env, spec_of
from podzero.evaluation.players import RandomPlayer, SearchPlayer
from podzero.files.workdir import Workdir
from podzero.networks import make_model_network
from podzero.networks.snapshots import save_snapshot
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import EngineParts, Root, TimedSearch

GAMES = {}


def game_of(name):
    """The same compiled game for all tests of a process, at its beginning, and its compiled legal actions."""
    if name not in GAMES:
        env = make_env(name)
        GAMES[name] = PlayableGame(env), jax.jit(jax.vmap(lambda state: env.view(state).legal))
    game, legal = GAMES[name]
    game.restart()
    return game, legal


def first_legal(legal_of, size, sizes, gate, waits):
    """Visits go to the legal actions one after another, `size` at most; the values fall from 0.5 on. A search that
    finds the `gate` closed sets `waits`, and waits.
    """

    def decide(params, key, roots):
        if not gate.is_set():
            waits.set()
            assert gate.wait(timeout=60)
        sizes.append(size)
        legal = np.asarray(legal_of(roots.state)) & ~roots.forbidden
        rank = np.where(legal, np.cumsum(legal, axis=1) - 1, 1000)
        visits = np.maximum(size - 2 * rank, 0)
        policy = np.where(legal, 1.0 / (1 + rank), 0)
        policy /= policy.sum(axis=1, keepdims=True)
        return SearchResult(
            legal.argmax(axis=1), policy, np.full(len(legal), 0.25), visits, qvalues=0.5 - 0.25 * rank
        )  # fmt: skip

    return SearchPlayer(f"first:{size}", decide, None, deterministic=True)


@pytest.fixture
def parts_of():
    """Makes the parts for a game, in a future; its search's `searched` lists the sizes of its searches, of which those
    with `most` simulations wait for its `gate`, and set `waits`. Without `searches`, moves are random.
    """

    def make(name, usual=16, most=64, searches=True, knows_komi=False):
        (game, legal), sizes, open_gate, gate, waits = game_of(name), [], Event(), Event(), Event()
        open_gate.set(), gate.set()
        search = TimedSearch(
            lambda size: (
                first_legal(legal, size, sizes, gate if size == most else open_gate, waits)
                if searches
                else RandomPlayer(game.env)
            ),
            usual,
            most,
        )
        search.prepare(Root.of(game.beginning))
        sizes.clear()
        search.searched, search.gate, search.waits = sizes, gate, waits
        future = Future()
        future.set_result(EngineParts(game, search, knows_komi))
        return future

    return make


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory):
    """The working directory of an untrained agent, as text."""
    experiment = load("cartpole", ["network.width=8", "network.latent=4", "search.simulations=2"])
    workdir = Workdir(tmp_path_factory.mktemp("cartpole"))
    workdir.open(experiment)
    network = make_model_network(experiment.network, spec_of(experiment.env))
    save_snapshot(workdir.snapshots, 7, random_parameters(network), experiment)
    return str(workdir.root)
