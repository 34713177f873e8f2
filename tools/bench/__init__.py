"""Measures each stage of podzero and, in turn with it, the limit that the stage could reach."""

STAGES = {
    "selfplay": "play", "acting": "play", "analyze": "play", "int8": "play", "tree": "play", "simulators": "play",
    "learner": "learner", "mesh": "learner", "publish": "publish", "broadcast": "publish", "replay": "replay",
    "actors": "actors", "server": "server",
}  # fmt: skip
"""The module of each stage. Its function `bench_STAGE` measures the stage."""
