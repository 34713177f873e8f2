"""A player that needs no compilation: it prefers actions with low numbers."""

from concurrent.futures import Future

import jax
import numpy as np
import pytest

from podzero.envs import make_env
from podzero.evaluation.players import SearchPlayer
from podzero.play.engine_parts import EngineParts
from podzero.play.game import Game
from podzero.play.timed_search import TimedSearch
from podzero.types import SearchResult

GAMES = {}


def game_of(name):
    """The same compiled game for all tests of a process, at its beginning, and its compiled legal actions."""
    if name not in GAMES:
        env = make_env(name)
        GAMES[name] = Game(env), jax.jit(jax.vmap(lambda state: env.view(state).legal))
    game, legal = GAMES[name]
    game.restart()
    return game, legal


def first_legal(legal_of, size, sizes):
    """Visits go to the legal actions one after another, `size` at most; the values fall from 0.5 on."""

    def decide(params, key, roots):
        sizes.append(size)
        legal = np.asarray(legal_of(roots))
        rank = np.where(legal, np.cumsum(legal, axis=1) - 1, 1000)
        visits = np.maximum(size - 2 * rank, 0)
        policy = np.where(legal, 1.0 / (1 + rank), 0)
        policy /= policy.sum(axis=1, keepdims=True)
        return SearchResult(
            legal.argmax(axis=1), policy, np.full(len(legal), 0.25), visits, np.zeros(len(legal)),
            qvalues=0.5 - 0.25 * rank,
        )  # fmt: skip

    return SearchPlayer(f"first:{size}", decide, None, deterministic=True)


@pytest.fixture
def parts_of():
    """Makes a parts for a game, in a future; its search's `searched` lists the sizes of its searches."""

    def make(name, usual=16, most=64):
        (game, legal), sizes = game_of(name), []
        search = TimedSearch(lambda size: first_legal(legal, size, sizes), usual, most)
        search.prepare(game.beginning)
        sizes.clear()
        search.searched = sizes
        future = Future()
        future.set_result(EngineParts(game, search))
        return future

    return make
