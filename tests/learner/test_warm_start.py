"""Networks that start with trained parameters, and parameters that are not trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.core.errors import ConfigError
from podzero.files.players import trained_player
from podzero.files.workdir import Workdir
from podzero.learner.optimizers import make_optimizer
from podzero.learner.trained_agents import read_warm_start
from podzero.networks.snapshots import SnapshotError, save_snapshot


@pytest.fixture
def trained(network, make_experiment, tmp_path):
    """A run with a snapshot of step 7; its parameters."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + 1.0, jax.jit(network.init)(jax.random.key(5)))
    save_snapshot(Workdir(tmp_path).snapshots, 7, params, make_experiment())
    return params


def like(network, **changes):
    return jax.eval_shape(network.init, jax.random.key(0)) | changes


def test_everything_that_fits_is_taken(network, trained, tmp_path):
    taken, summary = read_warm_start(str(tmp_path), like(network))
    assert set(taken) == {"hidden.kernel", "hidden.bias", "heads.kernel", "heads.bias"}
    np.testing.assert_array_equal(taken["heads.kernel"], trained["heads"]["kernel"])
    assert f"{tmp_path}@7: 938 of 938" in summary
    assert "fresh" not in summary


def test_parameters_of_another_shape_or_name_stay_fresh(network, trained, tmp_path):
    wider = {"kernel": jnp.zeros((32, 20)), "bias": jnp.zeros(20)}
    taken, summary = read_warm_start(f"{tmp_path}@7", like(network, heads=wider, more={"scale": jnp.ones(3)}))
    assert set(taken) == {"hidden.kernel", "hidden.bias"}
    assert "heads.kernel [32, 20], there [32, 10]" in summary
    assert "more.scale [3], there missing" in summary


def test_an_agent_of_which_nothing_fits_is_refused(network, trained, tmp_path):
    with pytest.raises(ConfigError, match="none of its parameters"):
        read_warm_start(str(tmp_path), {"other": jnp.zeros(4)})


@pytest.mark.parametrize("who", ["random", "mcts:8", "nowhere", "zoo:nothing"])
def test_a_name_without_parameters_is_refused(who):
    with pytest.raises(ConfigError, match=who.rpartition(":")[2]):
        trained_player("init_from", who)


def test_a_run_without_snapshots_is_refused(network, tmp_path):
    with pytest.raises(SnapshotError):
        read_warm_start(str(tmp_path), like(network))


def test_the_learner_begins_with_the_agent_s_parameters(start, make_experiment, trained, tmp_path):
    experiment = make_experiment(steps=4).model_copy(update={"init_from": str(tmp_path)})
    learner, _, sink, _ = start(experiment)
    learner.run()
    first = sink.published[0][1]
    jax.tree.map(np.testing.assert_array_equal, first, trained)
    assert (sink.published[-1][1]["heads"]["kernel"] != first["heads"]["kernel"]).any()


def test_a_resumed_run_does_not_begin_again(start, make_experiment, trained, tmp_path):
    first, *_ = start(make_experiment(steps=4))
    first.run()
    first.request_checkpoint(tmp_path / "4").result(60)
    experiment = make_experiment(steps=4).model_copy(update={"init_from": str(tmp_path)})
    second, *_ = start(experiment, restore_from=tmp_path / "4")
    jax.tree.map(np.testing.assert_array_equal, second.state.params, first.state.params)


def test_frozen_parameters_keep_their_values(start, make_experiment):
    learner, *_ = start(make_experiment(steps=4, frozen=("hidden",)))
    first = jax.device_get(learner.state.params)
    learner.run()
    last = jax.device_get(learner.state.params)
    jax.tree.map(np.testing.assert_array_equal, first["hidden"], last["hidden"])
    assert (first["heads"]["kernel"] != last["heads"]["kernel"]).any()


def test_frozen_parameters_are_not_decayed(make_experiment):
    config = make_experiment().learner.optimizer
    params = {name: {"kernel": np.ones((2, 2), np.float32)} for name in ("hidden", "heads")}
    optimizer = make_optimizer(config, frozen=[r"hidden\."])
    updates = jax.device_get(jax.jit(lambda both: optimizer.update(both, optimizer.init(both), both)[0])(params))
    assert (updates["hidden"]["kernel"] == 0).all()
    assert (updates["heads"]["kernel"] != 0).all()


def test_a_pattern_that_matches_nothing_is_refused(start, make_experiment):
    with pytest.raises(ConfigError, match=r"heds.*heads\.kernel"):
        start(make_experiment(frozen=("heds",)))
