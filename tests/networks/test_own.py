"""Networks named by an import path: each kind that works, and a message for each fault."""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import MeshConfig, OwnNetworkConfig, load
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec
from podzero.learner.sharding import make_mesh, named_leaves, spec_of_leaf
from podzero.networks import check_network, make_inference, make_network
from podzero.networks.contract import observations
from podzero.networks.snapshots import check_matches, load_snapshot, save_snapshot

FILE = Path(__file__).with_name("own_nets.py")
SPEC = EnvSpec("connect_four", (6, 7, 2), "bool", 7)
KINDS = ["Linen", "Nnx", "Haiku", "transformed", "stateful", "pair"]


def own(name, **arguments):
    return OwnNetworkConfig(name=f"{FILE}:{name}", **arguments)


@cache
def made(config):
    """The network with compiled functions, which tests of the same config share."""
    network = make_network(config, SPEC)
    return network._replace(init=jax.jit(network.init), apply=jax.jit(network.apply))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_takes_its_arguments_and_fulfils_the_contract(kind):
    network = made(own(kind, width=5))
    check_network(network, SPEC, kind)
    assert {5} <= {size for leaf in jax.tree.leaves(network.init(jax.random.key(0))) for size in leaf.shape}


def test_functions_that_take_no_arguments_are_used_as_they_are():
    check_network(made(own("fixed")), SPEC, "fixed")


def test_the_means_of_what_a_flax_module_sows_are_its_metrics():
    """It doubles its input x twice: its submodule sows x and 2x, of mean 1.5x, and the module 4x in the first cell."""
    network = made(own("Sowing"))
    check_network(network, SPEC, "Sowing")
    params, rows = network.init(jax.random.key(0)), observations(SPEC)
    flat = np.asarray(rows, np.float32).reshape(len(rows), -1)
    found = network.metrics(params, rows)
    assert found.keys() == {"network/twice/seen", "network/first"}
    np.testing.assert_allclose(found["network/twice/seen"], 1.5 * flat.mean(), rtol=1e-6)
    np.testing.assert_allclose(found["network/first"], 4 * flat[:, 0].mean(), rtol=1e-6)
    assert jax.tree.leaves(params) != []
    assert made(own("Linen")).metrics(made(own("Linen")).init(jax.random.key(0)), rows) == {}
    assert made(own("Haiku")).metrics(made(own("Haiku")).init(jax.random.key(0)), rows) == {}


def test_a_module_is_found_by_its_name(monkeypatch):
    monkeypatch.syspath_prepend(str(FILE.parent))
    check_network(made(OwnNetworkConfig(name="own_nets:pair")), SPEC, "pair")


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_survive_a_snapshot(tmp_path, kind):
    network = made(own(kind))
    params = network.init(jax.random.key(0))
    save_snapshot(tmp_path, 1, params, load("connect_four", [f"network={{name: '{FILE}:{kind}'}}"]))
    read = load_snapshot(tmp_path).params
    check_matches(read, network, "the snapshot")
    fold, acting = make_inference(own(kind), SPEC)
    rows = observations(SPEC)
    for one, two in zip(jax.jit(acting.apply)(fold(read), rows), network.apply(params, rows), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


@pytest.mark.parametrize(("kind", "hidden"), [("Linen", "hidden.kernel"), ("Nnx", "layers.0.kernel")])
def test_rules_on_names_shard_its_parameters(kind, hidden):
    mesh = make_mesh(MeshConfig(), jax.devices()[:1]).abstract_mesh.update(axis_sizes=(1, 1, 2))
    config = MeshConfig(model=2, rules=[{"match": r"hidden\.kernel|layers\.0\.kernel", "dimension": -1}])
    shapes = jax.eval_shape(make_network(own(kind), SPEC).init, jax.random.key(0))
    leaves = named_leaves(shapes)
    assert spec_of_leaf(mesh, hidden, leaves[hidden].shape, config) == [None, "model"]
    assert spec_of_leaf(mesh, "value.kernel", leaves["value.kernel"].shape, config) == [None, None]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("column", r"values .* shape \[6, 1\]; expected \[6\]"),
        ("too_few", r"logits .* shape \[6, 6\]; expected \[6, 7\]"),
        ("infinite", "logits are not finite"),
        ("unbounded", r"values .*\[-1, 1\]"),
        ("entangled", "logits .* depend on the other observations"),
        ("half", "parameter first has dtype bfloat16"),
        ("nan", "parameter first is not finite"),
        ("empty", "no parameters"),
        ("listed", "nested dicts"),
    ],
)
def test_a_violation_of_the_contract_is_named(name, message):
    with pytest.raises(ConfigError, match=f"mine violates the contract.*\n.*{message}"):
        check_network(made(own(name)), SPEC, "mine")


