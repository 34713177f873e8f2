import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.learner.checkpoints import as_text, fingerprint


def of(array):
    return as_text(jax.jit(fingerprint)(jnp.asarray(array)))


@settings(deadline=None)
@given(word=st.integers(0, 11), bit=st.integers(0, 31))
def test_every_bit_changes_the_fingerprint(word, bit):
    original = np.arange(12, dtype=np.float32).reshape(3, 4)
    flipped = original.copy()
    flipped.view(np.uint32).reshape(-1)[word] ^= np.uint32(1 << bit)
    assert of(flipped) != of(original)


def test_the_fingerprint_depends_on_the_order_and_not_on_the_shape():
    assert of([1.0, 2.0]) != of([2.0, 1.0])
    assert of(np.arange(6.0).reshape(2, 3)) == of(np.arange(6.0))  # the manifest contains the shape


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint32", "uint8", "bool"])
def test_all_dtypes_of_a_state_have_fingerprints(dtype):
    zeros, one = jnp.zeros((4,), dtype), jnp.zeros((4,), dtype).at[2].set(1)
    assert of(zeros) != of(one)
    assert len(of(zeros)) == 16


def test_a_scalar_has_one():
    assert of(np.int32(3)) != of(np.int32(4))


def test_zeros_of_two_sizes_differ():
    assert of(np.zeros(4)) != of(np.zeros(5))
