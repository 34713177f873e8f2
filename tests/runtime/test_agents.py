"""Agents of nodes: the driver asks nodes and not processes, and what an agent does not know or say ends no process."""

from __future__ import annotations

import asyncio
import logging
import pickle

import pytest
from fake_cluster import PENDING, cpu_node

from podzero.core.errors import ClusterError
from podzero.runtime.cluster.remote import WorkerDied
from podzero.runtime.cluster.services import NodeAgent, Publication
from podzero.runtime.monitoring.reports import MetricsReport

MOVES = {"count/moves": 4.0}
A_REPORT = MetricsReport(0.0, "actor-0", MOVES)


def hear(supervisor, rounds=3):
    return [report for _ in range(rounds) for report in supervisor.listen()]


@pytest.fixture
def many(start):
    """A supervisor of 24 actors on three nodes beside the driver's, which have been drained."""
    supervisor, cluster = start(
        cpu_node("home", 0), *(cpu_node(name) for name in "abc"), actors={"count": 24, "cpus": 1.0}
    )
    hear(supervisor)
    return supervisor, cluster


def test_the_driver_makes_a_call_for_each_node_and_not_for_each_process(many):
    supervisor, cluster = many
    assert sorted(cluster.agents) == ["a", "b", "c"]
    asked = {node: len(agent.calls) for node, agent in cluster.agents.items()}
    actors = [process for process in cluster.processes if process.name.startswith("actor")]
    drained = [len(actor.calls) for actor in actors]
    hear(supervisor, rounds=10)
    assert {node: len(agent.calls) - asked[node] for node, agent in cluster.agents.items()} == dict.fromkeys("abc", 10)
    assert {len(actor.calls) - before for actor, before in zip(actors, drained, strict=True)} == {10}, "by the agents"


def test_actors_ask_the_agent_of_their_node_for_directory_and_parameters(many):
    _, cluster = many
    for index in range(24):
        context = cluster.started[f"actor-{index}"].context
        agent = cluster.agents[cluster.named(f"actor-{index}").node]
        assert context.store == context.directory == agent.actor
    assert cluster.started["replay-0"].context.directory == "the Directory on home"


def test_a_run_on_one_machine_has_no_agents(start):
    supervisor, cluster = start(cpu_node("home"), joined=False)
    cluster.named("actor-0").answers["drain"] = ["a report"]
    assert hear(supervisor) == ["a report"] * 2
    assert cluster.agents == {}


def test_an_agent_that_was_restarted_is_told_its_processes_again(many, clock):
    supervisor, cluster = many
    for process in cluster.processes:
        if process.name.startswith("actor"):
            process.answers["drain"] = lambda name=process.name: [MetricsReport(0.0, name, MOVES)]
    everybody = {f"actor-{index}" for index in range(24)}
    assert {report.worker for report in hear(supervisor)} == everybody
    cluster.agents["b"].kill(restart=True)
    for _ in range(15):
        clock[0] += 1.0
        hear(supervisor, rounds=1)
    assert {report.worker for report in hear(supervisor, rounds=1)} == everybody
    assert supervisor.reconcile(lambda: None) == []


def test_an_agent_that_does_not_answer_is_restarted_and_its_processes_do_not_count_as_silent(many, clock, caplog):
    supervisor, cluster = many
    agent = cluster.agents["a"]
    agent.answers["drain"] = PENDING
    caplog.set_level(logging.WARNING, logger="podzero")
    for _ in range(70):
        clock[0] += 1.0
        hear(supervisor, rounds=1)
    assert agent.restarts == 1
    assert "the agent of a" in caplog.text
    assert supervisor.silent == {}


def test_a_silent_process_is_named_though_its_agent_answers(many, clock):
    supervisor, cluster = many
    cluster.named("actor-5").answers["drain"] = PENDING
    for _ in range(60):
        clock[0] += 1.0
        hear(supervisor, rounds=1)
    assert set(supervisor.silent) == {"actor-5"}


def test_a_process_that_ended_is_replaced_and_drained_in_its_place(many):
    supervisor, cluster = many
    dead = cluster.named("actor-3")
    dead.die(WorkerDied("actor-3 is gone"))
    assert supervisor.reconcile(lambda: None) == ["actor-3"]
    successor = cluster.named("actor-3")
    assert successor is not dead
    successor.answers["drain"] = [A_REPORT._replace(worker="actor-3")]
    assert A_REPORT._replace(worker="actor-3") in hear(supervisor, rounds=5)


