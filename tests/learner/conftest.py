import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import parse
from podzero.config.samples import position_like
from podzero.core.types import EnvSpec, Network, PackedBatch, Sample
from podzero.envs import SamplePacking
from podzero.learner import Learner

SPEC = EnvSpec("tic_tac_toe", (3, 3, 2), "bool", 9)
PACKING = SamplePacking(position_like(SPEC), SPEC)


def init(key):
    first, second = jax.random.split(key)
    return {
        "hidden": {"kernel": 0.3 * jax.random.normal(first, (18, 32)), "bias": jnp.zeros(32)},
        "heads": {"kernel": 0.3 * jax.random.normal(second, (32, 10)), "bias": jnp.zeros(10)},
    }


def apply(params, observation):
    x = observation.reshape(observation.shape[0], -1).astype(jnp.float32)
    x = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    x = x @ params["heads"]["kernel"] + params["heads"]["bias"]
    return x[:, :9], jnp.tanh(x[:, 9])


class Reader:
    """An endless in-memory reader that cycles through the given dispatches."""

    def __init__(self, dispatches):
        self._dispatches = itertools.cycle(dispatches)
        self.closed = False

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._dispatches)

    def close(self):
        self.closed = True


class Sink:
    def __init__(self):
        self.published = []

    def publish(self, version, params):
        self.published.append((version, params))

    @property
    def versions(self):
        return [version for version, _ in self.published]


@pytest.fixture
def spec():
    return SPEC


@pytest.fixture
def network():
    """A network of two dense layers."""
    return Network(init, apply)


@pytest.fixture
def packing():
    """How the samples of `make_dispatch` are packed."""
    return PACKING


@pytest.fixture
def make_dispatch():
    """Makes host batches `[K, B, ...]` of random positions with random policies and values; keyword arguments replace
    parts of fields, given as pairs of an index and a value.
    """

    def make(steps, batch, seed=0, **changes):
        rng = np.random.default_rng(seed)
        samples = Sample(
            observation=rng.random((steps, batch, 3, 3, 2)) > 0.5,
            legal=np.ones((steps, batch, 9), bool),
            policy_target=rng.dirichlet(np.full(9, 0.3), (steps, batch)).astype(np.float32),
            value_target=rng.uniform(-1, 1, (steps, batch)).astype(np.float32),
            version=np.zeros((steps, batch), np.int32),
        )
        for field, (index, value) in changes.items():
            getattr(samples, field)[index] = value
        return PackedBatch(PACKING.pack(samples))

    return make


@pytest.fixture
def make_experiment():
    """An experiment with the given learner section; stops after `steps`."""

    def make(steps=None, **learner):
        learner = {"batch_size": 16, "steps_per_dispatch": 2, "publish_every": 4} | learner
        tree = {"name": "t", "env": {"name": "tic_tac_toe"}, "learner": learner, "stop": {"steps": steps}}
        return parse(tree, "test")

    return make


@pytest.fixture
def make_reader():
    return Reader


@pytest.fixture
def make_sink():
    return Sink


@pytest.fixture
def start(network, spec, make_dispatch, make_reader, make_sink):
    """Builds a learner over memory; returns it with its reader, sink and the reports it makes."""
    learners = []

    def make(experiment, reader=None, **more):
        config = experiment.learner
        reader = reader or make_reader([make_dispatch(config.dispatch_steps(), config.batch_size)])
        sink, reports = make_sink(), []
        learner = Learner(
            experiment, network, spec, [], reader=reader, sink=sink, report=lambda *item: reports.append(item), **more
        )
        learners.append(learner)
        return learner, reader, sink, reports

    yield make
    for learner in learners:
        learner.close()
