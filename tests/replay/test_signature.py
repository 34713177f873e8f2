import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from podzero.config.samples import position_like
from podzero.core.types import Sample
from podzero.envs import SamplePacking
from podzero.replay import SampleSignature, SignatureError


@pytest.fixture
def signature(spec) -> SampleSignature:
    return SampleSignature(spec.name, SamplePacking(position_like(spec), spec), 1)


def test_valid_samples_pass_and_are_counted(signature, make_samples):
    assert signature.check(make_samples(5)) == 5
    assert signature.check(make_samples(0)) == 0


def test_a_row_has_the_bytes_of_all_fields(signature):
    assert signature.row_bytes == 3 * 4 + 1 + 4 * 2 + 4 + 4
    assert signature.layout == (
        "line observation:float32[3] legal:bits[4] policy_target:float16[4] value_target:float32[] version:int32[]"
        " samples_per_item:1"
    )


def test_an_item_holds_consecutive_samples_and_is_never_incomplete(spec, make_samples):
    signature = SampleSignature(spec.name, SamplePacking(position_like(spec), spec), 4)
    samples = make_samples(8)
    assert signature.check(samples) == 8
    items = signature.pack(samples)
    assert items.shape == (2, signature.item_bytes) == (2, 4 * signature.row_bytes)
    np.testing.assert_array_equal(signature.packing.unpack(items[1].reshape(4, -1)).version, [4, 5, 6, 7])
    with pytest.raises(SignatureError, match=r"6; .*multiple of 4 .*replay\.samples_per_item"):
        signature.check(make_samples(6))


def edited(sample: Sample, name: str, index: Any, value: Any) -> Sample:
    field = np.array(getattr(sample, name))
    field[index] = value
    return sample._replace(**{name: field})


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("observation", (2, 1), np.nan, r"observation\[2, 1\]: found nan; expected finite"),
        ("value_target", 1, np.inf, r"value_target\[1\]: found inf; expected finite"),
        ("value_target", 0, -1.5, r"value_target\[0\]: found -1.5; expected values in \[-1, 1\]"),
        ("policy_target", 2, [0.5, 0.25, 0, 0], r"policy_target\[2\]: found 0.75; expected a sum of 1"),
        ("version", 1, -2, r"version\[1\]: found -2; expected values in \[-1, "),
        ("policy_target", 1, [0, 0.5, 0, 0.5], r"policy_target\[1, 3\]: found 0.5; expected zero on illegal"),
        ("policy_target", 2, [1.5, -0.5, 0, 0], r"policy_target\[2, 1\]: found -0.5; expected no negative"),
        ("legal", 0, [False] * 4, r"legal\[0\]: found 0; expected at least one legal"),
    ],
)
def test_a_wrong_number_is_reported_with_its_index(signature, make_samples, name, index, value, message):
    with pytest.raises(SignatureError, match=message):
        signature.check(edited(make_samples(3), name, index, value))


def test_a_wrong_dtype_is_refused(signature, make_samples):
    samples = make_samples(2)
    wrong = samples._replace(value_target=samples.value_target.astype(np.float64))
    with pytest.raises(SignatureError, match=r"value_target: .*float64.*\[2\].*float32"):
        signature.check(wrong)


def test_a_wrong_shape_is_refused(signature, make_samples):
    wrong = make_samples(2)._replace(legal=np.ones((2, 5), bool))
    with pytest.raises(SignatureError, match=r"legal: .*bool.*\[2, 5\].*\[T, 4\]"):
        signature.check(wrong)


def test_fields_of_unequal_length_are_refused(signature, make_samples):
    wrong = make_samples(3)._replace(observation=make_samples(2).observation)
    with pytest.raises(SignatureError, match=r"observation: found .* \[2, 3\].*T = 3"):
        signature.check(wrong)


def test_a_single_sample_without_an_axis_is_refused(signature, make_samples):
    with pytest.raises(SignatureError, match=r"shape \[T"):
        signature.check(jax.tree.map(lambda field: field[0], make_samples(1)))


def test_other_structures_are_refused(signature):
    Other = dataclasses.make_dataclass("Other", ["observation"])
    with pytest.raises(SignatureError, match=r"samples: .*Other.*Sample .*observation, "):
        signature.check(Other(1))


def test_rows_of_another_size_are_refused(signature):
    with pytest.raises(SignatureError, match=r"rows: found uint8 of shape \[2, 3\]; expected uint8 .*\[T, 29\]"):
        signature.valid(np.zeros((2, 3), np.uint8))


def test_an_item_from_before_rows_were_packed_is_converted(spec, make_samples):
    signature = SampleSignature(spec.name, SamplePacking(position_like(spec), spec), 2)
    samples = make_samples(2)
    older = np.empty(2, [*signature.fields.items()])
    for field in signature.fields:
        older[field] = getattr(samples, field)
    np.testing.assert_array_equal(signature.converted(older.view(np.uint8)), signature.pack(samples)[0])
    assert signature.converted(np.zeros(5, np.uint8)) is None
    assert signature.readable == (
        signature.layout,
        "line observation:float32[3] legal:bool[4] policy_target:float32[4] value_target:float32[] version:int32[]"
        " samples_per_item:2",
    )
