"""Publication of parameters: the store's logic without Ray, a real Ray cluster, and one process."""

import asyncio
import copy
import functools
import logging
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest
import ray

from podzero.core.errors import ClusterError
from podzero.core.waiting import behind
from podzero.networks.snapshots import save_snapshot, snapshot_steps
from podzero.runtime import params
from podzero.runtime.cluster.remote import current_node_id
from podzero.runtime.cluster.services import ParamStore, Publication, start_param_store
from podzero.runtime.params import MAX_PENDING, LocalParams, RayParamSink, RayParamSource, checksum

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


def publication(version, publisher="learner", serial=None):
    return Publication(publisher, version if serial is None else serial, version, params=f"of {version}")


def test_readers_get_the_newest_publication():
    async def scenario():
        store = ParamStore()
        first = await start(store.hold(publication(3)))
        assert await store.other_than("", 0, SOON) == publication(3)
        assert await store.other_than("learner", 3, SOON) is None
        request = await start(store.other_than("learner", 3, LONG))
        second = await start(store.hold(publication(8)))
        assert await request == publication(8)
        await asyncio.wait_for(first, LONG)
        assert not second.done(), "the newest publication stays pending"
        second.cancel()

    run(scenario())


def test_of_one_publisher_only_increasing_versions_are_accepted():
    async def scenario():
        store = ParamStore()
        newest = await start(store.hold(publication(8)))
        await asyncio.wait_for(store.hold(publication(8, serial=9)), LONG)
        await asyncio.wait_for(store.hold(publication(3, serial=10)), LONG)
        assert await store.other_than("", 0, SOON) == publication(8)
        newest.cancel()

    run(scenario())


def test_a_new_publisher_replaces_the_old_one_whatever_its_version():
    async def scenario():
        store = ParamStore()
        dead = await start(store.hold(publication(8)))
        ahead = await start(store.other_than("learner", 8, LONG))
        living = await start(store.hold(publication(5, "its successor")))
        assert dead.done()
        assert await ahead == publication(5, "its successor")
        assert await store.other_than("its successor", 5, SOON) is None
        living.cancel()

    run(scenario())


def test_a_store_that_forgets_gives_nothing_until_the_next_publisher():
    async def scenario():
        store = ParamStore()
        dead = await start(store.hold(publication(8)))
        await store.forget()
        await asyncio.wait_for(dead, LONG)
        assert await store.other_than("", 0, SOON) is None
        assert await store.other_than("learner", 8, SOON) is None
        living = await start(store.hold(publication(5, "its successor")))
        assert await store.other_than("learner", 8, SOON) == publication(5, "its successor")
        living.cancel()

    run(scenario())


@pytest.mark.parametrize("readers", [1, 50])
def test_all_readers_are_answered(readers):
    async def scenario():
        store = ParamStore()
        requests = [await start(store.other_than("", 0, LONG)) for _ in range(readers)]
        await start(store.hold(publication(1)))
        assert await asyncio.gather(*requests) == [publication(1)] * readers

    run(scenario())


@pytest.mark.parametrize(
    "leaf", [np.arange(6.0).reshape(2, 3).T, np.float32(2.0), np.zeros((0, 3)), jnp.ones(3, jnp.bfloat16)]
)
def test_every_flipped_byte_changes_the_checksum(leaf):
    params = {"a": {"kernel": np.asarray(leaf)}, "b": np.arange(3)}
    whole = checksum(params)
    for name in params:
        flipped = copy.deepcopy(params)
        array = flipped["b"] if name == "b" else flipped["a"]["kernel"]
        if not array.size:
            continue
        for byte in range(array.nbytes):
            content = bytearray(array.tobytes())
            content[byte] ^= 1
            other = np.frombuffer(bytes(content), array.dtype).reshape(array.shape)
            assert checksum(params | ({"b": other} if name == "b" else {"a": {"kernel": other}})) != whole


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


def poll_while(source, condition):
    """Polls for as long as something is so; no poll returns parameters."""
    deadline = time.monotonic() + TIMEOUT_S
    while condition():
        assert time.monotonic() < deadline
        assert source.poll() is None
        time.sleep(0.005)


