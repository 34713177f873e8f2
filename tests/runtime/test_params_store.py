"""The store's logic on one event loop, without Ray."""

import asyncio

import pytest

from podzero.runtime.ray_params import ParamStore

SOON = 0.01
LONG = 30.0


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 60))


async def start(coroutine):
    """Starts a call and runs it until it waits."""
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


def test_readers_get_the_newest_publication():
    async def scenario():
        store = ParamStore()
        first = await start(store.hold("learner", 3, ["three"]))
        assert await store.newer_than(-1, SOON) == (3, ["three"])
        assert await store.newer_than(3, SOON) is None
        request = await start(store.newer_than(3, LONG))
        second = await start(store.hold("learner", 8, ["eight"]))
        assert await request == (8, ["eight"])
        await asyncio.wait_for(first, LONG)
        assert not second.done(), "the newest publication stays pending"
        second.cancel()

    run(scenario())


def test_of_one_publisher_only_increasing_versions_are_accepted():
    async def scenario():
        store = ParamStore()
        newest = await start(store.hold("learner", 8, ["eight"]))
        await asyncio.wait_for(store.hold("learner", 8, ["again"]), LONG)
        await asyncio.wait_for(store.hold("learner", 3, ["three"]), LONG)
        assert await store.newer_than(-1, SOON) == (8, ["eight"])
        newest.cancel()

    run(scenario())


def test_a_new_publisher_replaces_the_old_one_but_no_readers_version_decreases():
    async def scenario():
        store = ParamStore()
        dead = await start(store.hold("learner", 8, ["eight"]))
        ahead = await start(store.newer_than(8, LONG))
        living = await start(store.hold("its successor", 5, ["five"]))
        assert dead.done()
        assert await store.newer_than(-1, SOON) == (5, ["five"])
        assert not ahead.done()
        await start(store.hold("its successor", 9, ["nine"]))
        assert await ahead == (9, ["nine"])
        assert living.done()

    run(scenario())


@pytest.mark.parametrize("readers", [1, 50])
def test_all_readers_are_answered(readers):
    async def scenario():
        store = ParamStore()
        requests = [await start(store.newer_than(-1, LONG)) for _ in range(readers)]
        await start(store.hold("learner", 1, ["one"]))
        assert await asyncio.gather(*requests) == [(1, ["one"])] * readers

    run(scenario())
