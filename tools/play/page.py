"""The web page on which a person plays a game and inspects the player's searches; browsers need its token."""

from __future__ import annotations

import asyncio
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np
from nicegui import app, background_tasks, run, ui
from nicegui.events import KeyEventArguments, MouseEventArguments, UploadEventArguments, ValueChangeEventArguments
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from podzero.config import KOMI, LARGEST_KOMI
from podzero.core.errors import ConfigError
from podzero.core.protocols import Env
from podzero.core.types import EnvState, SearchedNodes
from podzero.envs.boards.go import Go, komi_of, with_komi
from podzero.envs.boards.hex import HEX_GAMES
from podzero.envs.notation import NotationError, names_in_text
from podzero.evaluation.games import PlayedGame, StoredGame, game_title
from podzero.evaluation.records import record_suffix, record_text
from podzero.evaluation.resolve import Outlook
from podzero.tools.commands.listen_address import ListenAddress, RequestGuard
from podzero.tools.play.drawing import Drawing, Square, drawing_of, handicap_squares, last_squares
from podzero.tools.play.game import PlayableGame, place_stones
from podzero.tools.play.picture import MARGIN, BoardPicture, Marks, heat_of
from podzero.tools.play.review import ReviewedMove, costliest, game_of, notes_on, reviewed_moves
from podzero.tools.play.searching import SIMULATIONS, PositionSearch, Searched, batch_of_one, best_moves
from podzero.tools.records.files import SUFFIXES, nth_game

STYLE = """
button { min-width: 44px; min-height: 44px } /* as large as a finger */
.q-tooltip { background: #424242; font-size: 14px }
.body--dark { --q-primary: #90caf9 !important }
.body--dark .bg-primary { --q-primary: #1565c0 !important } /* below white text */
"""
SCRIPT = """<script>
document.documentElement.lang = "en"
// The empty image below a board, which is described as a whole, and the bar of a page that loads.
new MutationObserver(() => {
    document.querySelectorAll("img:not([alt])").forEach(image => image.alt = "")
    document.querySelector(".q-loading-bar:not([aria-label])")?.setAttribute("aria-label", "loading")
}).observe(document.documentElement, {childList: true, subtree: true})
</script>"""
"""For screen readers."""
BOTH, NONE = 2, 3
"""The sides that the person may play besides 0 and 1; with `NONE` the player plays both."""


class PageParts(NamedTuple):
    """What a page is made of."""

    env: Env
    players: Mapping[str, PositionSearch]
    """By name. The first one plays, and the others are compared with it."""
    simulations: int
    """The initial number per search."""
    kept: Sequence[StoredGame] = ()
    """Finished games to step through."""
    rendered_picture: Callable[[PlayableGame], str] | None = None
    """Draws the board without a margin and returns the image's address; None draws it here."""
    look: Callable[[EnvState], Outlook] | None = None
    """The first player's network, if it predicts who owns each square at the end (`outlook_of`)."""
    knows_komi: bool = False
    """Whether the first player can be told the komi of a game of Go."""


