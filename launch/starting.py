"""Chooses the numbers of a first experiment for an environment, and says why.

They suit two CPU cores without an accelerator, and are those of the built-in experiments for environments of its kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from podzero.config import ChanceGameConfig, EnvConfig, GymnasiumConfig, JaxLibraryConfig
from podzero.config.yaml_text import to_commented_yaml
from podzero.core.types import EnvSpec

REPLAY_BYTES = 2**30
"""Memory for observations and policies in replay."""
SMALL_IMAGE = 1024
"""Numbers in an observation up to which a multilayer perceptron reads an image."""
LONG_GAME = 60
"""Plies above which a game is long: its outcome says little about its first moves."""
MANY_ACTIONS = 100
"""Actions above which a game needs more simulations, and counts as long if its length is unknown."""
_OF_CHANCE = {
    "2048": (1e-4, 0.997, "the next 333 moves count, which earn up to 10,000 points", 0.01),
    "backgammon": (0.333, 1.0, "the length of a game does not matter", 0.05),
}
"""Scale of rewards, discount and why, and the range of values below which one move is hardly preferred to another."""
_LATENT_SIDE = 8
"""Largest side of a latent image: the search computes one for each simulation."""

Choice = tuple[str, Any, str]
"""A setting's dotted name, its value, and why; empty where the value needs no reason."""


class StartingExperiment(NamedTuple):
    """An experiment to start from."""

    tree: dict[str, Any]
    """Its sections."""
    reasons: dict[str, str]
    """Why a setting has its value, by the setting's dotted name."""

    def to_yaml(self, head: str) -> str:
        """A file of the experiment, which begins with the comment `head`."""
        return to_commented_yaml(self.tree, self.reasons, head)


def starting_experiment(env: EnvConfig, spec: EnvSpec, length: int | None) -> StartingExperiment:
    """The first experiment for an environment.

    Args:
      env: the section `env`; the discount of a gymnasium environment is chosen here.
      spec: shapes of its observations and actions.
      length: the largest number of plies of a game or of steps of an episode; None if it is unknown.
    """
    tree: dict[str, Any] = {"env": env.model_dump(mode="json", exclude_defaults=True)}
    reasons: dict[str, str] = {}
    for name, value, reason in _settings(env, spec, length):
        *sections, field = name.split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[field] = value
        if reason:
            reasons[name] = reason
    return StartingExperiment(tree, reasons)


def _settings(env: EnvConfig, spec: EnvSpec, length: int | None) -> Iterator[Choice]:
    match env:
        case GymnasiumConfig():
            yield from _muzero(spec, length)
        case ChanceGameConfig():
            # Later settings replace earlier ones.
            yield from _alphazero(spec, length)
            yield from _chance(env, spec)
        case JaxLibraryConfig(reward_scale=scale) if scale != 1:
            yield from _alphazero(spec, length)
            yield "env.reward_scale", scale, "rewards of at most 1 per step then sum to at most 1"
        case _:
            yield from _alphazero(spec, length)


def _chance(env: ChanceGameConfig, spec: EnvSpec) -> Iterator[Choice]:
    """What differs in a game of chance."""
    scale, discount, why, least = _OF_CHANCE[env.name]
    yield "env.reward_scale", scale, "discounted sums of rewards then lie in [-1, 1]"
    yield "env.discount", discount, why
    yield "search.simulations", 16, "games are long: more of them teach more than deeper searches"
    yield "search.min_value_range", least, f"{round(least / scale, 2):g} points: moves differ by little"
    yield "actors.temperature_plies", None, "chance varies the games"
    yield "actors.td_lambda", 0.9, "late luck says little about early moves"
    yield "evaluation.simulations", 16, "as in self-play"
    if spec.players == 2:
        yield "evaluation.opponents", ["random", "earlier"], "a search without a network rolls out long games"
    yield from _end(20)


