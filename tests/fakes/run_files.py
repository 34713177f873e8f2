"""Lines of metrics as runs write them."""

import json

BEGAN = 1_700_000_000.0
"""When these runs began, in seconds since the epoch."""


def line(worker, seconds, step, **metrics):
    """A line of metrics.jsonl; `__` in a name stands for a slash."""
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return json.dumps({"t": BEGAN + seconds, "step": step, "worker": worker, "metrics": named}).encode()


def lines_of(seconds, actors=2):
    """What a run of a board game writes in `seconds`, a report of each worker every 10 s."""
    found = []
    for t in range(0, seconds, 10):
        step = t // 10
        for k in range(actors):
            found.append(
                line(
                    f"actor-{k}", t + 10 * k / actors, step, count__moves=100.0, count__games=5.0, count__samples=90.0,
                    count__evaluations=3200.0, selfplay__plies_per_game=20.0 + k, time__search=0.75, time__write=0.125,
                )
            )  # fmt: skip
        found.append(
            line(
                "learner", t + 1, step, learner__step=float(step), learner__loss=2.0, learner__policy_loss=1.5,
                learner__policy_kl=0.5, learner__policy_age=30.0, time__step=0.9, time__wait_replay=0.1,
            )
        )  # fmt: skip
        found.append(line("replay-0", t + 2, step, replay__samples_per_insert=4.0, replay__size=1000.0))
    return found


def evaluation(seconds, step, **metrics):
    """A line of the evaluator, of metrics without their prefix."""
    named = {f"evaluation__{name}": value for name, value in metrics.items()}
    return line("evaluator", seconds, step, evaluation__step=float(step), **named)