@pytest.mark.parametrize(
    ("name", "message"), [("moody", "init is not deterministic"), ("restless", "logits .* differ")]
)
def test_functions_that_are_not_pure_are_named(name, message):
    with pytest.raises(ConfigError, match=message):
        check_network(make_network(own(name), SPEC), SPEC, "mine")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("three", "gave a tuple of 3; expected policy logits and values"),
        ("nothing", "is a NoneType; expected a Flax or Haiku module"),
        ("number", "is a int; expected a Flax or Haiku module"),
        ("wrong_dimensions", r"evaluation failed at line \d+ of own_nets.py: TypeError: dot_general"),
        ("Batchnorm", r"state .*\(batch_stats\)"),
        ("Dropout", r"state .*\(RngCount, RngKey\)"),
    ],
)
def test_code_that_cannot_be_traced_is_refused(name, message):
    with pytest.raises(ConfigError, match=f"network.name = '{FILE}:{name}'.* {message}"):
        check_network(made(own(name)), SPEC, "mine")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Linen", {"widht": 3}, r"network.widht: .*did you mean 'width'.*its arguments: width"),
        ("Nnx", {"rngs": 3}, "network.rngs: .*no argument"),
        ("fixed", {"width": 3}, "network.width: .*its arguments: none"),
        ("Linen", {"num_actions": 3}, "network.num_actions: .*remove it"),
        ("demanding", {}, "network.depth: required .*podzero itself passes num_actions, .*, num_values"),
        ("pair", {"compute_dtype": "bfloat16"}, "no argument 'dtype'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, arguments, message):
    with pytest.raises(ConfigError, match=message):
        make_network(own(name, **arguments), SPEC)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{FILE}:Line", "has no 'Line'.*did you mean 'Linen'.*it defines: Linen, Nnx"),
        ("gone.py:Net", "no such file"),
        ("no_such_module:Net", "cannot be imported: ModuleNotFoundError"),
        (f"{FILE}:", "expected module:Name"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(name, message):
    with pytest.raises(ConfigError, match=f"network.name = '{name}'.*{message}"):
        make_network(OwnNetworkConfig(name=name), SPEC)


def test_a_file_that_does_not_import_is_refused(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(ConfigError, match=r"broken.py cannot be imported: ModuleNotFoundError"):
        make_network(OwnNetworkConfig(name=f"{tmp_path}/broken.py:Net"), SPEC)


def test_another_file_than_that_of_the_experiment_is_refused(tmp_path):
    """The experiment holds the digest of the file that it was read with."""
    file = tmp_path / "net.py"
    file.write_text(FILE.read_text())
    (tmp_path / "mine.yaml").write_text("env: {name: connect_four}\nnetwork: {name: 'net.py:pair'}\n")
    first = load(str(tmp_path / "mine.yaml"))
    assert first.network.name == f"{file}:pair"
    file.write_text(f"{FILE.read_text()}\nCHANGED = True\n")
    with pytest.raises(ConfigError, match=f"not the one .*{first.network.sha256}.*restore the file"):
        make_network(first.network, SPEC)
    second = load(str(tmp_path / "mine.yaml"))
    assert second.network.sha256 != first.network.sha256
    make_network(second.network, SPEC)
    kept = load(str(tmp_path / "mine.yaml"), [f"network.sha256={first.network.sha256}"])
    assert kept.network == first.network


def test_the_dtype_to_compute_in_is_passed_to_what_takes_it():
    half = made(own("Linen", compute_dtype="bfloat16"))
    params, rows = half.init(jax.random.key(0)), np.random.default_rng(0).random((6, 6, 7, 2), np.float32)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    exact = made(own("Linen", compute_dtype="float32")).apply(params, rows)
    rounded = half.apply(params, rows)
    assert rounded[0].dtype == jnp.float32
    np.testing.assert_allclose(exact[0], rounded[0], rtol=0.1, atol=1e-2)
    assert np.any(np.asarray(exact[0] != rounded[0]))
