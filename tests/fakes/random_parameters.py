"""Parameters of networks that are not trained, without the program of `network.init`: a second to compile for each."""

import jax
import numpy as np


def random_parameters(network, seed=0):
    """Kernels are normal with variance 1 / inputs, scales and variances one, all else zero."""
    rng = np.random.default_rng(seed)

    def leaf(path, like):
        if len(like.shape) > 1:
            return (rng.standard_normal(like.shape) / np.sqrt(np.prod(like.shape[:-1]))).astype(like.dtype)
        return np.full(like.shape, path[-1].key in {"gain", "scale", "variance"}, like.dtype)

    return jax.tree_util.tree_map_with_path(leaf, jax.eval_shape(network.init, jax.random.key(0)))