@pytest.fixture
def store(ray_cluster):
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


def test_a_reader_knows_how_many_publications_it_is_behind_while_arrays_are_fetched(store, monkeypatch):
    """A fetch that has begun is not given up for newer parameters, which are fetched next."""
    sink, source, arrived = RayParamSink(store), RayParamSource(store), params._arrived
    sink.publish(1, params_of(1))
    assert source.wait(TIMEOUT_S).version == 1
    assert behind(source) == 0
    monkeypatch.setattr(params, "_arrived", lambda reference, timeout_s: False)
    for version in (2, 4, 8, 16):
        sink.publish(version, params_of(version))
        poll_while(source, lambda: behind(source) == 0)
    poll_while(source, lambda: behind(source) < 4)
    monkeypatch.setattr(params, "_arrived", arrived)
    assert poll_until(source, 2) == [2]
    assert behind(source) == 3
    assert poll_until(source, 16) == [16]
    assert behind(source) == 0


def test_who_waits_for_publications_of_a_new_publisher_below_its_version_is_not_behind(store):
    """Else an actor would wait for a learner that waits for its samples."""
    source = RayParamSource(store)
    RayParamSink(store).publish(8, params_of(8))
    poll_until(source, 8)
    successor = RayParamSink(store)
    for version in (2, 3, 4, 5):
        successor.publish(version, params_of(version))
        poll_while(source, lambda: source.publications[1] < version)  # noqa: B023
        assert behind(source) == 0


def test_damaged_parameters_are_counted_and_never_used(store, monkeypatch):
    damages = []
    sink, source = RayParamSink(store), RayParamSource(store, damaged=lambda: damages.append(1))
    sink.publish(1, params_of(1))
    poll_until(source, 1)
    with monkeypatch.context() as patch:
        patch.setattr(params, "checksum", lambda params: 0)
        sink.publish(2, params_of(2))
    poll_while(source, lambda: not damages)
    assert behind(source) == 0, "nobody waits for what cannot be used"
    sink.publish(3, params_of(3))
    assert poll_until(source, 3) == [3]
    assert len(damages) == 1


@pytest.fixture
def published(tmp_path, experiment):
    """A folder for parameters that Ray does not take, and an experiment."""
    return tmp_path / "published", experiment()


def out_of_memory(params):
    raise ray.exceptions.ObjectStoreFullError("no room")


def test_parameters_that_ray_does_not_take_come_from_the_folder(store, published, monkeypatch):
    sink, source = RayParamSink(store, published), RayParamSource(store, published[0])
    monkeypatch.setattr(params, "FOLDER_EVERY_S", 0.0)
    sink.publish(1, params_of(1))
    poll_until(source, 1)
    with monkeypatch.context() as patch:
        patch.setattr(ray, "put", out_of_memory)
        for version in (2, 3):
            with pytest.raises(ClusterError, match="no room"):
                sink.publish(version, params_of(version))
    assert poll_until(source, 3)[-1] == 3
    assert snapshot_steps(published[0]) == [3], "one file"
    assert RayParamSource(store, published[0]).wait(TIMEOUT_S).version == 3
    sink.publish(4, params_of(4))
    assert poll_until(source, 4) == [4]


def test_a_damaged_folder_is_counted_once_and_never_used(store, published, monkeypatch):
    damages = []
    folder, _ = published
    sink, source = RayParamSink(store, published), RayParamSource(store, folder, lambda: damages.append(1))
    monkeypatch.setattr(params, "FOLDER_EVERY_S", 0.0)
    monkeypatch.setattr(ray, "put", out_of_memory)
    with pytest.raises(ClusterError):
        sink.publish(2, params_of(2))
    file = folder / "000000002" / "params.msgpack"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    poll_while(source, lambda: not damages)
    assert [source.poll() for _ in range(5)] == [None] * 5
    with pytest.raises(ClusterError):
        sink.publish(3, params_of(3))
    assert poll_until(source, 3) == [3]
    assert len(damages) == 1


