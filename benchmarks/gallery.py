"""The gallery: a picture of each environment, and of each experiment the command, the time and the result.

uv run --group dev python benchmarks/gallery.py    # draws the pictures; benchmarks/pages.py writes the page
"""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium
import jax
import numpy as np

from podzero.config import FOR_SLICES, GymnasiumConfig, builtin_configs, load
from podzero.envs import make_env
from podzero.envs.gymnasium_envs.making import find_registered
from podzero.launch.experiments import card
from podzero.tools.play.drawing import drawing_of, last_squares
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.picture import BoardPicture, Marks, png_of

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "gallery"
GAMES: dict[str, str | int] = {
    "tic_tac_toe": "b2 a1 c1 a3",
    "connect_four": "d d d c c d e b c f e",
    "chess": "e2e4 e7e5 g1f3 b8c6 f1c4 f8c5 c2c3 g8f6 d2d3 d7d6 e1g1",
    "go_9x9": "E5 C3 G3 G7 C7 D7 C6 D6 C5 C4 D5 F3 F2 E2 E3",
    "hex": "f6 e7 g5 h6 d8 e8 c9 i4 h4",
    "othello": 14,
    "gardner_chess": 8,
}
"""The moves that lead to the position of a picture, or how many random ones do."""
FRAMES = {"cartpole": 12, "lunar_lander": 60, "pendulum": 12, "minatar_breakout": 25, "taxi": 4, "atari_pong": 120}
"""Experiments of gymnasium, and after how many random steps the picture is taken."""
SAME = {
    "gymnax_cartpole_device": "cartpole",
    "gymnax_breakout_device": "minatar_breakout",
    "open_spiel_connect_four": "connect_four",
}
"""Experiments whose environment looks like that of a picture."""


def main() -> None:
    """Draws all pictures."""
    PICTURES.mkdir(exist_ok=True)
    for game, moves in GAMES.items():
        (PICTURES / f"{game}.svg").write_text(board(game, moves), encoding="utf-8")
    for experiment, steps in FRAMES.items():
        (PICTURES / f"{experiment}.png").write_bytes(frame(experiment, steps))


def board(name: str, moves: str | int) -> str:
    """The picture of a position."""
    game, random = PlayableGame(make_env(name)), np.random.default_rng(1)
    if isinstance(moves, int):
        for _ in range(moves):
            game.play(int(random.choice(game.legal)))
    else:
        game.restart(game.read(moves))
    drawing = drawing_of(game)
    assert drawing is not None
    picture = BoardPicture(name, drawing.size)
    width, height = picture.extent
    content = picture.svg(drawing, Marks(last=last_squares(game)))
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="240">{content}</svg>\n'


def frame(experiment: str, steps: int) -> bytes:
    """What the environment renders after random steps, as PNG."""
    config = load(experiment).env
    assert isinstance(config, GymnasiumConfig)
    find_registered(config)
    env = gymnasium.make(config.id, render_mode="rgb_array")
    env.reset(seed=1)
    env.action_space.seed(1)
    for _ in range(steps):
        env.step(env.action_space.sample())
    pixels = np.asarray(env.render())
    env.close()
    # Large enough to see, small enough to store.
    factor = max(1, round(240 / pixels.shape[1]))
    pixels = pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width = round(240 * pixels.shape[0] / pixels.shape[1]), 240
    return png_of(np.asarray(jax.image.resize(pixels, (height, width, 3), "linear")).astype(np.uint8))


def gallery_page() -> str:
    """docs/gallery.md: a section for each experiment that is not for slices."""
    lines = ["# Gallery", "", "Each experiment that comes with podzero, as the first lines of its file describe it."]
    for name, path in builtin_configs().items():
        if not name.startswith(FOR_SLICES):
            lines += ["", *section(name, card(path))]
    return "\n".join(lines) + "\n"


def section(name: str, text: str) -> list[str]:
    """Title, picture, description and commands of an experiment."""
    about, *rest = re.split(
        r"^(Hardware|Time|Result|Run|Judge):", text.replace(" Time:", "\nTime:"), flags=re.MULTILINE
    )
    told = dict(zip(rest[::2], rest[1::2], strict=True))
    commands = [line.strip() for kind in ("Run", "Judge") for line in told.get(kind, "").strip().splitlines()]
    env = load(name).env.title
    pictures = [file.name for file in sorted(PICTURES.iterdir()) if file.stem in (name, env, SAME.get(name))]
    shown = [f"![{env}](gallery/{pictures[0]})", ""] if pictures else []
    rows = [
        f"| {kind.lower()} | {' '.join(told[kind].split())} |"
        for kind in ("Time", "Hardware", "Result")
        if kind in told
    ]
    return [
        f"## {name}", "", *shown, " ".join(about.split()), "", "| | |", "|---|---|", *rows, "",
        *(f"    {command}" for command in commands),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