class GamePage:
    """A page in one browser: the board, the game's moves, and the searches of its positions."""

    def __init__(self, parts: PageParts) -> None:
        self._parts = parts
        self._game = PlayableGame(parts.env)
        self._opponent = next(iter(parts.players))
        self._simulations = parts.simulations
        self._side = 0
        self._searched: dict[int, Searched] = {}
        self._chosen: Square | None = None
        self._picture: BoardPicture | None = None
        self._drawing: Drawing | None = None
        self._busy = self._gone = self._shows_owners = False
        self._handicap, self._komi = 0, KOMI
        self._names = ("", "")
        """Of the players of a game that was opened."""
        self._reviewed: Sequence[ReviewedMove] = ()
        """The game's moves, once all of its positions have been searched."""
        self._build()

    def _build(self) -> None:
        """One column on narrow screens, two on wide ones."""
        ui.keyboard(on_key=self._key)
        ui.colors(primary="#1565c0")  # can be read on white
        ui.add_css(STYLE)
        ui.add_head_html(SCRIPT)
        ui.context.client.on_delete(partial(setattr, self, "_gone", True))
        with ui.row().classes("w-full justify-center items-start gap-6"):
            with ui.column().classes("w-full max-w-xl gap-2"):
                heading = ui.label(f"{self._game.env.spec.name}: {self._opponent}").classes("text-xl break-all")
                heading.props("role=heading aria-level=1")
                self._status = ui.label().classes("text-lg").props("aria-live=polite")
                self._board = ui.column().classes("w-full gap-1")
                self._buttons()
                self._inputs()
            with ui.column().classes("w-full max-w-md gap-2"):
                what = "win rate, %" if self._game.has_win_rates else "value"
                ui.label(f"{self._game.sides[0]}: {what}").classes("font-medium")
                self._values = ui.echart(value_chart(self._game, {})).classes("w-full h-40")
                self._moves = ui.column().classes("w-full gap-0")
                self._compared = ui.column().classes("w-full gap-0")
                with ui.expansion("Search tree").classes("w-full"):
                    self._tree = ui.column().classes("w-full overflow-x-auto")
        self._draw()

    def _buttons(self) -> None:
        with ui.row().classes("gap-1"):
            for key, (icon, hint, _) in STEPS.items():
                icon_button(icon, hint, partial(self._press, key))
            icon_button("undo", "take back", self._take_back)
            icon_button("search", "search this position", self._search)
            icon_button("smart_toy", "let the player move", self._reply)
            icon_button("restart_alt", "new game", self._new_game)
            if self._game.has_win_rates:
                icon_button("troubleshoot", "review: search all positions", self._review)
                icon_button("save", "save the game", self._save)
                opener = ui.upload(auto_upload=True, max_file_size=MAX_BODY_BYTES, on_upload=self._open)
                opener.classes("hidden").props(f'accept="{",".join(SUFFIXES)}"').on("rejected", _refuse_file)
                icon_button("folder_open", "open a game", partial(opener.run_method, "pickFiles"))

    def _inputs(self) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            with ui.row().classes("items-center gap-2"):
                ui.label("you play")
                sides = {**dict(enumerate(self._game.sides)), BOTH: "both", NONE: "none"}
                ui.toggle(sides, value=self._side, on_change=self._change_side).props("dense no-caps")
            choose_simulations(self._simulations, partial(setattr, self, "_simulations"))
            if self._parts.look is not None:
                ui.switch("ownership", on_change=self._show_owners)
        if isinstance(self._game.env, Go):
            self._go_inputs(self._game.env.spec.observation_shape[0])
        with ui.row().classes("w-full items-center gap-2"):
            entry = ui.input("move, or moves from the start").classes("grow").props("dense clearable")
            entry.on("keydown.enter", lambda: self._enter(entry))
        if self._parts.kept:
            names = {number: f"{one.origin}: {game_title(one.game)}" for number, one in enumerate(self._parts.kept)}
            choice = ui.select(names, label="kept games", with_input=True, clearable=True)
            choice.classes("w-full").props("dense")
            choice.on_value_change(self._load)

    def _go_inputs(self, size: int) -> None:
        """What the next game of Go begins with."""
        with ui.row().classes("w-full items-center gap-3"):
            stones = [0, *range(2, len(handicap_squares(size, 9)) + 1)]
            ui.select(stones, label="handicap", value=0).classes("w-24").bind_value_to(self, "_handicap")
            if self._parts.knows_komi:
                komi = ui.number("komi", value=KOMI, min=-LARGEST_KOMI, max=LARGEST_KOMI, step=0.5).classes("w-24")
                komi.bind_value_to(self, "_komi", forward=_nearest_komi)

    async def _click(self, event: MouseEventArguments) -> None:
        """Plays the move to the clicked square; in chess the first click chooses a piece."""
        assert self._picture is not None
        assert self._drawing is not None
        square = self._picture.square_at(event.image_x, event.image_y)
        if square is None or self._busy:
            return
        if not self._drawing.moves_pieces:
            actions = self._drawing.actions_at(square)
        elif not (self._chosen and (actions := self._drawing.actions_at(square, self._chosen))):
            self._chosen = square if self._drawing.actions_at(square) else None
            self._draw()
            return
        action = actions[0] if len(actions) == 1 else await self._asked(actions) if actions else None
        if action is not None:
            await self._play(action)

    async def _asked(self, actions: list[int]) -> int | None:
        """Asks which of several moves between the same squares is meant, such as promotions."""
        with ui.dialog(value=True) as dialog, ui.card(), ui.row():
            for action in actions:
                ui.button(self._game.name(action), on_click=partial(dialog.submit, action))
        chosen: int | None = await dialog
        return chosen

    async def _play(self, action: int) -> None:
        """Plays the person's move, then the player's reply if it is to move."""
        if self._busy:
            return
        try:
            self._game.play(action)
        except NotationError as error:
            ui.notify(str(error), type="warning")
            return
        self._moved()
        if not self._game.over and not self._persons_turn:
            await self._reply()

    async def _enter(self, entry: ui.input) -> None:
        """Plays the move that was entered, or sets up the position after several moves from the start."""
        text = "" if self._busy else str(entry.value or "")
        try:
            if len(names_in_text(text)) == 1:
                action = self._game.action(text.strip())
                entry.set_value("")
                await self._play(action)
            elif text.strip():
                self._set_up(self._game.read(text))
                entry.set_value("")
        except NotationError as error:
            ui.notify(str(error), type="warning")

    def _load(self, event: ValueChangeEventArguments[int | None]) -> None:
        """Shows the start of the kept game with a number."""
        if self._busy or event.value is None:
            return
        try:
            self._set_up(self._parts.kept[event.value].game.moves)
        except NotationError as error:
            ui.notify(f"this is a game with other rules than {self._game.env.spec.name}: {error}", type="warning")
        self._show(0)

    def _set_up(self, moves: Sequence[int]) -> None:
        self._names = ("", "")
        self._searched.clear()
        self._game.restart(moves)
        self._moved()

    async def _open(self, event: UploadEventArguments) -> None:
        """Shows the start of the first game in a file of the person's."""
        event.sender.reset()  # type: ignore[attr-defined]
        if self._busy:
            return
        with TemporaryDirectory() as folder:
            file = Path(folder) / f"game{Path(event.file.name).suffix}"
            await event.file.save(file)
            try:
                recorded = nth_game(file, self._game.env.spec)
                self._game = game_of(self._game.env, recorded, self._parts.knows_komi)
            except ConfigError as error:
                ui.notify(str(error).replace(f"{folder}/", ""), type="warning", multi_line=True)
                return
        self._names = recorded.players
        self._searched.clear()
        self._moved()
        self._show(0)

    def _save(self) -> None:
        """Gives the browser the game as SGF or PGN, with notes if all of its positions have been searched."""
        game = self._game
        first, second = (
            name or (self._opponent if self._side in (1 - seat, NONE) else "person")
            for seat, name in enumerate(self._names)
        )
        played = PlayedGame(first, second, tuple(game.moves), game.final_score)
        komi = komi_of(game.state) if isinstance(game.env, Go) else KOMI
        text = record_text(game.env, played, notes=notes_on(self._reviewed), komi=komi)
        ui.download.content(text, f"{game.env.spec.name}{record_suffix(game.env.spec.name)}")

    async def _review(self) -> None:
        """Searches all positions of the game that have not been searched; another move ends it."""
        moves = tuple(self._game.moves)
        for ply in range(len(moves) + 1):
            self._show(ply)
            if not self._game.over and ply not in self._searched and await self._search() is None:
                return
            if tuple(self._game.moves) != moves:
                return
        found = [one for _, one in sorted(self._searched.items()) if one.value is not None]
        if len(found) < len(self._searched):
            ui.notify(f"{self._opponent} does not search, so it reviews no games", type="warning")
        elif moves:
            self._reviewed = reviewed_moves(self._game, self._game.final_score, found)[1]
            self._game.show(len(moves))
            self._draw()

    async def _show_owners(self, event: ValueChangeEventArguments[bool | None]) -> None:
        self._shows_owners = bool(event.value)
        if event.value:
            # In a thread, since the first time compiles.
            await run.io_bound(self._owners)
        self._draw()

    def _owners(self) -> dict[Square, float]:
        """See `owners_of`; empty unless they are shown."""
        if self._parts.look is None or not self._shows_owners:
            return {}
        (owned,) = jax.device_get(self._parts.look(batch_of_one(self._game.state)).ownership)
        return owners_of(self._game, owned)

    async def _reply(self) -> None:
        """Plays the player's move, or the rest of the game if it plays both sides."""
        while not self._game.over:
            found = await self._search()
            if found is None:
                return
            self._game.play(found.action)
            self._moved()
            if self._side != NONE:
                return

    async def _search(self) -> Searched | None:
        """Searches the position shown with all players; returns the opponent's result, or None if busy or over."""
        if self._busy or self._game.over:
            return None
        self._busy = True
        ply = self._game.ply
        self._status.set_text(f"{self._opponent} searches with {self._simulations} simulations ...")
        state, simulations, players = self._game.state, self._simulations, self._parts.players
        # In a thread, so that the page stays responsive; `_busy` keeps the game from changing meanwhile.
        try:
            answers = {name: await run.io_bound(player, state, simulations) for name, player in players.items()}
        finally:
            self._busy = False
        found = answers.pop(self._opponent)
        # NiceGUI answers None when the server stops; a browser that was closed meanwhile shows nothing any more.
        if found is None or self._gone:
            return None
        self._searched[ply] = found
        self._compared.clear()
        with self._compared:
            for name, other in answers.items():
                if other is not None:
                    value = "" if other.value is None else f", {self._game.meaning(other.value)}"
                    ui.label(f"{name}: {self._game.name(other.action)}{value}").classes("break-all")
        self._draw()
        return found

    @property
    def _persons_turn(self) -> bool:
        return self._side in (BOTH, self._game.turn)

    def _moved(self) -> None:
        """Updates the page after a change of the moves."""
        # Searches are kept by ply: those of later plies may be of moves that were taken back.
        self._searched = {ply: found for ply, found in self._searched.items() if ply < self._game.ply}
        self._reviewed = ()
        self._chosen = None
        self._draw()

    def _press(self, key: str) -> None:
        self._show(STEPS[key][2](self._game.ply, len(self._game.moves)))

    def _show(self, ply: int) -> None:
        if not self._busy:
            self._game.show(ply)
            self._chosen = None
            self._draw()

    async def _take_back(self) -> None:
        """Takes back the person's last move and the reply to it."""
        if not self._busy and self._game.ply:
            self._game.take_back()
            if self._game.ply and not self._persons_turn:
                self._game.take_back()
            self._moved()

    async def _new_game(self) -> None:
        if self._busy:
            return
        self._set_up([])
        if isinstance(self._game.env, Go):
            komi = with_komi(self._game.beginning.state, np.asarray(self._komi))
            self._game.restart(state=komi if self._parts.knows_komi else None)
            size = self._game.env.spec.observation_shape[0]
            squares = handicap_squares(size, self._handicap)
            place_stones(self._game, [(True, self._game.name(row * size + column)) for row, column in squares])
            self._moved()
        if not self._persons_turn:
            await self._reply()

    async def _change_side(self, event: Any) -> None:
        self._side = int(event.value)
        if not self._game.over and not self._persons_turn and not self._busy:
            await self._reply()

    async def _key(self, event: KeyEventArguments) -> None:
        if event.action.keydown and event.key.name in STEPS:
            self._press(event.key.name)

    def _draw(self) -> None:
        game, found = self._game, self._searched.get(self._game.ply)
        self._status.set_text(game.result or f"move {game.ply + 1}: {game.sides[game.turn]} to move")
        self._drawing = drawing_of(game)
        self._board.clear()
        with self._board:
            self._draw_board({} if found is None else found.probabilities(game.legal))
            # Moves without squares, such as a pass, get buttons.
            others = [a for a in game.legal if self._drawing is None or a not in self._drawing.squares]
            with ui.row().classes("gap-1"):
                for action in others:
                    ui.button(game.name(action), on_click=partial(self._play, action)).props("dense no-caps outline")
        self._moves.clear()
        with self._moves:
            list_moves(game, self._opponent, found)
            self._list_costliest()
        self._draw_tree(found)
        self._values.options.update(value_chart(game, self._searched))
        self._values.update()

    def _list_costliest(self) -> None:
        """Lists the costliest moves of a game whose positions have all been searched; a click shows one."""
        if shown := costliest(self._reviewed, SHOWN_COSTS):
            ui.label("The costliest moves").classes("font-medium")
        for number, one in shown.items():
            text = f"{number + 1}. {one.side} {one.move} costs {one.cost:.0%}; better {' '.join(one.line)}"
            link = ui.button(text, on_click=partial(self._show, number)).classes("w-full")
            link.props("flat dense no-caps align=left")

    def _draw_board(self, policy: Mapping[int, float]) -> None:
        game, drawing = self._game, self._drawing
        own = None if self._parts.rendered_picture is None else self._parts.rendered_picture(game)
        if drawing is None:
            if own is None:
                ui.label(" ".join(game.names) or "no move yet").classes("font-mono break-words")
            else:
                ui.image(own).classes("w-full").props(f'role=img aria-label="{game.env.spec.name}"')
            return
        self._picture = self._picture or BoardPicture(game.env.spec.name, drawing.size, MARGIN if own is None else 0)
        marks = Marks(heat_of(drawing, policy), last_squares(game), self._chosen, self._owners())
        content = self._picture.svg(drawing, marks) if own is None else self._picture.over(own, marks)
        # Not sanitized: the SVG is made here, and its labels are escaped.
        image = ui.interactive_image(
            size=self._picture.extent, content=content, events=["click"], on_mouse=self._click, sanitize=False
        )
        image.classes("w-full").props("role=img")
        image.props["aria-label"] = f"{game.env.spec.name} after {' '.join(game.names[: game.ply]) or 'no move'}"

    def _draw_tree(self, found: Searched | None) -> None:
        self._tree.clear()
        with self._tree:
            if found is None or found.nodes is None:
                ui.label("Search the position to see its tree.")
                return
            ui.tree(tree_of(self._game, found.nodes), label_key="label").classes("font-mono text-sm")