def test_reports_that_an_agent_loses_end_nothing(many):
    supervisor, cluster = many
    agent = cluster.agents[cluster.named("actor-0").node]
    drain, agent.answers["drain"] = agent.answers["drain"], ClusterError("the answer is lost")
    hear(supervisor)
    agent.answers["drain"] = drain
    cluster.named("actor-0").answers["drain"] = [A_REPORT]
    assert A_REPORT in hear(supervisor, rounds=4)
    assert supervisor.reconcile(lambda: None) == []


def test_what_an_agent_has_read_before_the_end_is_among_the_last_reports(many):
    supervisor, cluster = many
    for process in cluster.processes:
        if process.name.startswith("actor"):
            process.last("run").end(None)
    cluster.named("actor-0").answers["drain"] = [A_REPORT]
    hear(supervisor, rounds=1)  # the agent reads it, and is not heard again
    cluster.named("actor-0").answers["drain"] = []
    assert A_REPORT in supervisor.stop_actors()


def test_an_agent_without_processes_ends_so_that_its_node_is_free(many):
    supervisor, cluster = many
    agents = dict(cluster.agents)
    supervisor.stop_actors()
    hear(supervisor, rounds=1)
    assert all(agent.killed for agent in agents.values())


def test_a_lost_learner_is_forgotten_by_all_agents(many):
    supervisor, cluster = many
    supervisor.drop_learner()
    assert all(agent.last("forget") for agent in cluster.agents.values())


# The agent itself, without Ray: what its handles return can be awaited.


class Handle:
    """A Ray actor whose method `name` returns what `answers` gives, or raises it; pending while there is nothing."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def __getattr__(self, name):
        return Method(self, name)


class Method:
    def __init__(self, handle, name):
        self._handle, self._name = handle, name

    async def remote(self, *args):
        self._handle.asked.append((self._name, *args))
        while not (answers := self._handle.answers[self._name]):
            await asyncio.sleep(0)
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer


def agent_of(directory, store):
    agent = NodeAgent(pickle.dumps((None, None)))
    agent._directory, agent._store = directory, store
    return agent


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def test_an_agent_asks_directory_and_store_once_for_all_processes_of_its_node():
    async def ask():
        # Ray's references can be awaited several times, unlike coroutines.
        directory, store = Handle(addresses=[]), Handle(other_than=[])
        directory_answer = asyncio.get_running_loop().create_future()
        directory_answer.set_result({"replay-0": "a:1"})
        directory.addresses = type(
            "Method", (), {"remote": lambda self: directory.asked.append("addresses") or directory_answer}
        )()
        agent = agent_of(directory, store)
        assert await asyncio.gather(*(agent.addresses() for _ in range(32))) == [{"replay-0": "a:1"}] * 32
        readers = [asyncio.ensure_future(agent.other_than("", 0, 60.0)) for _ in range(32)]
        await settle()
        assert store.asked == [("other_than", "", 0, 60.0)]
        store.answers["other_than"].append(Publication("learner", 1, 8))
        assert {found.version for found in await asyncio.gather(*readers)} == {8}
        await settle()
        assert store.asked[1:] == [("other_than", "learner", 1, 60.0)]
        await agent.forget()
        assert await agent.other_than("", 0, 0.01) is None, "a new reader does not get what is lost"
        assert len(store.asked) == 2
        assert directory.asked == ["addresses"]

    asyncio.run(ask())


def test_an_agent_says_what_each_process_reported_and_forgets_the_dead():
    from ray.exceptions import RayActorError

    def named(**processes):
        return {name: (process, MetricsReport(0.0, name, {})) for name, process in processes.items()}

    def told(reports):
        return [(report.worker, report.metrics) for report in reports]

    async def drain():
        moves = MetricsReport(0.0, "lively", MOVES)
        busy, dead, lively = Handle(drain=[]), Handle(drain=[RayActorError()]), Handle(drain=[[moves], []])
        agent = agent_of(Handle(), Handle())
        await agent.add(named(busy=busy, dead=dead, lively=lively))
        await settle()
        assert told(await agent.drain()) == [("lively", {}), ("lively", MOVES)]
        await agent.add(named(busy=busy, lively=lively))
        await settle()
        assert told(await agent.drain()) == [("lively", {})]
        assert len(busy.asked) == 1, "it is drained already"
        await agent.add(named(busy=Handle(drain=[[]])))
        await settle()
        assert told(await agent.drain()) == [("busy", {})]

    asyncio.run(drain())
