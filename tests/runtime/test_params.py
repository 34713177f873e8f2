"""Publication of parameters: the store's logic without Ray, a real Ray cluster, and one process."""

import asyncio
import functools
import logging
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

from podzero.core.errors import ClusterError
from podzero.runtime.cluster.remote import current_node_id
from podzero.runtime.cluster.services import ParamStore, start_param_store
from podzero.runtime.params import (
    MAX_PENDING,
    LocalParams,
    RayParamSink,
    RayParamSource,
)

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


TIMEOUT_S = 120.0


def params_of(version):
    """About a megabyte, so that Ray puts the arrays into the object store and not into messages."""
    return {"tower": {"kernel": np.full((512, 512), version, np.float32)}, "bias": np.zeros(3, np.float32)}


def poll_until(source, version):
    """The versions that polling returns until `version`."""
    seen = []
    deadline = time.monotonic() + TIMEOUT_S
    while not seen or seen[-1] < version:
        assert time.monotonic() < deadline, f"saw {seen}, waited for {version}"
        newer = source.poll()
        if newer is not None:
            assert (newer.params["tower"]["kernel"] == newer.version).all()
            seen.append(newer.version)
        time.sleep(0.005)
    return seen


@pytest.fixture
def store(ray_cluster):
    import ray

    handle = start_param_store(current_node_id())
    yield handle
    ray.kill(handle)


def test_readers_get_increasing_versions_up_to_the_newest(store):
    source = RayParamSource(store)
    with pytest.raises(TimeoutError, match=r"0\.5 s.*learner .*not published"):
        source.wait(0.5)
    assert source.poll() is None
    sink = RayParamSink(store)
    sink.publish(0, params_of(0))
    first = source.wait(TIMEOUT_S)
    assert first.version == 0
    assert source.wait(0.0) is first, "waiting again returns the newest known at once"
    for version in range(1, 20):
        sink.publish(version, params_of(version))
        sink.publish(version, params_of(version))
    seen = poll_until(source, 19)
    assert seen == sorted(set(seen))
    assert source.poll() is None
    assert RayParamSource(store).wait(TIMEOUT_S).version == 19


def test_leaves_are_read_only_views(store):
    RayParamSink(store).publish(1, params_of(1))
    kernel = RayParamSource(store).wait(TIMEOUT_S).params["tower"]["kernel"]
    assert not kernel.flags.writeable
    assert not kernel.flags.owndata


def test_parameters_are_stored_once_for_all_readers_of_a_node(store, ray_cluster):
    before = stored_bytes(ray_cluster.address)
    RayParamSink(store).publish(1, params_of(1))
    sources = [RayParamSource(store) for _ in range(4)]
    held = [source.wait(TIMEOUT_S).params["tower"]["kernel"] for source in sources]
    assert len({kernel.ctypes.data for kernel in held}) == 1
    assert stored_bytes(ray_cluster.address) - before < 2 * held[0].nbytes


def test_another_process_reads_published_parameters(store):
    import ray

    class Reader:
        def version_and_sum(self, handle):
            from podzero.runtime.params import RayParamSource

            version, params = RayParamSource(handle).wait(60.0)
            return version, float(params["tower"]["kernel"].sum())

    RayParamSink(store).publish(3, params_of(3))
    reader = ray.remote(Reader).options(num_cpus=0).remote()
    assert ray.get(reader.version_and_sum.remote(store), timeout=TIMEOUT_S) == (3, 3.0 * 512 * 512)
    ray.kill(reader)


def test_superseded_parameters_leave_the_object_store(store, ray_cluster):
    """A publication that is not the newest and has no reader must not stay in memory."""
    sink, source = RayParamSink(store), RayParamSource(store)
    stored = functools.partial(stored_bytes, ray_cluster.address)
    before = most = stored()
    for version in range(1, 41):
        sink.publish(version, params_of(version))
        poll_until(source, version)
        most = max(most, stored())  # what the test before left behind may vanish meanwhile
    assert most > before
    deadline = time.monotonic() + TIMEOUT_S
    while stored() - before > 8 * params_of(0)["tower"]["kernel"].nbytes:
        assert time.monotonic() < deadline, f"{stored() - before} bytes stayed"
        time.sleep(0.2)


def test_a_restarted_store_gets_the_newest_back_and_versions_never_decrease(store):
    import ray

    sink, source = RayParamSink(store), RayParamSource(store)
    sink.publish(4, params_of(4))
    sink.publish(5, params_of(5))
    poll_until(source, 5)
    ray.kill(store, no_restart=False)
    assert RayParamSource(store).wait(TIMEOUT_S).version == 5, "it is there without another publication"
    assert source.poll() is None
    sink.publish(6, params_of(6))
    assert poll_until(source, 6) == [6]


def test_readers_wait_for_new_parameters_when_the_learner_died_with_the_old_ones(store, caplog):
    import ray

    class Learner:
        def publish(self, handle, version):
            from podzero.runtime.params import RayParamSink

            self.sink = RayParamSink(handle)
            self.sink.publish(version, {"tower": {"kernel": np.full((512, 512), version, np.float32)}})

    learner = ray.remote(Learner).options(num_cpus=0).remote()
    ray.get(learner.publish.remote(store, 8), timeout=TIMEOUT_S)
    ahead = RayParamSource(store)
    poll_until(ahead, 8)
    ray.kill(learner)
    late = RayParamSource(store)
    successor = RayParamSink(store)
    successor.publish(5, params_of(5))
    with caplog.at_level(logging.WARNING):
        assert late.wait(TIMEOUT_S).version in (5, 8)
    assert ahead.poll() is None
    successor.publish(9, params_of(9))
    assert poll_until(ahead, 9) == [9]


def test_a_store_that_died_is_reported(ray_cluster):
    import ray

    handle = start_param_store(current_node_id())
    sink, source = RayParamSink(handle), RayParamSource(handle)
    sink.publish(1, params_of(1))
    source.wait(TIMEOUT_S)
    ray.kill(handle, no_restart=True)
    with pytest.raises(ClusterError, match="store has died"):
        poll_until(source, 2)
    with pytest.raises(ClusterError, match="store has died"):
        publish_until_it_waits(sink)


def publish_until_it_waits(sink):
    """With so many publications pending, the sink waits until Ray has noticed that the store is gone."""
    for version in range(2, 3 + MAX_PENDING):
        sink.publish(version, params_of(version))


def stored_bytes(address):
    """Bytes in the object stores of the cluster; without an address Ray takes the newest one of the machine."""
    from ray._private import internal_api

    state = internal_api.get_state_from_address(address)
    return internal_api.get_memory_info_reply(state).store_stats.object_store_bytes_used


def test_a_reader_gets_each_version_once_and_the_newest_alone():
    params = LocalParams()
    assert params.poll() is None
    params.publish(0, {"w": jnp.zeros(3)})
    assert params.wait(1.0).version == 0
    assert params.poll() is None
    params.publish(8, {"w": jnp.ones(3)})
    params.publish(16, {"w": jnp.full(3, 2.0)})
    newest = params.poll()
    assert newest.version == 16
    np.testing.assert_array_equal(newest.params["w"], [2.0, 2.0, 2.0])
    assert params.poll() is None


def test_a_reader_waits_for_the_first_parameters_and_no_longer_than_it_says():
    params = LocalParams()
    with pytest.raises(TimeoutError, match=r"0\.05 s: .*learner .*not published"):
        params.wait(0.05)
    threading.Timer(0.05, params.publish, (3, {"w": jnp.zeros(1)})).start()
    assert params.wait(10.0).version == 3