def _alphazero(spec: EnvSpec, length: int | None) -> Iterator[Choice]:
    """The settings for a game whose rules are known."""
    squares = math.prod(spec.observation_shape[:2]) if len(spec.observation_shape) == 3 else 0
    many = spec.num_actions > MANY_ACTIONS
    long = many if length is None else length > LONG_GAME
    tiny = 0 < squares <= 9
    yield from _board_network(spec, squares)
    simulations = 64 if many else 32
    yield "search.algorithm", "gumbel", "improves the policy even with few simulations"
    yield "search.simulations", simulations, f"{spec.num_actions} actions; twice as many take twice the time"
    yield from _considered(spec)
    yield "actors.games", 128, "one batch of the network"
    yield "actors.cpus", 1, "the other core trains"
    if long:
        yield "actors.temperature_plies", 20, "varied openings, then the best moves"
        yield "actors.td_lambda", 0.95, f"the outcome mostly reflects later mistakes; {_plies(length)}"
    else:
        yield "actors.opening_fraction", 0.5, "random openings show positions that good play avoids"
        yield "actors.opening_plies", max(2, min((length or 16) // 4, 12)), _plies(length)
        yield "actors.root_value_weight", 0.25, "the search's value smooths the outcome's noise"
    least = 3000 if tiny else 4096
    yield from _replay(spec, 60_000 if tiny else 200_000 if long else 100_000, least, policies=1)
    yield "learner.batch_size", 256 if tiny else 512, ""
    yield "learner.steps_per_dispatch", 4, ""
    yield "learner.publish_every", 16, "steps between two versions of the actors' parameters"
    yield from _optimizer(0.002)
    yield "evaluation.every_minutes", 10 if long else 4, ""
    opponents = ["random", "mcts:100", "earlier"] if spec.players == 2 else []
    yield (
        "evaluation.opponents",
        opponents,
        "mcts:100 is a tree search without a network" if opponents else "one player",
    )
    yield "evaluation.simulations", simulations, "as in self-play"
    yield from _end(60 if long else 20)


def _muzero(spec: EnvSpec, length: int | None) -> Iterator[Choice]:
    """The settings for an environment of which a model is learned."""
    image = len(spec.observation_shape) == 3 and math.prod(spec.observation_shape) > SMALL_IMAGE
    discount, horizon = _discount(length)
    yield "env.discount", discount, f"looks about {horizon} steps ahead; episodes have {_steps(length)}"
    yield from _image_network(spec) if image else _vector_network(spec)
    simulations = 16 if image else 24
    yield "search.algorithm", "gumbel", "improves the policy even with few simulations"
    yield "search.simulations", simulations, "each is a step of the model: twice as many take twice the time"
    if spec.action_bounds is None:
        yield from _considered(spec)
    else:
        dimensions = len(spec.action_bounds[0])
        candidates = 12 if dimensions <= 2 else 16
        yield "search.candidates", candidates, f"actions of {dimensions} dimension(s), sampled at each node"
        yield "search.max_considered_actions", candidates, "all sampled actions"
    yield "actors.games", 16 if image else 32, "environments that step together: one batch of the network"
    yield "actors.cpus", 1, "the other core trains"
    yield from _replay(spec, 200_000, 2000, policies=6)
    yield "replay.samples_per_item", 1, "priorities are of single samples"
    yield "replay.sampler", "prioritized", "steps with large value errors more often"
    yield "learner.batch_size", 64 if image else 256, "images need much memory and time" if image else ""
    yield "learner.steps_per_dispatch", 2 if image else 8, ""
    yield "learner.publish_every", 16, "steps between two versions of the actors' parameters"
    yield "learner.value_weight", 0.25, "as in MuZero Reanalyze"
    yield "learner.ema", 0.95, ""
    yield from _optimizer(0.0003 if image else 0.002)
    yield "muzero.unroll_steps", 5, "as in MuZero"
    td_steps = 5 if image else max(5, min(40, (length or 100) // 5))
    yield "muzero.td_steps", td_steps, "rewards before the value target trusts the search's value"
    if spec.action_bounds is not None:
        yield "muzero.entropy_weight", 0.005, "keeps a continuous policy from collapsing"
    yield "evaluation.every_minutes", 10 if image else 5, ""
    yield "evaluation.games", 4 if image else 20, "episodes"
    yield "evaluation.simulations", simulations, "as in acting"
    yield from _end(60 if image else 20)


def _board_network(spec: EnvSpec, squares: int) -> Iterator[Choice]:
    if not squares:
        yield "network.name", "mlp", f"observations of shape {list(spec.observation_shape)} have no board"
        yield "network.width", 256, ""
        yield "network.layers", 2, ""
        return
    sizes = ((9, 32, 2), (49, 32, 3), (MANY_ACTIONS, 64, 5))
    channels, blocks = next(((c, b) for most, c, b in sizes if squares <= most), (64, 6))
    # Moves with many kinds, as in chess, need more than their board's size says.
    if spec.num_actions > 10 * squares:
        channels, blocks = 96, 8
    yield "network.name", "resnet", f"a board of {' x '.join(map(str, spec.observation_shape[:2]))}"
    yield "network.channels", channels, "wider and deeper learns more from a game, and plays fewer games a second"
    yield "network.blocks", blocks, "each sees two squares further"


def _image_network(spec: EnvSpec) -> Iterator[Choice]:
    shape = spec.observation_shape
    first = shape[0] < shape[-1]
    side = max(shape[1:] if first else shape[:2])
    downsample = next((factor for factor in (1, 2, 4, 8) if side / factor <= _LATENT_SIDE), 16)
    yield "network.name", "muzero_resnet", f"images of {list(shape)}"
    yield "network.channels", 64, ""
    yield "network.blocks", 2, ""
    yield "network.downsample", downsample, f"a latent image of {math.ceil(side / downsample)} a side: search is fast"
    if first:
        yield "network.channels_first", True, f"{shape[0]} channels come first"


def _vector_network(spec: EnvSpec) -> Iterator[Choice]:
    size = math.prod(spec.observation_shape)
    small = size <= 8 and spec.num_actions <= 4
    yield "network.name", "muzero_mlp", f"{size} numbers a step"
    yield "network.latent", 64 if small else 128, ""
    yield "network.width", 128 if small else 256, ""
    yield "network.layers", 1, "as for LunarLander-v3 and Pendulum-v1"
    if spec.observation_dtype == "bool":
        yield "network.normalize", False, "observations are bits"


def _considered(spec: EnvSpec) -> Iterator[Choice]:
    most = min(spec.num_actions, 16)
    why = "all actions" if most == spec.num_actions else f"of {spec.num_actions}: those that the policy likes best"
    yield "search.max_considered_actions", most, why


def _replay(spec: EnvSpec, most: int, least: int, policies: int) -> Iterator[Choice]:
    """The size of replay; a sample holds an observation and some policies."""
    observation = math.prod(spec.observation_shape) * np.dtype(spec.observation_dtype).itemsize
    fit = REPLAY_BYTES // (observation + 4 * policies * max(spec.num_actions, 16))
    capacity = max(min(most, fit // 1000 * 1000), 2 * least)
    yield "replay.capacity", capacity, "samples, the newest" if fit >= most else "samples, the newest: a GiB"
    yield "replay.min_size", least, "learning starts when there is some variety"
    yield "replay.samples_per_insert", 4, "times that a sample is learned from: more overfit, fewer waste games"


def _optimizer(learning_rate: float) -> Iterator[Choice]:
    yield "learner.optimizer.name", "adamw", ""
    yield "learner.optimizer.learning_rate", learning_rate, "halve it if the loss jumps"
    yield "learner.optimizer.schedule", "cosine", "falls over the run, until a limit of section stop"
    yield "learner.optimizer.warmup_steps", 100, ""


def _end(minutes: int) -> Iterator[Choice]:
    yield "checkpoint.every_minutes", 5, ""
    yield "stop.minutes", minutes, "a first impression; resume with a higher limit"


def _discount(length: int | None) -> tuple[float, int]:
    """The discount, and the steps ahead that it weighs: a quarter of an episode, at most 333."""
    horizon = 333 if length is None else max(10, min(333, length // 4))
    discount = round(1 - 1 / horizon, 3)
    return discount, horizon


def _plies(length: int | None) -> str:
    return "length unknown" if length is None else f"at most {length} plies"


def _steps(length: int | None) -> str:
    return "no known limit" if length is None else f"at most {length}"