STEPS: dict[str, tuple[str, str, Callable[[int, int], int]]] = {
    "Home": ("first_page", "start (Home)", lambda ply, last: 0),
    "ArrowLeft": ("chevron_left", "one back (left)", lambda ply, last: ply - 1),
    "ArrowRight": ("chevron_right", "one forward (right)", lambda ply, last: ply + 1),
    "End": ("last_page", "end (End)", lambda ply, last: last),
}
"""Keys that step through the game, in the order of their buttons: the icon, its hint, and `(ply shown, last ply)` to
the ply to show, which may lie outside of the game."""


def icon_button(icon: str, hint: str, act: Callable[[], object]) -> ui.button:
    """A flat button with a hint, which screen readers read too."""
    return ui.button(icon=icon, on_click=act).props(f'flat dense aria-label="{hint}"').tooltip(hint)


def owners_of(game: PlayableGame, owned: np.ndarray[Any, Any]) -> dict[Square, float]:
    """How certainly each square will be the first player's, from -1 to 1, of an `Outlook.ownership`, `[S]`."""
    rows, columns, *_ = game.env.spec.observation_shape
    board = owned.reshape(rows, columns)
    if not game.first_to_move:
        # In Hex the second player sees the board transposed.
        board = -board.T if game.env.spec.name in HEX_GAMES else -board
    return {square: float(owner) for square, owner in np.ndenumerate(board)}


