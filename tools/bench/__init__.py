"""Measures each stage of podzero and, in turn with it, the limit that the stage could reach.

`bench_STAGE(experiment, seconds)` measures a stage for about `seconds` after start-up and compilation, but at least one
round; the experiment sets all sizes. It returns the figures by name: `ratio` is the share of the limit, `ratio_of` says
of which limit. The stages of `OF_RUNS` take more than an experiment and seconds.
"""

STAGES = {
    "selfplay": "selfplay", "acting": "selfplay", "int8": "selfplay", "tree": "selfplay", "learner": "learner",
    "mesh": "learner", "publish": "publish", "replay": "replay", "actors": "actors", "server": "server",
    "loop": "loop",
}  # fmt: skip
"""The module of each stage."""
OF_RUNS = ("soak", "chaos")
"""Stages that watch a real run, `podzero train` as a child process."""
