"""The supervisor over a cluster in memory: which workers it starts, how it listens, and how it ends them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from fake_cluster import PENDING, cpu_node

from podzero.core.errors import ClusterError
from podzero.core.waiting import in_thread
from podzero.files.storage import shard_folder
from podzero.runtime import supervisor as module
from podzero.runtime.checkpoints import Checkpoint, SavedShard
from podzero.runtime.cluster.placement import HeldByOthers, MissingNodes
from podzero.runtime.cluster.preflight import RUN_VARIABLE, PreflightCheck
from podzero.runtime.cluster.remote import NodeLost
from podzero.runtime.kinds import LearnerProcess, ReplayProcess

REANALYSE = {"share": 0.5, "count": 2}
FOLDER = Path("saves/40")
SAVED = Checkpoint(40, FOLDER, {}, {"rounds": 7}, [SavedShard(shard_folder(FOLDER, 0), 100)], 40)


@pytest.fixture
def pod(make_supervisor, tpu_host):
    """A supervisor over four hosts of a slice."""
    hosts = [tpu_host(worker) for worker in range(4)]
    return make_supervisor(cpu_node("home", 4), *hosts, cluster={"slice": "v5e-16"}, replay={"shards": 4})


def test_a_start_starts_replay_learner_and_actors(make_supervisor):
    supervisor, cluster = make_supervisor(cpu_node("home", 4), replay={"shards": 2, "min_size": 8192})
    supervisor.start(None)
    assert sorted(cluster.alive()) == ["actor-0", "actor-1", "learner", "replay-0", "replay-1"]
    assert supervisor.learner.working
    assert cluster.named("actor-0").last("run").args == ()
    assert cluster.started["replay-1"].context.store is cluster.started["learner"].context.store is not None


def test_the_time_that_a_start_waits_for_nodes_is_counted(make_supervisor, tpu_host, no_wait, clock):
    def join():
        clock[0] += 30.0
        cluster.listed += [tpu_host(worker) for worker in range(4)]

    settings = {"cluster": {"slice": "v5e-16"}, "replay": {"shards": 4}}
    supervisor, cluster = make_supervisor(cpu_node("home", 4), stopping=no_wait(join), **settings)
    supervisor.start(None)
    assert supervisor.paid.seconds(clock[0])["wait_nodes"] == 30.0


def test_reanalysers_are_started_where_a_share_is_reanalysed(make_supervisor):
    supervisor, cluster = make_supervisor(cpu_node("home", 8), reanalyse=REANALYSE)
    supervisor.start(None)
    assert cluster.alive("reanalyser") == ["reanalyser-0", "reanalyser-1"]
    process = cluster.started["reanalyser-1"]
    assert (process.index, process.context.store) == (1, cluster.agents["home"].actor)
    without, cluster = make_supervisor(cpu_node("home", 8), reanalyse={"count": 2})
    without.start(None)
    assert cluster.alive("reanalyser") == []


def test_processes_that_compute_can_be_traced(make_supervisor):
    supervisor, _ = make_supervisor(cpu_node("home", 8), reanalyse=REANALYSE)
    assert supervisor.traceable() == []
    supervisor.start(None)
    names = {process.name for process in supervisor.traceable()}
    assert names == {"learner", "actor-0", "actor-1", "reanalyser-0", "reanalyser-1"}


def test_only_the_learner_may_use_accelerators_and_all_processes_carry_the_run_id(make_supervisor):
    supervisor, cluster = make_supervisor(cpu_node("home", 8), actors={"cpus": 2.0}, reanalyse=REANALYSE)
    supervisor.start(None)
    environments = {name: options["environment"] for name, options in cluster.options.items()}
    assert {name for name, found in environments.items() if found.get("JAX_PLATFORMS") != "cpu"} == {"learner"}
    assert len({found[RUN_VARIABLE] for found in environments.values()}) == 1
    assert environments["actor-0"]["NPROC"] == environments["reanalyser-1"]["NPROC"] == "2"


def test_learner_replay_and_evaluator_continue_from_a_checkpoint(make_supervisor):
    supervisor, cluster = make_supervisor(cpu_node("home", 4))
    supervisor.start(SAVED)
    assert cluster.started["learner"].context.restore_from == SAVED.folder
    assert cluster.started["replay-0"].contents == SAVED.shard(0)
    assert supervisor.ladder == {"rounds": 7}


def test_actors_and_reanalysers_of_a_resumed_run_play_with_other_seeds_than_from_the_start(make_supervisor):
    def attempts(checkpoint):
        supervisor, cluster = make_supervisor(cpu_node("home", 8), reanalyse=REANALYSE)
        supervisor.start(checkpoint)
        return [cluster.started[name].attempt for name in ("actor-0", "actor-1", "reanalyser-0")]

    assert attempts(None) == [0, 0, 0]
    assert attempts(SAVED) == [40, 40, 40]


def test_the_hosts_of_a_slice_are_reserved_together_and_know_host_0(pod):
    supervisor, cluster = pod
    supervisor.start(None)
    (group,) = cluster.placement_groups
    assert [node.id for node in group.nodes] == ["tpu-0", "tpu-1", "tpu-2", "tpu-3"]
    assert group.resources == {"TPU": 4.0}
    for rank, name in enumerate(["learner", "learner-1", "learner-2", "learner-3"]):
        process = cluster.started[name]
        assert (process.index, cluster.options[name]["bundle"].strategy) == (rank, f"bundle tpu-{rank}")
        assert process.context.coordinator == "10.0.1.0:4321"


def test_a_run_of_fewer_slices_than_wanted_grows_when_it_starts_again(make_supervisor, tpu_host):
    """All processes are told how many hosts share the batch, which stays the same."""
    hosts = {name: [tpu_host(worker, name) for worker in range(4)] for name in "ab"}
    slices = {"slice": "v5e-16", "slices": 2, "min_slices": 1, "join_minutes": 1e-6}
    supervisor, cluster = make_supervisor(cpu_node("home", 4), *hosts["b"], cluster=slices, replay={"shards": 8})
    supervisor.start(None)
    experiments = {name: process.context.experiment for name, process in cluster.started.items()}
    assert {experiment.cluster.learner_hosts for experiment in experiments.values()} == {4}
    assert len(cluster.alive("learner")) == 4
    supervisor.kill()
    cluster.listed += hosts["a"]
    supervisor.start(None)
    assert len(cluster.alive("learner")) == 8
    again = cluster.started["learner-7"].context.experiment
    assert again.cluster.learner_hosts == 8
    assert again.learner == experiments["learner"].learner


def test_a_learner_that_lost_a_slice_trains_on_the_hosts_that_are_left(make_supervisor, tpu_host):
    hosts = {name: [tpu_host(worker, name) for worker in range(4)] for name in "ab"}
    slices = {"slice": "v5e-16", "slices": 2, "min_slices": 1}
    home = cpu_node("home", 4)
    supervisor, cluster = make_supervisor(home, *hosts["a"], *hosts["b"], cluster=slices, replay={"shards": 8})
    supervisor.start(None)
    assert len(cluster.alive("learner")) == 8
    cluster.listed = [home, *hosts["b"]]
    supervisor.drop_learner()
    supervisor.restart_learner(None, waited_s=1000.0)
    assert supervisor.learner_built()
    supervisor.train()
    assert supervisor.learner.working
    assert cluster.alive("learner") == ["learner", "learner-1", "learner-2", "learner-3"]
    assert cluster.started["learner"].context.experiment.cluster.learner_hosts == 4


def test_the_coordinators_port_is_reserved_until_all_hosts_are_built(pod):
    supervisor, cluster = pod
    supervisor.start(None)
    (reserved,) = [index for index, line in enumerate(cluster.history) if line.endswith(" reserve_port")]
    holder = cluster.history[reserved].removesuffix(" reserve_port")
    released = cluster.history.index(f"{holder} killed", reserved)
    assert "tpu-0" in holder or "10.0.1.0" in holder
    assert max(index for index, line in enumerate(cluster.history) if line.endswith(" ready")) < released


def test_a_start_fails_and_leaves_no_process_if_chips_are_in_use(pod):
    supervisor, cluster = pod
    cluster.answers[PreflightCheck]["end_stale_processes"] = ClusterError("the TPU chips are held by process 7")
    with pytest.raises(ClusterError, match="held by process 7"):
        supervisor.start(None)
    assert cluster.alive() == []
    assert cluster.placement_groups == []


@pytest.mark.parametrize("process", [LearnerProcess, ReplayProcess])
def test_a_start_fails_with_the_error_of_what_cannot_be_built_and_frees_all(pod, process):
    supervisor, cluster = pod
    cluster.answers[process]["ready"] = ValueError("the mesh does not fit")
    with pytest.raises(ValueError, match="the mesh does not fit"):
        supervisor.start(None)
    assert cluster.alive() == []
    assert cluster.placement_groups[0].released


@pytest.mark.parametrize("already", [False, True])
def test_after_the_actors_the_evaluator_judges_the_last_snapshot_whether_or_not_it_has_begun(make_supervisor, already):
    supervisor, cluster = make_supervisor(cpu_node("home", 4), evaluation={"cpus": 4.0})
    supervisor.start(None)
    if already:
        cluster.listed.append(cpu_node("other", 4))
        supervisor.start_evaluator()
        supervisor.reconcile(lambda: None)
    supervisor.stop_actors()
    evaluator = supervisor.judge_last(40)
    assert evaluator.actor is cluster.named("evaluator")
    assert evaluator.actor.last("stop").args == (40,)
    assert sorted(cluster.alive()) == ["evaluator", "learner", "replay-0"]


def test_kill_ends_all_processes_host_0_last_and_gives_resources_back(pod):
    supervisor, cluster = pod
    supervisor.start(None)
    supervisor.start_evaluator()
    supervisor.reconcile(lambda: None)
    assert cluster.alive("evaluator")
    supervisor.kill()
    assert cluster.alive() == []
    assert cluster.placement_groups[0].released
    assert cluster.requests[-1] == ([], ["home", "tpu-0", "tpu-1", "tpu-2", "tpu-3"])
    assert not supervisor.learner.working
    killed = [line.removesuffix(" killed") for line in cluster.history if line.endswith("killed")]
    assert killed.index("learner") > killed.index("learner-1")
    supervisor.kill()  # does nothing the second time


def test_a_killed_supervisor_starts_again_on_other_nodes_as_another_run(pod):
    supervisor, cluster = pod
    supervisor.start(None)
    before = cluster.options["learner"]["environment"][RUN_VARIABLE]
    supervisor.kill()
    cluster.listed[2] = cluster.listed[2]._replace(id="tpu-1-new")
    supervisor.start(SAVED)
    assert supervisor.learner.working
    learners = [process.node for process in cluster.processes if "learner" in process.name and not process.killed]
    assert learners == ["tpu-0", "tpu-1-new", "tpu-2", "tpu-3"]
    assert not cluster.placement_groups[1].released
    assert len(cluster.alive("replay")) == 4
    assert cluster.options["learner"]["environment"][RUN_VARIABLE] != before


def test_a_learner_restarts_alone_on_hosts_that_have_joined_and_are_reserved_anew(pod):
    supervisor, cluster = pod
    supervisor.start(None)
    before = [process for process in cluster.processes if "learner" not in process.name]
    supervisor.drop_learner()
    assert cluster.placement_groups[0].released
    assert not supervisor.learner.working
    cluster.listed[2] = cluster.listed[2]._replace(id="tpu-1-new")
    cluster.answers[LearnerProcess]["ready"] = PENDING
    cluster.history.clear()
    supervisor.restart_learner(SAVED)
    assert not supervisor.learner_built()
    assert [node.id for node in cluster.placement_groups[1].nodes] == ["tpu-0", "tpu-1-new", "tpu-2", "tpu-3"]
    assert cluster.started["learner"].context.restore_from == SAVED.folder
    for process in cluster.processes[-4:]:
        process.last("ready").end(None)
    assert "preflight check on node tpu-0 at 10.0.1.0 killed" not in cluster.history, "it holds the port"
    assert supervisor.learner_built()
    supervisor.train()
    assert "preflight check on node tpu-0 at 10.0.1.0 killed" in cluster.history
    assert supervisor.learner.working
    assert not any(process.killed for process in before)


def test_a_host_that_fails_while_a_learner_restarts_is_raised(pod):
    supervisor, cluster = pod
    supervisor.start(None)
    supervisor.drop_learner()
    cluster.answers[LearnerProcess]["ready"] = PENDING
    supervisor.restart_learner(None)
    assert not supervisor.learner_built()
    cluster.named("learner-2").last("ready").end(NodeLost("learner-2 is gone"))
    with pytest.raises(NodeLost, match="learner-2"):
        supervisor.learner_built()


@pytest.fixture
def hanging(pod, monkeypatch):
    """A pod whose learner starts again, while its hosts are prepared until the event is set."""
    supervisor, cluster = pod
    supervisor.start(None)
    supervisor.drop_learner()
    monkeypatch.setattr(module, "in_thread", in_thread)
    gate = threading.Event()
    cluster.answers[PreflightCheck]["end_stale_processes"] = lambda: gate.wait(60) and []
    supervisor.restart_learner(SAVED)
    return supervisor, cluster, gate


def test_hosts_that_hang_while_they_are_prepared_hold_up_nobody(hanging):
    supervisor, cluster, gate = hanging
    assert [supervisor.learner_built() for _ in range(3)] == [False] * 3
    assert cluster.alive("learner") == []
    gate.set()
    supervisor._preparation.result(60)
    assert supervisor.learner_built()
    supervisor.train()
    assert supervisor.learner.working


def test_a_preparation_that_is_given_up_holds_nothing_and_takes_nothing_from_the_next_learner(hanging):
    supervisor, cluster, gate = hanging
    given_up = supervisor._preparation
    supervisor.kill()
    released = threading.Event()
    given_up.add_done_callback(lambda _: released.set())
    cluster.answers[PreflightCheck]["end_stale_processes"] = list
    supervisor.start(None)
    gate.set()
    assert released.wait(60)
    first, of_next, of_given_up = cluster.placement_groups
    assert first.released
    assert of_given_up.released
    assert not of_next.released
    supervisor.drop_learner()
    assert of_next.released


def test_a_learner_whose_slice_is_not_complete_waits_for_it(pod):
    supervisor, cluster = pod
    supervisor.start(None)
    supervisor.drop_learner()
    lost = cluster.listed.pop()
    with pytest.raises(MissingNodes, match="have not joined"):
        supervisor.restart_learner(SAVED)
    cluster.listed.append(lost)
    supervisor.restart_learner(SAVED)


def test_a_learner_that_lost_a_slice_restarts_with_fewer_once_it_has_waited_and_with_all_when_they_are_back(
    make_supervisor, tpu_host
):
    hosts = {name: [tpu_host(worker, name) for worker in range(4)] for name in "ab"}
    slices = {"slice": "v5e-16", "slices": 2, "min_slices": 1, "join_minutes": 1.0}
    supervisor, cluster = make_supervisor(
        cpu_node("home", 4), *hosts["a"], *hosts["b"], cluster=slices, replay={"shards": 8}
    )
    supervisor.start(None)
    supervisor.drop_learner()
    lost = cluster.listed.pop()
    with pytest.raises(MissingNodes):
        supervisor.restart_learner(SAVED, waited_s=30.0)
    supervisor.restart_learner(SAVED, waited_s=90.0)
    assert supervisor.learner_built()
    assert cluster.started["learner"].context.experiment.cluster.learner_hosts == 4
    supervisor.drop_learner()
    supervisor.restart_learner(SAVED)
    assert supervisor.learner_built()
    assert cluster.started["learner"].context.experiment.cluster.learner_hosts == 4
    supervisor.drop_learner()
    cluster.listed.append(lost)
    supervisor.restart_learner(SAVED)
    assert supervisor.learner_built()
    assert cluster.started["learner-7"].context.experiment.cluster.learner_hosts == 8


def test_a_learner_whose_cpus_others_hold_needs_a_start_of_all(make_supervisor):
    """Three actors on the larger node leave two of its CPUs; without its own node the learner needs four."""
    supervisor, cluster = make_supervisor(
        cpu_node("home", 4), cpu_node("large", 5), actors={"count": 3}, cluster={"host_resources": {"CPU": 4}}
    )
    supervisor.start(None)
    assert cluster.options["learner"]["bundle"].strategy == "bundle home"
    supervisor.drop_learner()
    cluster.listed.pop(0)
    with pytest.raises(HeldByOthers, match="4 CPU"):
        supervisor.restart_learner(SAVED)


def test_the_loss_of_a_learner_node_is_raised(make_supervisor):
    supervisor, cluster = make_supervisor(cpu_node("home", 4))
    supervisor.start(None)
    cluster.named("learner").die(NodeLost("learner is gone"))
    with pytest.raises(NodeLost):
        assert supervisor.learner.working


def test_reports_arrive_from_all_workers_and_a_silent_one_delays_no_other(make_supervisor):
    supervisor, cluster = make_supervisor(cpu_node("home", 8), reanalyse=REANALYSE, joined=False)
    supervisor.start(None)
    names = ["replay-0", "reanalyser-0", "actor-0", "learner"]
    for name in names:
        cluster.named(name).answers["drain"] = [f"report of {name}"]
    cluster.named("actor-1").answers["drain"] = PENDING
    assert list(supervisor.listen()) == []  # the calls begin, and are read the next time
    assert list(supervisor.listen()) == [f"report of {name}" for name in names]


def test_a_stalled_shard_has_at_most_one_pending_call(make_supervisor):
    supervisor, cluster = make_supervisor(cpu_node("home", 4))
    supervisor.start(None)
    shard = cluster.named("replay-0")
    shard.answers = dict.fromkeys(["drain", "metrics"], PENDING)
    shard.calls.clear()
    for _ in range(5):
        assert list(supervisor.listen()) == []
    assert len(shard.calls) == 1
    shard.calls[0].end(["report"])
    assert list(supervisor.listen()) == ["report"]


def test_reports_that_are_lost_on_the_way_do_not_end_the_worker(make_supervisor):
    supervisor, cluster = make_supervisor(cpu_node("home", 4))
    supervisor.start(None)
    cluster.named("replay-0").answers["drain"] = ClusterError("the answer is lost")
    list(supervisor.listen())
    list(supervisor.listen())
    cluster.named("replay-0").answers["drain"] = ["report"]
    assert supervisor.reconcile(lambda: None) == []
    list(supervisor.listen())
    assert list(supervisor.listen()) == ["report"]


def test_actors_and_reanalysers_stop_before_they_are_killed_and_while_the_learner_trains(make_supervisor):
    supervisor, cluster = make_supervisor(
        cpu_node("home", 8), actors={"count": 1}, reanalyse=REANALYSE | {"count": 1}, joined=False
    )
    supervisor.start(None)
    names = ["reanalyser-0", "actor-0"]
    for name in names:
        cluster.named(name).last("run").end(None)
        cluster.named(name).answers["drain"] = [f"last report of {name}"]
    cluster.history.clear()
    assert supervisor.stop_actors() == [f"last report of {name}" for name in names]
    assert cluster.history[:2] == [f"{name} stop" for name in names]
    assert cluster.history[-2:] == [f"{name} killed" for name in names]
    assert supervisor.learner.working
    assert sorted(cluster.alive()) == ["learner", "replay-0"]


def test_the_last_reports_of_learner_and_replay_are_read(make_supervisor):
    supervisor, cluster = make_supervisor(cpu_node("home", 4))
    supervisor.start(None)
    cluster.named("learner").last("run").end(None)
    for name in ("learner", "replay-0"):
        cluster.named(name).answers["drain"] = [f"last report of {name}"]
    assert supervisor.stop_learner() == ["last report of learner", "last report of replay-0"]


def test_inference_servers_start_before_the_actors_that_they_serve(make_supervisor):
    supervisor, cluster = make_supervisor(
        cpu_node("home", 8), actors={"inference": "server", "cpus": 1.0}, server={"count": 2, "groups": 4}
    )
    supervisor.start(None)
    assert cluster.alive("inference") == ["inference-0", "inference-1"]
    names = [process.name for process in cluster.processes]
    assert max(map(names.index, ("inference-0", "inference-1"))) < names.index("actor-0")
    names = ("replay-0", "inference-0", "learner")
    assert {cluster.started[name].context.directory for name in names} == {"the Directory on home"}
    environments = {name: cluster.options[name]["environment"] for name in ("inference-0", "actor-0")}
    assert environments["inference-0"]["JAX_PLATFORMS"] == "cpu"
    assert environments["actor-0"]["NPROC"] == "4"  # each group of games may hold a thread
    cluster.named("inference-0").answers["drain"] = ["last report of inference-0"]
    assert "last report of inference-0" in supervisor.stop_actors()
    assert cluster.alive("inference") == []


def test_servers_with_resources_run_on_nodes_that_have_them_on_their_devices(make_supervisor):
    supervisor, cluster = make_supervisor(
        cpu_node("home", 8), cpu_node("large", 64), cpu_node("gpus", 16, GPU=2.0),
        actors={"inference": "server"}, server={"resources": {"GPU": 1}, "cpus": 2.0, "count": 2},
    )  # fmt: skip
    supervisor.start(None)
    server = cluster.options["inference-0"]
    assert {cluster.named(f"inference-{index}").node for index in range(2)} == {"gpus"}
    assert (server["resources"], server["cpus"]) == ({"GPU": 1.0}, 2.0)
    assert "JAX_PLATFORMS" not in server["environment"]


def test_a_run_whose_nodes_lack_the_resources_of_servers_says_which(make_supervisor):
    supervisor, _ = make_supervisor(
        cpu_node("home", 8, GPU=1.0), joined=False, actors={"inference": "server"},
        server={"resources": {"GPU": 1}}, cluster={"host_resources": {"GPU": 1}},
    )  # fmt: skip
    with pytest.raises(ClusterError, match=r"0 of 1 inference servers .*1 GPU.* server\.resources"):
        supervisor.start(None)


def test_servers_beside_the_learner_have_no_processes(make_supervisor):
    supervisor, cluster = make_supervisor(
        cpu_node("home", 8), actors={"inference": "server"}, server={"beside_learner": True}
    )
    supervisor.start(None)
    assert cluster.alive("inference") == []
    assert cluster.started["learner"].context.directory == "the Directory on home"
