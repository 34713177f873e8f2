"""The store's logic alone, on one event loop, without Ray."""

import asyncio

import pytest

from podzero.params import ParamStore

SOON = 0.01
LONG = 30.0


def play(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 60))


async def start(coroutine):
    """Runs a call until it waits."""
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


def test_a_question_is_answered_by_the_newest():
    async def scenario():
        store = ParamStore()
        first = await start(store.hold("learner", 3, ["three"]))
        assert await store.newer_than(-1, SOON) == (3, ["three"])
        assert await store.newer_than(3, SOON) is None
        question = await start(store.newer_than(3, LONG))
        second = await start(store.hold("learner", 8, ["eight"]))
        assert await question == (8, ["eight"])
        await asyncio.wait_for(first, LONG)
        assert not second.done(), "the newest publication stays pending"
        second.cancel()

    play(scenario())


def test_of_one_publisher_versions_only_rise():
    async def scenario():
        store = ParamStore()
        newest = await start(store.hold("learner", 8, ["eight"]))
        await asyncio.wait_for(store.hold("learner", 8, ["again"]), LONG)
        await asyncio.wait_for(store.hold("learner", 3, ["three"]), LONG)
        assert await store.newer_than(-1, SOON) == (8, ["eight"])
        newest.cancel()

    play(scenario())


def test_a_learner_that_starts_over_replaces_the_dead_one_but_turns_no_reader_back():
    async def scenario():
        store = ParamStore()
        dead = await start(store.hold("learner", 8, ["eight"]))
        ahead = await start(store.newer_than(8, LONG))
        living = await start(store.hold("its heir", 5, ["five"]))
        assert dead.done()
        assert await store.newer_than(-1, SOON) == (5, ["five"])
        assert not ahead.done()
        await start(store.hold("its heir", 9, ["nine"]))
        assert await ahead == (9, ["nine"])
        assert living.done()

    play(scenario())


@pytest.mark.parametrize("readers", [1, 50])
def test_all_who_ask_are_answered(readers):
    async def scenario():
        store = ParamStore()
        questions = [await start(store.newer_than(-1, LONG)) for _ in range(readers)]
        await start(store.hold("learner", 1, ["one"]))
        assert await asyncio.gather(*questions) == [(1, ["one"])] * readers

    play(scenario())
