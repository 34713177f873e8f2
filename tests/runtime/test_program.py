"""The table of a run's processes, and what follows from it."""

from __future__ import annotations

import pickle

import pytest

from podzero.config import load
from podzero.files.workdir import Workdir
from podzero.runtime.process import RunContext
from podzero.runtime.program import program, reserved_cpus, start_order

SETTINGS = [
    [],
    ["actors.inference=server", "server.count=2"],
    ["actors.inference=device", "actors.resources={TPU: 4}"],
    ["reanalyse.share=0.5", "reanalyse.count=3", "actors.count=2"],
    ["cluster.slice=v5e-16", "replay.shards=4"],
]


@pytest.fixture(params=SETTINGS, ids=" ".join)
def experiment(request):
    return load("connect_four", request.param)


def rows(experiment):
    return {kind.name: kind for kind in program(experiment)}


def test_each_kind_holds_handles_of_kinds_of_the_table_that_have_processes(experiment):
    table = rows(experiment)
    assert len(table) == len(program(experiment))
    for kind in table.values():
        assert all(table[handle.kind].count for handle in kind.handles if kind.count)
        assert len(set(kind.names)) == kind.count


def test_the_names_of_processes_begin_with_their_kind():
    table = rows(load("connect_four", ["cluster.slice=v5e-16", "replay.shards=4", "actors.count=2"]))
    assert table["learner"].names == ["learner", "learner-1", "learner-2", "learner-3"]
    assert table["actor"].names == ["actor-0", "actor-1"]
    assert table["evaluator"].names == ["evaluator"]


def test_all_processes_start_and_one_reanalyser_before_the_actors(experiment):
    table, limits = rows(experiment), {}
    for kind, limit in start_order(table.values()):
        assert limit >= limits.get(kind.name, 0)
        limits[kind.name] = limit
    assert limits == {kind.name: kind.count for kind in table.values()}
    order = [(kind.name, limit) for kind, limit in start_order(table.values())]
    assert order.index(("reanalyser", min(1, table["reanalyser"].count))) < order.index(("actor", table["actor"].count))


def test_reserved_cpus_are_those_of_all_processes_but_the_learner():
    experiment = load("connect_four", ["cluster.host_resources={CPU: 7}", "replay.cpus=0.5", "actors.count=2"])
    assert rows(experiment)["learner"].cpus == 7.0
    expected = 0.5 * experiment.replay.shards + 2 * experiment.actors.cpus + experiment.evaluation.cpus
    assert sum(reserved_cpus(experiment)) == expected


@pytest.mark.parametrize("inference", ["local", "server", "device"])
def test_without_self_play_only_learner_and_evaluator_run(inference):
    experiment = load("connect_four", ["data.records=records", f"actors.inference={inference}"])
    assert [kind.name for kind in program(experiment) if kind.count] == ["learner", "evaluator"]
    assert all(kind.needed == 0 for kind in program(experiment) if kind.name != "learner")
    assert not experiment.uses_learner_devices
    beside = load("connect_four", ["data.records=records", "data.share=0.5", f"actors.inference={inference}"])
    assert rows(beside).keys() == rows(load("connect_four")).keys()
    assert rows(beside)["replay"].count == 1


def test_any_process_is_made_from_the_table_and_travels(experiment):
    context = RunContext(experiment, Workdir("run"), "0123", "store", "directory")
    for kind in program(experiment):
        for index, name in enumerate(kind.names):
            process = pickle.loads(pickle.dumps(kind.process(name, context, index, 40)))
            assert (process.name, process.index, process.attempt) == (name, index, 40)
            assert process.context.experiment == experiment


def test_a_process_without_a_handle_that_it_needs_is_not_made(experiment):
    for kind in program(experiment):
        for name, handle in kind.process.keywords.items():
            if handle is None:
                continue
            less = {key: value for key, value in kind.process.keywords.items() if key != name}
            if (kind.name, name) != ("actor", "opponents"):
                with pytest.raises(TypeError, match=name):
                    kind.process.func("name", None, **less)


@pytest.mark.parametrize(
    ("settings", "sharing"),
    [
        ([], set()),
        (["actors.inference=device"], set()),
        (["actors.inference=server", "server.beside_learner=true"], set()),
        (["actors.inference=server", "server.resources={TPU: 1}"], set()),
        (["actors.inference=server", "server.resources={GPU: 1}"], {"learner", "inference"}),
        (["actors.inference=device", "actors.resources={GPU: 1}"], {"learner", "actor"}),
        (["actors.inference=server", "server.resources={GPU: 1}", "cluster.host_resources={GPU: 3}"], set()),
        (
            ["actors.inference=server", "server.resources={GPU: 0.5}", "cluster.host_resources={GPU: 0.5}"],
            {"learner", "inference"},
        ),
    ],
)
def test_processes_that_may_share_a_gpu_reserve_none_of_its_memory_ahead(settings, sharing):
    """A learner without a reservation uses every GPU that it finds."""
    table = program(load("connect_four", settings))
    found = {kind.name for kind in table if kind.environment.get("XLA_PYTHON_CLIENT_PREALLOCATE") == "false"}
    assert found == sharing