def _nearest_komi(value: float | None) -> float:
    """The komi that is meant by a number that a person types."""
    return KOMI if value is None else min(max(round(2 * value) / 2, -LARGEST_KOMI), LARGEST_KOMI)


def _refuse_file() -> None:
    ui.notify(f"expected a file that ends in {', '.join(SUFFIXES)}, of at most a megabyte", type="warning")


SHOWN_MOVES = 12
"""Rows in the table of a search's moves."""
SHOWN_COSTS = 5
"""Most moves of a reviewed game that are listed."""
LEVELS = dict(zip(SIMULATIONS, ("no search", "fastest", "fast", "usual", "slow", "slowest"), strict=True))


def list_moves(game: PlayableGame, name: str, found: Searched | None) -> None:
    """Lists the best moves of a player's search of the position shown, and the moves of the game."""
    if found is not None and found.value is not None:
        ui.label(f"{name}: {game.meaning(found.value)}").classes("font-medium break-all")
        keys = ("move", "policy", "visits")
        rows = [dict(zip(keys, cells, strict=True)) for cells in best_moves(game, found, SHOWN_MOVES)]
        columns = [{"name": key, "label": key, "field": key, "align": "left"} for key in keys]
        ui.table(rows=rows, columns=columns).props("dense flat").classes("w-full")
    ui.label(" ".join(game.names)).classes("font-mono text-sm break-words")


