"""A tiny agent, whose programs all tests of a process share."""

import pytest
from untrained_agents import write_untrained

import podzero


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A working directory with an untrained agent of tic-tac-toe at step 5."""
    return write_untrained(tmp_path_factory.mktemp("agent"), "tic_tac_toe", 5)


@pytest.fixture(scope="session")
def agent(folder):
    return podzero.load(folder)


@pytest.fixture(scope="session")
def mcts():
    return podzero.load("mcts:64", game="tic_tac_toe")
