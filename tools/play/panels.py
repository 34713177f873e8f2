"""Parts of the page that only show something."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nicegui import ui

from podzero.evaluation.games import PlayedGame, game_title
from podzero.evaluation.kept_games import KeptGame
from podzero.tools.play.game import Game
from podzero.tools.play.searching import SIMULATIONS, Searched

SHOWN_MOVES = 12
"""Moves in the table of a search."""


def list_moves(game: Game, name: str, found: Searched | None) -> None:
    """The best moves of a player's search of the shown position, and the moves of the game."""
    if found is not None and found.value is not None and found.visits is not None:
        ui.label(f"{name}: value {found.value:+.3f} for the player to move").classes("font-medium break-all")
        policy = found.probabilities(game.legal)
        best = sorted(policy, key=lambda action: -policy[action])[:SHOWN_MOVES]
        rows = [
            {"move": game.name(action), "policy": f"{policy[action]:.1%}", "visits": int(found.visits[action])}
            for action in best
        ]
        columns = [{"name": key, "label": key, "field": key, "align": "left"} for key in rows[0]]
        ui.table(rows=rows, columns=columns).props("dense flat").classes("w-full")
    ui.label(" ".join(game.names)).classes("font-mono text-sm break-words")


def show_without_board(game: Game, picture: str | None) -> None:
    """A game whose observations are no boards: its own picture, or the names of its moves."""
    if picture is None:
        ui.label(" ".join(game.names) or "no move yet").classes("font-mono break-words")
    else:
        ui.image(picture).classes("w-full").props(f'role=img aria-label="{game.env.spec.name}"')


def choose_simulations(chosen: int, change: Callable[[int], None]) -> None:
    """A slider over `SIMULATIONS`; `change` gets each number that is chosen."""
    with ui.row().classes("items-center gap-2"):
        shown = ui.label(f"{chosen} simulations")
        slider = ui.slider(min=0, max=len(SIMULATIONS) - 1, value=SIMULATIONS.index(chosen))
        slider.classes("w-40").props('aria-label="simulations"')

        def choose(index: float) -> None:
            change(SIMULATIONS[int(index)])
            shown.set_text(f"{SIMULATIONS[int(index)]} simulations")

        slider.on_value_change(lambda event: choose(event.value))


def choose_game(kept: Sequence[KeptGame], load: Callable[[PlayedGame], None]) -> None:
    """A list of kept games, of which one is loaded; typing finds a player or a step."""
    names = {number: f"{one.origin}: {game_title(one.game)}" for number, one in enumerate(kept)}
    choice = ui.select(names, label="kept games", with_input=True, clearable=True).classes("w-full").props("dense")
    choice.on_value_change(lambda event: None if event.value is None else load(kept[event.value].game))


def compare(game: Game, others: Mapping[str, Searched | None]) -> None:
    """What other players say of the shown position."""
    for name, found in others.items():
        if found is not None:
            value = "" if found.value is None else f", value {found.value:+.3f}"
            ui.label(f"{name}: {game.name(found.action)}{value}").classes("break-all")
