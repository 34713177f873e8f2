"""The list of doors is that of the sockets at which the processes of a run listen."""

import pytest
from open_doors import doors_of, family, reach_of, sockets_of

from podzero.runtime.cluster.ray_start import free_ports
from podzero.runtime.train import train


def test_each_kind_of_reach_is_told():
    addresses = ["127.0.0.1", "::ffff:127.0.0.1", "::1", "0.0.0.0", "::", "10.0.0.2", "::ffff:10.0.0.2"]
    assert list(map(reach_of, addresses)) == ["loopback"] * 3 + ["all"] * 2 + ["node"] * 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_sockets_of_a_run_are_those_of_the_list_and_none_is_reached_from_other_machines(
    tmp_path, tiny, watch, listening
):
    found, reached, before = set(), {}, sockets_of(family())
    replay, prometheus = free_ports(2)

    def look(status):
        found.update(sockets_of(family()) - before)
        reached.update(listening(family()))

    ports = (f"replay.port={replay}", f"metrics.prometheus={prometheus}")
    train(tiny("stop.steps=40", "actors.inference=server", *ports), tmp_path / "run", None, watch(look))
    assert len(found) > 10
    assert [socket for socket in found if not doors_of(socket)] == []
    used = {door.who for socket in found for door in doors_of(socket)}
    assert {"Ray, in each process", "replay shard", "inference server", "`metrics.prometheus`"} <= used
    assert [port for title, _, port in found if "serve.py" in title] == [replay]
    assert prometheus in {port for _, _, port in found}
    assert {port: addresses for port, addresses in reached.items() if addresses} == {}
