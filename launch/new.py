"""The command `new`: a first experiment for an environment, from the templates in `templates/`.

Its numbers suit two CPU cores without an accelerator, and are those of the built-in experiments of its kind.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import jinja2
import numpy as np
import typer
import yaml

from podzero.config import BUILTIN_GAMES, EnvConfig, GymnasiumConfig, JaxLibrary, JaxLibraryConfig, SimulatorConfig
from podzero.core.errors import ConfigError, nearest, os_errors

if TYPE_CHECKING:
    from podzero.core.types import EnvSpec

REPLAY_BYTES = 2**30
"""Memory for observations and policies in replay."""
SMALL_IMAGE = 1024
"""Numbers in an observation up to which a multilayer perceptron reads an image."""
LONG_GAME = 60
"""Plies above which a game is long: its outcome says little about its first moves."""
MANY_ACTIONS = 100
"""Actions above which a game needs more simulations, and counts as long if its length is unknown."""
_LATENT_SIDE = 8
"""Largest side of a latent image: the search computes one for each simulation."""
_BOARDS = ((9, (32, 2)), (49, (32, 3)), (MANY_ACTIONS, (64, 5)), (math.inf, (64, 6)))
"""Channels and blocks of the network for boards of at most so many squares."""


class _Chance(NamedTuple):
    """What is known of a game of chance: the scale of its rewards, its discount and why, and the range of values below
    which one move is hardly preferred to another.
    """

    scale: float
    discount: float
    why: str
    least: float


_OF_CHANCE = {
    "2048": _Chance(1e-4, 0.997, "the next 333 moves count, which earn up to 10,000 points", 0.01),
    "backgammon": _Chance(0.333, 1.0, "the length of a game does not matter", 0.05),
}


def new(
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="A gymnasium environment, for example CartPole-v1; MODULE:ID if a module registers it.",
            show_default=False,
        ),
    ] = None,
    game: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A game, for example hex, backgammon, open_spiel/breakthrough, jumanji/Maze-v0 or gymnax/CartPole-v1.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the experiment there.", show_default="standard output")
    ] = None,
) -> None:
    """Write a first experiment for an environment: YAML with numbers for two CPU cores, and why they were chosen."""
    if (env is None) == (game is None):
        raise ConfigError("expected either --env ID or --game NAME, for example --env CartPole-v1 or --game hex")
    if to is not None and to.exists():
        raise ConfigError(f"{to} exists, and is not overwritten; give another file with --to, or remove it")
    section, spec, length = _gymnasium(env) if env is not None else _game(game or "")
    text = first_experiment(section, spec, length)
    if to is None:
        print(text, end="")
        return
    with os_errors(ConfigError, f"cannot write {to}"):
        to.write_text(text, encoding="utf-8")
    print(f"{to} is written. Check it with: podzero train {shlex.quote(str(to))} --check")


def first_experiment(env: EnvConfig, spec: EnvSpec, length: int | None) -> str:
    """The first experiment for an environment, as YAML with comments; chooses the discount of one of gymnasium.

    `length` is the largest number of plies of a game or of steps of an episode; None if it is unknown.
    """
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters["flow"] = lambda tree: yaml.safe_dump(
        tree, default_flow_style=True, width=math.inf, sort_keys=False
    ).strip()
    section = env.model_dump(mode="json", exclude_defaults=True)
    name, numbers = (
        ("environment.yaml", _of_environment(section, spec, length))
        if isinstance(env, GymnasiumConfig)
        else ("game.yaml", _of_game(section, spec, length))
    )
    return templates.get_template(name).render(env=section, spec=spec, considered=min(spec.num_actions, 16), **numbers)


def _of_game(env: dict[str, Any], spec: EnvSpec, length: int | None) -> dict[str, Any]:
    """What the template of games needs; sets scale and discount of `env` for a game of chance."""
    chance = _OF_CHANCE.get(env["name"])
    if chance is not None:
        env |= {"reward_scale": chance.scale, "discount": chance.discount}
    squares = math.prod(spec.observation_shape[:2]) if len(spec.observation_shape) == 3 else 0
    channels, blocks = next(size for most, size in _BOARDS if squares <= most)
    # Moves with many kinds, as in chess, need more than their board's size says.
    if spec.num_actions > 10 * squares:
        channels, blocks = 96, 8
    many, tiny = spec.num_actions > MANY_ACTIONS, 0 < squares <= 9
    long = many if length is None else length > LONG_GAME
    least = 3000 if tiny else 4096
    return {
        "chance": chance,
        "squares": squares,
        "channels": channels,
        "blocks": blocks,
        "tiny": tiny,
        "long": long,
        "simulations": 16 if chance else 64 if many else 32,
        "opening_plies": max(2, min((length or 16) // 4, 12)),
        "plies": "length unknown" if length is None else f"at most {length} plies",
        "capacity": _capacity(spec, 60_000 if tiny else 200_000 if long else 100_000, least, policies=1),
        "min_size": least,
    }


def _of_environment(env: dict[str, Any], spec: EnvSpec, length: int | None) -> dict[str, Any]:
    """What the template of environments needs, whose model is learned; sets the discount of `env`."""
    shape, size = spec.observation_shape, math.prod(spec.observation_shape)
    image = len(shape) == 3 and size > SMALL_IMAGE
    # A quarter of an episode.
    horizon = 333 if length is None else max(10, min(333, length // 4))
    env["discount"] = round(1 - 1 / horizon, 3)
    first = image and shape[0] < shape[-1]
    side = max(shape[1:] if first else shape[:2]) if image else 0
    downsample = next((factor for factor in (1, 2, 4, 8) if side / factor <= _LATENT_SIDE), 16)
    dimensions = 0 if spec.action_bounds is None else len(spec.action_bounds[0])
    return {
        "horizon": horizon,
        "steps": "no known limit" if length is None else f"at most {length}",
        "image": image,
        "first": first,
        "downsample": downsample,
        "latent_side": math.ceil(side / downsample),
        "size": size,
        "small": size <= 8 and spec.num_actions <= 4,
        "simulations": 16 if image else 24,
        "candidates": 0 if not dimensions else 12 if dimensions <= 2 else 16,
        "capacity": _capacity(spec, 200_000, 2000, policies=6),
        "min_size": 2000,
        "td_steps": 5 if image else max(5, min(40, (length or 100) // 5)),
    }


def _capacity(spec: EnvSpec, most: int, least: int, policies: int) -> int:
    """The size of replay, of which `least` samples begin the training; each holds an observation and some policies."""
    observation = math.prod(spec.observation_shape) * np.dtype(spec.observation_dtype).itemsize
    fit = REPLAY_BYTES // (observation + 4 * policies * max(spec.num_actions, 16))
    return max(min(most, fit // 1000 * 1000), 2 * least)


def _gymnasium(identifier: str) -> tuple[EnvConfig, EnvSpec, int | None]:
    """The section `env` of a gymnasium environment, its spec, and its time limit."""
    from podzero.envs import spec_of
    from podzero.envs.gymnasium_envs.making import REGISTERED_BY, find

    given, _, name = identifier.rpartition(":")
    namespace = name.partition("/")[0]
    module = given or REGISTERED_BY.get(namespace)
    registered = find(name, module)
    section = GymnasiumConfig(name="gymnasium", id=name, module=module)
    if registered.vector_entry_point is not None:
        # Frames are scaled and stacked there, and rewards are clipped unless one asks for the score.
        kwargs = {"reward_clipping": False} if namespace == "ALE" else {}
        own = section.model_copy(update={"vectorization": "own", "kwargs": kwargs})
        try:
            return own, spec_of(own), registered.max_episode_steps
        except ConfigError:
            # Not every vector environment can be reset as podzero needs it; single ones always can.
            pass
    return section, spec_of(section), registered.max_episode_steps


def _game(name: str) -> tuple[EnvConfig, EnvSpec, int | None]:
    """The section `env` of a game, its spec, and its largest number of plies."""
    from podzero.envs import spec_of

    library, _, game = name.partition("/")
    section: EnvConfig
    if library in get_args(JaxLibrary) and game:
        section = _scaled(JaxLibraryConfig(name=library, id=game))  # type: ignore[arg-type]  # a JaxLibrary
    elif library == "open_spiel" and game:
        section = SimulatorConfig(name="open_spiel", id=game)
    elif name in BUILTIN_GAMES:
        section = BUILTIN_GAMES[name]
    else:
        known = [*BUILTIN_GAMES, *(f"{library}/GAME" for library in ("open_spiel", *get_args(JaxLibrary)))]
        raise ConfigError(f"unknown game '{name}'{nearest(name, BUILTIN_GAMES)}; known: {', '.join(known)}")
    spec = spec_of(section)
    return section, spec, spec.max_plies


def _scaled(section: JaxLibraryConfig) -> JaxLibraryConfig:
    """The section, with a scale of rewards if they sum to more than 1."""
    from podzero.envs import spec_of

    try:
        spec_of(section)
    except ConfigError:
        # Any other fault is raised again here.
        plies = spec_of(section.model_copy(update={"reward_scale": 1e-6})).max_plies
        if plies is None:
            raise
        return section.model_copy(update={"reward_scale": float(f"{1 / plies:.3g}")})
    return section