def choose_simulations(chosen: int, change: Callable[[int], None]) -> None:
    """A slider over `SIMULATIONS` and the number `chosen` at first, which calls `change` with each number chosen."""
    offered = sorted({*SIMULATIONS, chosen})
    with ui.row().classes("items-center gap-2"):
        shown = ui.label(level(chosen))
        slider = ui.slider(min=0, max=len(offered) - 1, value=offered.index(chosen))
        slider.classes("w-40").props('aria-label="simulations"')

        def choose(index: float) -> None:
            change(offered[int(index)])
            shown.set_text(level(offered[int(index)]))

        slider.on_value_change(lambda event: choose(event.value))


def level(simulations: int) -> str:
    """A number of simulations with the name of its level, if it has one."""
    name = f"{LEVELS[simulations]}: " if simulations in LEVELS else ""
    return f"{name}{simulations} simulation{'s' if simulations > 1 else ''}"


MOST_NODES = 200
"""Most nodes of a tree that are shown."""


def tree_of(game: PlayableGame, nodes: SearchedNodes) -> list[dict[str, Any]]:
    """The most visited nodes of a search of the position shown, each with `id`, `label` and `children`.

    Siblings are sorted by visits. Values are for the player who moves to the node.
    """
    parent, visits = np.asarray(nodes.parent), np.asarray(nodes.visits)
    # A parent has more visits than its children, so its parent is shown with each node.
    added = [int(node) for node in np.argsort(-visits, kind="stable") if parent[node] >= 0 and visits[node] > 0]

    def below(node: int, reached: PlayableGame, path: str) -> list[dict[str, Any]]:
        # A search also expands nodes below the game's end.
        if reached.over:
            return []
        shown = []
        for child in (child for child in added[:MOST_NODES] if parent[child] == node):
            action, value, prior = int(nodes.action[child]), float(nodes.value[child]), float(nodes.prior[child])
            label = f"{reached.name(action)}  visits {visits[child]}  value {value:+.2f}  prior {prior:.1%}"
            children = []
            if child in parent[added[:MOST_NODES]]:
                after = reached.copy()
                after.play(action)
                children = below(child, after, f"{path}{action}/")
            shown.append({"id": f"{path}{action}", "label": label, "children": children})
        return shown

    return below(0, game, "")


