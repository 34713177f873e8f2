"""Networks that learn from a trained agent."""

import jax
import numpy as np
import pytest
from random_parameters import random_parameters

from podzero.config import LearnerConfig, load
from podzero.config.samples import position_like
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.files.workdir import Workdir
from podzero.learner.metrics import training_flops
from podzero.learner.objectives import make_objective
from podzero.learner.trained_agents import read_teacher, teacher_weight_at
from podzero.networks import make_network
from podzero.networks.snapshots import SnapshotError, save_snapshot

MLP = "network={name: mlp, width: 16, layers: 1}"


def trained(folder, experiment, step=7):
    """A working directory with a snapshot of an untrained network; its parameters."""
    workdir, spec = Workdir(folder), make_env(experiment.env).spec
    workdir.open(experiment)
    params = random_parameters(make_network(experiment.network, spec), 3)
    save_snapshot(workdir.snapshots, step, params, experiment)
    return params


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The name of an agent of tic-tac-toe."""
    folder = tmp_path_factory.mktemp("teacher")
    trained(folder, load("tic_tac_toe", [MLP]))
    return str(folder)


@pytest.fixture
def taught(teacher, make_experiment):
    """Makes experiments with that teacher; keyword arguments are settings of the learner."""
    return lambda **learner: make_experiment(**learner).model_copy(update={"teacher": teacher})


def test_soft_targets_are_the_teacher_s_policy_over_the_legal_actions_and_its_value(
    taught, teacher, network, spec, make_dispatch, packing
):
    samples = jax.tree.map(lambda leaf: leaf[0], packing.unpack(make_dispatch(1, 4).rows))
    samples.legal[:, 4:] = False
    objective = make_objective(taught(teacher_weight=0.5), network, spec, ())
    found = jax.jit(objective.soft_targets)(objective.teacher, np.int32(9), samples)

    own = load("tic_tac_toe", [MLP])
    logits, value = jax.device_get(
        jax.jit(make_network(own.network, spec).apply)(objective.teacher, samples.observation)
    )
    policy = np.exp(logits[:, :4]) / np.exp(logits[:, :4]).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.policy, np.pad(policy, ((0, 0), (0, 5))), rtol=1e-5)
    np.testing.assert_allclose(found.value, value, rtol=1e-6)
    assert found.weight == 0.5


def test_the_weight_falls_linearly_to_zero():
    config = LearnerConfig(teacher_weight=2.0, teacher_steps=10)
    assert [float(teacher_weight_at(np.int32(step), config)) for step in (0, 5, 10, 99)] == [2.0, 1.0, 0.0, 0.0]
    assert float(teacher_weight_at(np.int32(99), LearnerConfig(teacher_weight=2.0))) == 2.0


def test_the_learner_comes_closer_to_a_teacher_that_does_not_change(start, taught):
    def trained_with(weight):
        learner, _, _, reports = start(taught(steps=200, teacher_weight=weight, optimizer={"learning_rate": 0.01}))
        first = jax.device_get(learner.state.teacher)
        learner.run()
        jax.tree.map(np.testing.assert_array_equal, first, jax.device_get(learner.state.teacher))
        return next(metrics for _, metrics in reversed(reports) if "learner/teacher_policy_loss" in metrics)

    taught_by_it, alone = trained_with(10.0), trained_with(0.0)
    for name in ("learner/teacher_policy_loss", "learner/teacher_value_loss"):
        assert taught_by_it[name] < alone[name]


def test_a_weight_of_zero_learns_what_a_run_without_a_teacher_learns(start, taught, make_experiment):
    alone, *_ = start(make_experiment(steps=4))
    alone.run()
    silent, *_ = start(taught(steps=4, teacher_weight=0.0))
    silent.run()
    jax.tree.map(np.testing.assert_array_equal, alone.state.params, silent.state.params)


def test_a_resumed_learner_has_the_teacher_which_no_checkpoint_contains(start, taught, make_experiment, tmp_path):
    first, *_ = start(taught(steps=4))
    first.run()
    first.request_checkpoint(tmp_path / "4").result(60)
    second, *_ = start(taught(steps=8), restore_from=tmp_path / "4")
    jax.tree.map(np.testing.assert_array_equal, first.state.teacher, second.state.teacher)
    second.run()
    start(make_experiment(steps=8), restore_from=tmp_path / "4")  # which needs every array of the checkpoint


def test_a_teacher_s_network_runs_forward_only(taught, make_experiment, network, spec):
    plain, with_teacher = (
        training_flops(make_objective(experiment, network, spec, ()), position_like(spec), 16)
        for experiment in (make_experiment(), taught())
    )
    params = make_objective(taught(), network, spec, ()).teacher
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2]
    assert with_teacher - plain == 2 * sum(leaf.size for leaf in kernels)


@pytest.mark.parametrize(
    ("who", "message"),
    [
        ("zoo:connect_four", "plays connect_four"),
        ("zoo:cartpole", "muzero_mlp"),
        ("random", "no parameters"),
        ("runs/nowhere", "teacher: unknown player"),
        ("zoo:nothing", "teacher: no agent"),
    ],
)
def test_an_agent_that_cannot_teach_is_refused(make_experiment, spec, who, message):
    with pytest.raises(ConfigError, match=message):
        read_teacher(make_experiment().model_copy(update={"teacher": who}), spec)


def test_a_run_without_snapshots_cannot_teach(make_experiment, spec, tmp_path):
    Workdir(tmp_path).open(load("tic_tac_toe"))
    with pytest.raises(ConfigError, match="no snapshot"):
        read_teacher(make_experiment().model_copy(update={"teacher": str(tmp_path)}), spec)


def test_parameters_of_another_network_are_refused(make_experiment, network, spec, tmp_path):
    own = load("tic_tac_toe", [MLP])
    Workdir(tmp_path).open(own)
    save_snapshot(Workdir(tmp_path).snapshots, 7, random_parameters(network), own)
    with pytest.raises(SnapshotError, match="another network"):
        read_teacher(make_experiment().model_copy(update={"teacher": str(tmp_path)}), spec)


@pytest.mark.parametrize("pooled", [True, False])
def test_a_teacher_of_another_board_size_needs_global_pooling(tmp_path, pooled):
    own = load(
        "tic_tac_toe",
        ["env={name: go_9x9}", f"network={{name: resnet, channels: 4, blocks: 2, global_pooling: {pooled}}}"],
    )
    trained(tmp_path, own)
    student = load("tic_tac_toe", ["env={name: go_19x19}", MLP, f"teacher={tmp_path}"])
    spec = make_env(student.env).spec
    if pooled:
        assert read_teacher(student, spec) is not None
    else:
        with pytest.raises(ConfigError, match=r"go_19x19.*global_pooling"):
            read_teacher(student, spec)


def test_muzero_has_no_teacher():
    with pytest.raises(ConfigError, match=r"teacher.*muzero_mlp.*remove"):
        load("cartpole", ["teacher=zoo:cartpole"])
