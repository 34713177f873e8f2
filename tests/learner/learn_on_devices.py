"""Runs a learner on all devices and saves the metrics that it reports last; run by test_metrics."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np

from podzero.config import parse
from podzero.config.samples import position_like
from podzero.core.types import EnvSpec, PackedBatch, Sample
from podzero.envs import SamplePacking, make_env
from podzero.learner import Learner
from podzero.networks import make_network

SPEC = EnvSpec("tic_tac_toe", (3, 3, 2), "bool", 9)


class Reader:
    def __iter__(self):
        return itertools.repeat(
            PackedBatch(
                SamplePacking(position_like(SPEC), SPEC).pack(
                    Sample(
                        observation=np.ones((2, 16, 3, 3, 2), bool),
                        legal=np.ones((2, 16, 9), bool),
                        policy_target=np.full((2, 16, 9), 1 / 9, np.float32),
                        value_target=np.zeros((2, 16), np.float32),
                        version=np.zeros((2, 16), np.int32),
                    )
                )
            )
        )

    def close(self):
        pass


class Sink:
    def publish(self, version, params):
        pass


def main(out: str) -> None:
    tree = {
        "name": "devices",
        "env": {"name": "tic_tac_toe"},
        "network": {"name": "resnet", "channels": 8, "blocks": 1},
        "learner": {"batch_size": 16, "steps_per_dispatch": 2, "publish_every": 4},
        "stop": {"steps": 20},
    }
    experiment = parse(tree, "test")
    env, metrics = make_env("tic_tac_toe"), {}
    learner = Learner(
        experiment,
        make_network(experiment.network, env.spec),
        env.spec,
        env.symmetries,
        reader=Reader(),
        sink=Sink(),
        report=lambda worker, reported: metrics.update(reported),
    )
    learner.run()
    learner.close()
    Path(out).write_text(json.dumps(metrics))


if __name__ == "__main__":
    main(sys.argv[1])