def value_chart(game: PlayableGame, searched: Mapping[int, Searched]) -> dict[str, Any]:
    """ECharts options for what was searched, by ply: win rates or values of the player who began."""
    # A value v is a win rate of 50 (1 + v) percent.
    scale, least = (50, 0) if game.has_win_rates else (1, -1)
    points = [
        [ply, scale * (1 + (-found.value if game.turn_at(ply) else found.value)) + least]
        for ply, found in sorted(searched.items())
        if found.value is not None
    ]
    # A grey that can be read on light pages and on dark ones.
    grey = "#797979"
    axis = {
        "type": "value",
        "axisLabel": {"color": grey},
        "axisLine": {"lineStyle": {"color": grey}},
        "splitLine": {"lineStyle": {"color": f"{grey}55"}},
    }
    return {
        "grid": {"left": 36, "right": 10, "top": 10, "bottom": 24},
        "xAxis": axis | {"minInterval": 1},
        "yAxis": axis | {"min": least, "max": 2 * scale + least},
        "series": [{"type": "line", "data": points, "symbolSize": 7}],
    }


def serve(parts: PageParts, where: ListenAddress, in_browser: bool = False) -> None:
    """Prints the address of a `GamePage`, opens it if it is to be shown, and serves it at `where` until Ctrl-C."""
    # In a game for one player, the agent only searches the person's positions.
    spec = parts.env.spec
    title = f"{spec.name} {'with' if spec.players == 1 else 'against'} {next(iter(parts.players))}"
    guard = RequestGuard(where, "podzero play --web", MAX_BODY_BYTES)
    app.add_middleware(guarded, guard=guard)

    @ui.page("/", title=f"podzero: {spec.name}")
    def page() -> None:
        GamePage(parts)

    async def announce() -> None:
        # NiceGUI starts before it listens. If it cannot listen, it ends, and this task with it.
        while not await _listens(where):
            await asyncio.sleep(0.05)
        print(f"For {where.readers} that know this address. Ctrl-C ends it.", flush=True)
        address = f"{where.url}/?token={guard.token}"
        print(f"{title}: {address}", flush=True)
        if in_browser:
            # In a thread, since a browser in the terminal would block the server.
            await asyncio.to_thread(webbrowser.open, address)

    app.on_startup(lambda: background_tasks.create(announce(), name="announce"))
    # An open page keeps its connection: a longer graceful shutdown would only delay Ctrl-C.
    ui.run(
        host=where.host, port=where.port, show=False, reload=False, dark=None, show_welcome_message=False,
        ws_max_size=MAX_BODY_BYTES, timeout_graceful_shutdown=2,
    )  # fmt: skip