def test_a_reader_looks_into_the_folder_when_the_store_does_not_answer(store, published, monkeypatch):
    folder, experiment = published
    source = RayParamSource(store, folder)
    save_snapshot(folder, 4, params_of(4), experiment)
    assert source.poll() is None, "it may answer yet"
    monkeypatch.setattr(params, "LONG_POLL_S", 0.0)
    monkeypatch.setattr(params, "STORE_TIMEOUT_S", 0.0)
    assert source.poll().version == 4
    assert source.poll() is None


def test_arrays_that_arrive_after_newer_ones_from_the_folder_are_not_used(store, published, monkeypatch):
    folder, experiment = published
    sink, source, arrived = RayParamSink(store), RayParamSource(store, folder), params._arrived
    monkeypatch.setattr(params, "_arrived", lambda reference, timeout_s: False)
    sink.publish(2, params_of(2))
    poll_while(source, lambda: behind(source) == 0)
    save_snapshot(folder, 4, params_of(4), experiment)
    monkeypatch.setattr(params, "LONG_POLL_S", 0.0)
    monkeypatch.setattr(params, "STORE_TIMEOUT_S", 0.0)
    assert source.poll().version == 4
    monkeypatch.setattr(params, "_arrived", arrived)
    poll_while(source, lambda: behind(source) > 0)
    sink.publish(5, params_of(5))
    assert poll_until(source, 5) == [5]


def test_a_reader_that_lost_parameters_takes_newer_ones_from_the_folder(store, published, monkeypatch):
    folder, experiment = published
    sink, source, get = RayParamSink(store), RayParamSource(store, folder), ray.get

    def lost(reference):
        found = get(reference)
        if isinstance(found, dict):
            raise ray.exceptions.ObjectLostError(reference.hex(), None, "")
        return found

    monkeypatch.setattr(ray, "get", lost)
    monkeypatch.setattr(params, "FOLDER_EVERY_S", 0.0)
    sink.publish(2, params_of(2))
    poll_while(source, lambda: source.publications[1] == 0 or behind(source) > 0)
    save_snapshot(folder, 4, params_of(4), experiment)
    assert source.poll().version == 4


def test_a_new_sink_forgets_the_parameters_in_the_folder(store, published):
    """They may be of a later step than the checkpoint from which the learner resumes."""
    folder, experiment = published
    save_snapshot(folder, 9000, params_of(1), experiment)
    RayParamSink(store, published)
    assert snapshot_steps(folder) == []


def test_readers_of_a_store_that_died_get_parameters_from_the_folder(ray_cluster, published, monkeypatch, caplog):
    handle = start_param_store(current_node_id())
    sink, source = RayParamSink(handle, published), RayParamSource(handle, published[0])
    monkeypatch.setattr(params, "FOLDER_EVERY_S", 0.0)
    sink.publish(1, params_of(1))
    source.wait(TIMEOUT_S)
    ray.kill(handle, no_restart=True)
    with pytest.raises(ClusterError, match="step"):
        publish_until_it_waits(sink)
    with caplog.at_level(logging.WARNING):
        newest = poll_until(source, 2)[-1]
    assert snapshot_steps(published[0])[-1] >= newest
    assert len([line for line in caplog.messages if "store is lost" in line]) == 1


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
    local = LocalParams()
    assert local.poll() is None
    local.publish(0, {"w": jnp.zeros(3)})
    assert local.wait(1.0).version == 0
    assert local.poll() is None
    local.publish(8, {"w": jnp.ones(3)})
    local.publish(16, {"w": jnp.full(3, 2.0)})
    assert behind(local) == 2
    newest = local.poll()
    assert newest.version == 16
    np.testing.assert_array_equal(newest.params["w"], [2.0, 2.0, 2.0])
    assert local.poll() is None
    assert behind(local) == 0


def test_a_reader_waits_for_the_first_parameters_and_no_longer_than_it_says():
    local = LocalParams()
    with pytest.raises(TimeoutError, match=r"0\.05 s: .*learner .*not published"):
        local.wait(0.05)
    threading.Timer(0.05, local.publish, (3, {"w": jnp.zeros(1)})).start()
    assert local.wait(10.0).version == 3
