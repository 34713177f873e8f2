"""One contract: every network of the registry, in every kind of file, computes what JAX computes."""

from typing import get_args

import jax
import numpy as np
import onnx
import pytest

from podzero.config import (
    MLPConfig,
    MuZeroMLPConfig,
    MuZeroResNetConfig,
    NestedConfig,
    NetworkConfig,
    ResNetConfig,
    TransformerConfig,
)
from podzero.core.types import EnvSpec
from podzero.evaluation.episodes import uniform_actions
from podzero.networks import trainable_network
from podzero.tools.export.agent import FORMATS, check_file, references
from podzero.tools.export.functions import ExportError, functions_of

GO = EnvSpec("go_5x5", (5, 5, 3), "bool", 26)
FRAMES = EnvSpec("frames", (2, 20, 20), "uint8", 3, 1)
VECTOR = EnvSpec("vector", (4,), "float32", 2, 1)
TORQUE = EnvSpec("torque", (3,), "float32", 0, 1, ((-1.0, -2.0), (1.0, 2.0)))
SMALL_MODEL = {"support": 3, "projection": 4}
CASES = {
    "resnet": (ResNetConfig(channels=4, blocks=1, value_hidden=4), GO),
    "resnet in bfloat16": (ResNetConfig(channels=4, blocks=1, value_hidden=4, compute_dtype="bfloat16"), GO),
    "resnet with remat": (ResNetConfig(channels=4, blocks=1, value_hidden=4, remat=True), GO),
    "resnet with all heads": (
        ResNetConfig(channels=4, blocks=2, value_hidden=4, auxiliary=True, global_pooling=True), GO,
    ),
    "nested": (NestedConfig(name="nested", channels=4, blocks=3, value_hidden=4), GO),
    "transformer": (TransformerConfig(name="transformer", width=8, layers=1, heads=2, value_hidden=4), GO),
    "mlp": (MLPConfig(name="mlp", width=8, layers=1), VECTOR),
    "muzero_mlp": (MuZeroMLPConfig(name="muzero_mlp", latent=4, width=8, layers=1, **SMALL_MODEL), VECTOR),
    "muzero_mlp of a continuous action": (
        MuZeroMLPConfig(name="muzero_mlp", latent=4, width=8, layers=1, **SMALL_MODEL), TORQUE,
    ),
    "muzero_resnet": (
        MuZeroResNetConfig(
            name="muzero_resnet", channels=4, blocks=1, hidden=4, downsample=8, channels_first=True, **SMALL_MODEL
        ),
        FRAMES,
    ),
}  # fmt: skip
POSITIONS = 64


def observations(spec):
    draw = np.random.default_rng(0)
    if spec.observation_dtype == "uint8":
        return draw.integers(256, size=(POSITIONS, *spec.observation_shape)).astype(np.float32)
    cells = draw.standard_normal((POSITIONS, *spec.observation_shape)).astype(np.float32)
    return cells if spec.observation_dtype == "float32" else (cells > 0.5).astype(np.float32)


@pytest.fixture(params=CASES.values(), ids=CASES, scope="module")
def checked(request, params_of):
    """The functions of a network, each with inputs and what JAX makes of them."""
    config, spec = request.param
    functions = functions_of(config, spec, params_of(trainable_network(config, spec)))
    actions = uniform_actions(np.random.default_rng(0), spec, (POSITIONS,))
    inputs = {"observation": observations(spec), "action": actions}
    return list(zip(functions, references(functions, inputs), strict=True))


@pytest.mark.parametrize("ending", FORMATS)
def test_files_compute_what_jax_computes_for_batches_of_any_size(checked, ending, tmp_path):
    for function, (inputs, outputs) in checked:
        file = tmp_path / f"{function.name}{ending}"
        file.write_bytes(FORMATS[ending].encode(function, {}))
        differences = check_file(file, FORMATS[ending].load(file), inputs, outputs)
        assert set(differences) == set(outputs)
        assert max(differences.values()) < 2e-5


def test_every_network_of_the_registry_is_here():
    kinds = get_args(get_args(NetworkConfig)[0])
    known = {name for kind in kinds for name in get_args(kind.model_fields["name"].annotation)}
    assert {config.name for config, _ in CASES.values()} == known


def test_onnx_models_are_valid_and_describe_their_inputs_and_outputs(checked):
    for function, (inputs, outputs) in checked:
        model = onnx.load_from_string(FORMATS[".onnx"].encode(function, {"game": "go_5x5", "step": 7, "shape": [1, 2]}))
        onnx.checker.check_model(model, full_check=True)
        for described, arrays in ((model.graph.input, inputs), (model.graph.output, outputs)):
            assert [one.name for one in described] == list(arrays)
            for one, rows in zip(described, arrays.values(), strict=True):
                batch, *sizes = one.type.tensor_type.shape.dim
                assert batch.dim_param == "batch"
                assert [size.dim_value for size in sizes] == list(rows.shape[1:])
        assert {one.key: one.value for one in model.metadata_props} == {
            "game": "go_5x5",
            "step": "7",
            "shape": "[1, 2]",
        }


def test_constants_of_an_onnx_model_have_the_names_of_their_parameters(params_of):
    config, spec = CASES["resnet"]
    (function,) = functions_of(config, spec, params_of(trainable_network(config, spec)))
    names = {one.name for one in onnx.load_from_string(FORMATS[".onnx"].encode(function, {})).graph.initializer}
    assert {"params/stem/kernel", "params/block_0/conv_1/bias", "params/heads/value/kernel"} <= names


@pytest.mark.parametrize("ending", FORMATS)
def test_a_file_of_other_parameters_is_refused(ending, params_of, tmp_path):
    config, spec = CASES["mlp"]
    params = params_of(trainable_network(config, spec))
    (function,) = functions_of(config, spec, params)
    ((inputs, outputs),) = references([function], {"observation": observations(spec)})
    changed = jax.tree.map(np.copy, params)
    changed["value"]["kernel"][0] += 1e-2
    file = tmp_path / f"changed{ending}"
    file.write_bytes(FORMATS[ending].encode(function._replace(params=changed), {}))
    with pytest.raises(ExportError, match=r"value differs .*batch of 1; .*0\.0001"):
        check_file(file, FORMATS[ending].load(file), inputs, outputs)


def test_a_model_that_onnx_runtime_cannot_load_is_refused(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ExportError, match=r"ONNX Runtime [\d.]+ cannot load"):
        FORMATS[".onnx"].load(tmp_path / "bad.onnx")


def test_an_operation_without_a_counterpart_is_named(params_of):
    config, spec = CASES["mlp"]
    (function,) = functions_of(config, spec, params_of(trainable_network(config, spec)))
    unknown = function._replace(call=lambda params, x: {"value": jax.lax.erf_inv(x)})
    with pytest.raises(ExportError, match=r"'erf_inv'.*\.stablehlo"):
        FORMATS[".onnx"].encode(unknown, {})