async def _listens(where: ListenAddress) -> bool:
    """Whether the server accepts connections."""
    try:
        _, writer = await asyncio.open_connection(where.host, where.port)
    except OSError:
        return False
    writer.close()
    return True


COOKIE = "podzero_token"
MAX_BODY_BYTES = 1_000_000
"""Largest request body and largest WebSocket message."""


def guarded(app: ASGIApp, guard: RequestGuard) -> ASGIApp:
    """An application that passes on to `app` the requests that `guard` allows, and refuses all others."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        # Start-up and shut-down.
        if scope["type"] not in ("http", "websocket"):
            await app(scope, receive, send)
            return
        # The first request has the token in its address, `/?token=...`, and gets a cookie, which later requests send.
        request = HTTPConnection(scope)
        given = request.query_params.get("token")
        refusal = guard.refusal(request.headers, given or request.cookies.get(COOKIE, ""))
        if refusal is not None:
            await _refuse(scope, receive, send, *refusal)
            return

        async def with_cookie(message: Any) -> None:
            if message["type"] == "http.response.start" and given:
                cookie = f"{COOKIE}={guard.token}; HttpOnly; SameSite=Strict; Path=/"
                message["headers"] = [*message.get("headers", []), (b"set-cookie", cookie.encode())]
            await send(message)

        await app(scope, receive, with_cookie)

    return answer


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        # ASGI: a connection may be closed only after its connect message has been received.
        await receive()
        await send({"type": "websocket.close", "code": 1008})
    else:
        await PlainTextResponse(f"podzero: {text}\n", status_code=status)(scope, receive, send)
