"""The command `play`: a person plays against a player, in the terminal (here) or on a page, or watches an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from podzero.config import EnvConfig, GymnasiumConfig, SimulatorConfig
from podzero.core.errors import ConfigError
from podzero.core.importing import how_to_install, import_extra
from podzero.core.protocols import Env
from podzero.core.types import EnvState
from podzero.envs import SimulatorReplay, make_env, renders, spec_of
from podzero.envs.notation import NotationError
from podzero.evaluation.games import StoredGame, stored_games
from podzero.evaluation.resolve import Outlook, outlook_of
from podzero.files.players import EnginePlayer, TrainedPlayer, game_to_play, knows_komi, parse_player
from podzero.tools.commands.listen_address import free_address
from podzero.tools.play.drawing import board_text
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.picture import rendered_picture
from podzero.tools.play.searching import PositionSearch, best_moves, make_player

USUAL_SIMULATIONS = 128
"""Default number of simulations per search in games."""


class PageOptions(NamedTuple):
    """The options of the web page, which the help of `podzero play` describes; None where one was not given."""

    kept: Path | None = None
    host: str | None = None
    port: int | None = None
    open: bool | None = None


class Video(NamedTuple):
    """The options of a video, which the help of `podzero play` describes; None where one was not given."""

    to: Path | None = None
    games: int | None = None
    seed: int | None = None


def _given(options: PageOptions | Video) -> list[str]:
    return [f"--{name}" for name, value in options._asdict().items() if value is not None]


def play(
    who: str,
    others: Sequence[str],
    game: str | None,
    simulations: int | None,
    second: bool,
    web: bool,
    page: PageOptions,
    video: Video,
) -> dict[str, Any] | None:
    """Plays games until the person quits; in single-player environments, writes a video of the agent's episodes.

    `who` is the person's opponent, and with `second` plays first, or the agent to watch. On the page it is compared
    with `others` in each position. Simulations are by default `USUAL_SIMULATIONS` in games, and those of training
    elsewhere. Returns what `podzero.tools.play.video.record` does if a video was written.
    """
    where = game_to_play(game, who, *others)
    if is_watched(where, video):
        assert isinstance(where, GymnasiumConfig | SimulatorConfig)
        of_games = ["--second"] * second + ["--web"] * web + [*others, *_given(page)]
        _refuse(where.title, "shows a single agent, in a video", of_games)
        import_extra("PIL", "a video of an environment")
        from podzero.tools.play.video import record

        return record(who, where, simulations, video.to, video.games or 1, video.seed or 0)
    if not web:
        _refuse("the terminal", "has no page", [*others, *_given(page)], "or add --web")
    env = make_env(where)
    if env.spec.players > 2:
        raise ConfigError(
            f"{env.spec.name} has {env.spec.players} players, and `podzero play` shows games for one or two; "
            "see `podzero evaluate` and `podzero tournament`"
        )
    _refuse(env.spec.name, "is played against a person, not recorded", _given(video))
    players = {name: _search(name, env, where) for name in (who, *others)}
    simulations = simulations or USUAL_SIMULATIONS
    for search in players.values():
        # This loads the players, so that errors come before anything is shown.
        search.name(simulations)
    if web:
        try:
            from podzero.tools.play.page import PageParts, serve
        except ModuleNotFoundError as missing:
            raise ConfigError(f"the page needs {missing.name}: {how_to_install('web')}") from None
        address = free_address(page.host, page.port)
        kept, told = _kept(page.kept, players), knows_komi(parse_player(who))
        parts = PageParts(env, players, simulations, kept, _rendered_picture(where), _owners(who, env), told)
        serve(parts, address, bool(page.open))
    else:
        TerminalGame(PlayableGame(env), players[who], simulations, int(second), Console()).run()
    return None


def is_watched(where: EnvConfig, video: Video) -> bool:
    """Whether `where` is a single-player environment, in which people watch an agent instead of playing."""
    if isinstance(where, SimulatorConfig):
        # A simulator that cannot render is played in the terminal, unless a video is requested.
        return (bool(_given(video)) or renders(where)) and spec_of(where).players == 1
    return isinstance(where, GymnasiumConfig)


def _refuse(title: str, why: str, options: list[str], or_else: str = "") -> None:
    if options:
        raise ConfigError(f"{title} {why}: remove {' '.join([*options, or_else]).strip()}")


def _rendered_picture(where: EnvConfig) -> Callable[[PlayableGame], str] | None:
    if not isinstance(where, SimulatorConfig) or not renders(where):
        return None
    import_extra("PIL", "the picture of a game of your own")
    return partial(rendered_picture, SimulatorReplay(where))


def _kept(folder: Path | None, players: Iterable[str]) -> list[StoredGame]:
    if folder is not None:
        return stored_games(folder)
    kept = []
    parsed = map(parse_player, players)
    for workdir in dict.fromkeys(one.workdir.root for one in parsed if isinstance(one, TrainedPlayer)):
        # Raised by runs that kept no games.
        with suppress(ConfigError):
            kept += stored_games(workdir)
    return kept


def _owners(who: str, env: Env) -> Callable[[EnvState], Outlook] | None:
    """The network of a player that predicts who owns each square at the end; None for others."""
    player = parse_player(who)
    if not (isinstance(player, TrainedPlayer) and getattr(player.workdir.experiment().network, "ownership", False)):
        return None
    return outlook_of(who, env)


def _search(name: str, env: Env, where: EnvConfig) -> PositionSearch:
    if isinstance(parse_player(name), EnginePlayer):
        raise ConfigError(
            f"'{name}' is another program, with its own user interfaces; `podzero evaluate WHO --opponent {name}` lets "
            "an agent play against it"
        )
    return PositionSearch(lambda simulations: make_player(name, env, simulations, where.discount, keep_nodes=True))


HELP = "a move by its name, or: hint, undo, moves, new, quit"
_SHOWN = 5
"""Moves that a hint shows."""


@dataclass
class TerminalGame:
    """Games between a person and a player, or of a person alone, one after another, in the terminal."""

    _game: PlayableGame
    _player: PositionSearch
    """The person's opponent; in a game for one player it gives hints."""
    _simulations: int
    _side: int
    """0 if the person plays first, 1 otherwise."""
    _console: Console
    _read: Callable[[str], str] = input
    """Prompts for a line; raises `EOFError` at the end of the input."""

    def run(self) -> None:
        """Plays until the person quits."""
        player = self._player.name(self._simulations)
        alone = self._game.env.spec.players == 1
        side = f"{'XO'[self._side]}, {self._game.sides[self._side]}"
        roles = f"You play alone; {player} gives hints" if alone else f"You play {side}, against {player}"
        self._console.print(f"{roles}. Type {HELP}.")
        self._show()
        for command in self._commands():
            match command.split():
                case []:
                    continue
                case ["hint"]:
                    self._hint()
                case ["undo"]:
                    self._undo()
                case ["moves"]:
                    self._console.print(" ".join(self._game.names) or "no move yet", highlight=False)
                case ["new"]:
                    self._game.restart()
                    self._show()
                case ["help" | "?"]:
                    self._console.print(HELP)
                case _:
                    self._move(command)

    def _commands(self) -> Iterator[str]:
        """The lines that the person types, until `quit` or the end of the input."""
        while True:
            # A loop, since some games give a player several moves in a row.
            while not self._game.over and self._game.turn != self._side:
                self._reply()
            try:
                line = self._read("over> " if self._game.over else "move> ").strip()
            except EOFError:
                return
            if line in ("quit", "exit"):
                return
            yield line

    def _move(self, name: str) -> None:
        try:
            self._game.play(name)
        except NotationError as error:
            legal = " ".join(self._game.name(action) for action in self._game.legal)
            self._console.print(f"{error}. Legal: {legal or 'none'}", highlight=False)
            return
        self._show()

    def _undo(self) -> None:
        """Takes back the person's last move and the replies to it."""
        self._game.take_back()
        while self._game.ply and self._game.turn != self._side:
            self._game.take_back()
        self._show()

    def _reply(self) -> None:
        found = self._player(self._game.state, self._simulations)
        name = self._game.name(found.action)
        value = "" if found.value is None else f" (value {found.value:+.2f} for itself)"
        self._game.play(found.action)
        self._console.print(f"{self._player.name(self._simulations)} plays {name}{value}", highlight=False)
        self._show()

    def _hint(self) -> None:
        """Shows the best moves of the player's search."""
        if self._game.over:
            self._console.print(self._game.result)
            return
        found = self._player(self._game.state, self._simulations)
        if found.policy is None:
            self._console.print(f"the player would play {self._game.name(found.action)}", highlight=False)
            return
        table = Table("move", "policy", "visits", box=None)
        for name, policy, visits in best_moves(self._game, found, _SHOWN):
            table.add_row(name, policy, str(visits))
        self._console.print(table)

    def _show(self) -> None:
        self._console.print(board_text(self._game))
        if self._game.over:
            self._console.print(f"[bold]{self._game.result}[/]. `new` starts another game, `undo` takes moves back.")
