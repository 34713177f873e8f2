"""KataGo's analysis protocol for Go, by which KaTrain and others use a player as their engine.

https://github.com/lightvector/KataGo/blob/master/docs/Analysis_Engine.md
"""

from __future__ import annotations

import heapq
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from importlib.metadata import version
from itertools import count, takewhile
from queue import Queue
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from podzero.config import KOMI, Komi
from podzero.core.reading import End, read_ahead, unique_keys
from podzero.core.types import Array, EnvState
from podzero.envs.boards.go import with_komi
from podzero.envs.notation import NotationError, notation_errors
from podzero.evaluation.resolve import Outlook
from podzero.tools.play.game import PlayableGame, give_turn, place_stones, play_on
from podzero.tools.play.searching import EngineParts, Line, Root, SearchedLines, TimedSearch, failure_of

Look = Callable[[EnvState], Outlook]
"""See `outlook_of`."""
PROTOCOL = "1.15.3"
"""The release of KataGo whose protocol this is; clients ask for it."""
MOST_WAITING = 1_000
"""Most positions that wait for their search."""
_BATCH = 32
"""Positions after the moves of an analysis go through the network in batches of a multiple of this size."""
_RULES = "tromp-taylor"
_UNKNOWN = "this field is unknown or not supported, and changes nothing"

Player = Annotated[Literal["B", "W"], BeforeValidator(lambda given: given.upper() if isinstance(given, str) else given)]
Stone = tuple[Player, str]
"""A colour and a point, or `pass`."""


class _FieldError(Exception):
    """A field of a query is wrong: its name, and what was expected."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


class _Fields(BaseModel):
    """Fields of the protocol; those that are not listed are kept in `model_extra`."""

    model_config = ConfigDict(alias_generator=to_camel, extra="allow", strict=True, frozen=True)


class Limit(_Fields):
    """Moves that are not searched, or that alone are."""

    player: Player
    moves: list[str]
    until_depth: Literal[1] = 1


class Settings(_Fields):
    """`overrideSettings`."""

    max_time: float | None = Field(default=None, gt=0)
    """Most seconds of a search."""
    report_analysis_winrates_as: Literal["BLACK", "WHITE", "SIDETOMOVE"] = "BLACK"


class Query(_Fields):
    """A query for some turns of a game."""

    id: str
    moves: list[Stone]
    board_x_size: int = Field(alias="boardXSize")
    board_y_size: int = Field(alias="boardYSize")
    initial_stones: list[Stone] = []
    initial_player: Player | None = None
    rules: str | dict[str, Any] = _RULES
    komi: Komi = KOMI
    analyze_turns: list[int] | None = None
    max_visits: int | None = Field(default=None, ge=1)
    allow_moves: list[Limit] = []
    avoid_moves: list[Limit] = []
    override_settings: Settings = Settings()
    report_during_search_every: float = Field(default=math.inf, gt=0)
    priority: int = 0
    priorities: list[int] | None = None
    analysis_pv_len: int = Field(default=15, ge=0, alias="analysisPVLen")
    include_ownership: bool = False
    include_moves_ownership: bool = False
    include_policy: bool = False


class Terminate(_Fields):
    """The actions `terminate` and, without `terminateId`, `terminate_all`."""

    terminate_id: str | None = None
    turn_numbers: list[int] | None = None


class Task(NamedTuple):
    """A turn to analyze."""

    query: Query
    turn: int
    state: EnvState
    """The environment's, without a batch axis; the game itself would hold all positions while it waits."""
    black: bool
    """Whether Black is to move."""

    @property
    def about(self) -> dict[str, Any]:
        """What each answer begins with."""
        return {"id": self.query.id, "turnNumber": self.turn}


class KataGoServer:
    """The engine's side of the protocol, for the player called `who`.

    One position is searched at a time, those of the highest priority first. `write` sends an answer of one line. `look`
    is the player's network, if it has one: without an ownership head answers have no score.
    """

    def __init__(
        self, who: str, parts: Future[EngineParts], write: Callable[[str], None], look: Future[Look | None]
    ) -> None:
        self._who, self._parts, self._look = who, parts, look
        self._write: Callable[[Mapping[str, Any]], None] = lambda tree: write(json.dumps(tree, allow_nan=False))
        self._incoming: Queue[str | End] = Queue()
        self._open = True
        self._waiting: list[tuple[int, int, Task]] = []
        """A heap by priority, then age."""
        self._numbers = count()
        self._last: tuple[object, Sequence[Stone], PlayableGame, list[int]] | None = None
        """Of the newest query: what its first position depends on, its moves, its game and its plies."""
        self._current: Task | None = None
        self._stopped = False
        """Whether the current search has been terminated."""

    @property
    def _search(self) -> TimedSearch:
        return self._parts.result().search

    def run(self, lines: Iterable[str]) -> None:
        """Answers queries until the input ends and all are answered; raises the error of loading the player."""
        self._incoming = read_ahead(lines, MOST_WAITING)
        while True:
            while self._open and not (self._waiting and self._incoming.empty()):
                self._take(self._incoming.get())
            if not self._waiting:
                return
            _, _, task = heapq.heappop(self._waiting)
            self._current, self._stopped = task, False
            try:
                self._analyze(task)
            except Exception as error:
                failure = failure_of("analysis", error, self._parts)
                self._write({"error": failure, **task.about})
            self._current = None

    def _take(self, line: str | End) -> None:
        """Queues or obeys a line."""
        self._open = isinstance(line, str)
        if isinstance(line, Exception):
            raise line
        if line is None:
            return
        try:
            tree = json.loads(line, object_pairs_hook=unique_keys)
            # Answers repeat what is in it; NaN is not JSON.
            json.dumps(tree, allow_nan=False)
        except (ValueError, RecursionError) as error:
            self._write({"error": f"invalid JSON: {error}"})
            return
        if not isinstance(tree, dict) or not isinstance(tree.get("id"), str):
            self._write({"error": 'expected an object with an "id", which is a text', "field": "id"})
            return
        try:
            if "action" in tree:
                self._act(tree)
            else:
                self._queue(Query.model_validate_json(line))
        except _FieldError as error:
            self._write({"error": str(error), "field": error.field, "id": tree["id"]})
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            named = {"field": where.partition(".")[0], "id": tree["id"]}
            self._write({"error": f"{where}: {fault['msg']}", **named})

    def _act(self, tree: dict[str, Any]) -> None:
        match tree["action"]:
            case "query_version":
                named = {"version": PROTOCOL, "git_hash": "<omitted>", "engine": f"podzero {version('podzero')}"}
                self._write(tree | named)
            case "query_models":
                self._write(tree | {"models": [{"name": self._who, "internalName": self._who}]})
            case "clear_cache":
                self._search.forget()
                self._write(tree)
            case "terminate" | "terminate_all" as action:
                ended = Terminate.model_validate(tree)
                if (ended.terminate_id is None) == (action == "terminate"):
                    raise _FieldError("terminateId", "terminate needs the id of a query, terminate_all has none")
                self._terminate(ended)
                self._write(tree)
            case other:
                known = "query_version, query_models, clear_cache, terminate, terminate_all"
                raise _FieldError("action", f"{json.dumps(other)[:80]} is not one of {known}")

    def _terminate(self, ended: Terminate) -> None:
        """Ends the searches of a query, or of all; those that have not begun are answered without results."""

        def ends(task: Task) -> bool:
            of_query = ended.terminate_id in (None, task.query.id)
            return of_query and (ended.turn_numbers is None or task.turn in ended.turn_numbers)

        self._stopped |= self._current is not None and ends(self._current)
        for _, _, task in sorted(self._waiting):
            if ends(task):
                self._write({**task.about, "isDuringSearch": False, "noResults": True})
        self._waiting = [entry for entry in self._waiting if not ends(entry[2])]
        heapq.heapify(self._waiting)

    def _queue(self, query: Query) -> None:
        game, plies = self._played(query)
        turns = [len(query.moves)] if query.analyze_turns is None else query.analyze_turns
        for turn in turns:
            if not 0 <= turn <= len(query.moves):
                raise _FieldError("analyzeTurns", f"the game has no turn {turn}, only 0 to {len(query.moves)}")
        priorities = [query.priority] * len(turns) if query.priorities is None else query.priorities
        if len(priorities) != len(turns):
            raise _FieldError("priorities", f"expected one for each of the {len(turns)} turns to analyze")
        if len(self._waiting) + len(turns) > MOST_WAITING:
            raise _FieldError("analyzeTurns", f"at most {MOST_WAITING:,} positions may wait; ask for fewer, or later")
        for field, reason in self._warnings(query):
            self._write({"warning": reason, "field": field, "id": query.id})
        for turn, priority in zip(turns, priorities, strict=True):
            game.show(plies[turn])
            task = Task(query, turn, game.state, game.first_to_move)
            heapq.heappush(self._waiting, (-priority, next(self._numbers), task))

    def _warnings(self, query: Query) -> Iterator[tuple[str, str]]:
        """What will not be as the query asks: the field, and the reason."""
        most, knows_komi = self._search.most, self._parts.result().knows_komi
        if query.rules != _RULES:
            yield "rules", f"the search knows only {_RULES}, without suicide; all stones count as alive"
        if query.komi != KOMI and not knows_komi:
            yield "komi", f"the search knows only {KOMI}: scores are for {query.komi:g}, win rates are not"
        if query.max_visits is not None and query.max_visits > most:
            yield "maxVisits", f"at most {most:,} are made; start with --simulations {query.max_visits} to have more"
        yield from ((field, _UNKNOWN) for field in query.model_extra or ())
        yield from ((f"overrideSettings.{field}", _UNKNOWN) for field in query.override_settings.model_extra or ())

    def _played(self, query: Query) -> tuple[PlayableGame, Sequence[int]]:
        """The game of a query, and its plies before each turn: stones of the setup, and passes that give the turn, are
        plies too.
        """
        first = query.initial_player or next((player for player, _ in query.moves), None)
        setup = query.board_x_size, query.board_y_size, query.komi, query.initial_stones, first
        if self._last is None or self._last[0] != setup:
            game = self._begun(query, first)
            self._last = setup, [], game, [game.ply]
        # The newest query often had all moves but the last.
        _, moves, game, plies = self._last
        known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(moves, query.moves, strict=False)))
        game.show(plies[known])
        game, plies = game.copy(), plies[: known + 1]
        for number, (player, point) in enumerate(query.moves[known:], known + 1):
            with notation_errors(partial(_FieldError, "moves"), f"Illegal move {number}"):
                give_turn(game, player == "B")
                play_on(game, point)
            plies.append(game.ply)
        self._last = setup, query.moves, game, plies
        return game, plies

    def _begun(self, query: Query, first: Player | None) -> PlayableGame:
        """The game of a query before its moves."""
        parts = self._parts.result()
        game = parts.game.copy()
        size = game.env.spec.observation_shape[0]
        for field, asked in (("boardXSize", query.board_x_size), ("boardYSize", query.board_y_size)):
            if asked != size:
                raise _FieldError(field, f"{self._who} plays on {size} x {size}, not on {asked}")
        start = game.beginning.state
        game.restart(state=with_komi(start, np.asarray(query.komi)) if parts.knows_komi else None)
        with notation_errors(partial(_FieldError, "initialStones"), "Illegal position"):
            place_stones(game, [(player == "B", point) for player, point in query.initial_stones])
        if first:
            give_turn(game, first == "B")
        return game

    def _analyze(self, task: Task) -> None:
        """Searches a position, and writes its reports."""
        query, game = task.query, self._parts.result().game.copy()
        game.restart(state=task.state)
        try:
            root = Root.of(game.position, self._forbidden(task, game))
        except _FieldError as error:
            self._write({"error": str(error), "field": error.field, "id": query.id})
            return
        look, most = self._look.result(), query.max_visits or self._search.usual
        due, searched = time.monotonic() + query.report_during_search_every, None
        for searched in self._search.results(root, most, query.override_settings.max_time, self._given_up):
            if time.monotonic() >= due:
                due = time.monotonic() + query.report_during_search_every
                self._write(report(task, game, searched, look, during=True))
        assert searched is not None
        self._write(report(task, game, searched, look, during=False))

    def _given_up(self) -> bool:
        """Takes what has arrived meanwhile, which may terminate the search."""
        while self._open and not self._incoming.empty():
            self._take(self._incoming.get())
        return self._stopped

    def _forbidden(self, task: Task, game: PlayableGame) -> np.ndarray[Any, Any] | None:
        """`[A]` bool, the moves that are not to be searched in the position shown; None without any."""
        query = task.query
        if not (query.allow_moves or query.avoid_moves):
            return None
        field = "allowMoves" if query.allow_moves else "avoidMoves"
        if not self._search.can_forbid:
            raise _FieldError(field, f"{self._who} does not search, so its moves cannot be chosen")
        # Limits of the other player have no effect at depth 1.
        allowed, avoided = (
            [name for limit in limits if (limit.player == "B") == task.black for name in limit.moves]
            for limits in (query.allow_moves, query.avoid_moves)
        )
        try:
            return game.forbidden(allowed, avoided, "no legal move is left")
        except NotationError as error:
            raise _FieldError(field, str(error)) from None


def report(task: Task, game: PlayableGame, searched: SearchedLines, look: Look | None, during: bool) -> dict[str, Any]:
    """The answer for the position that the game shows, of a search that goes on or has ended.

    Win rates and scores are from the perspective that the query asks for, by default Black's. The score is the
    difference of the squares that each player is expected to own, and the komi.
    """
    query = task.query
    lines = [line for line in searched.lines if line.visits] or searched.lines[:1]
    black, perspective = task.black, query.override_settings.report_analysis_winrates_as
    # Values and ownership are for the player to move.
    sign = 1 if perspective == "SIDETOMOVE" or (perspective == "BLACK") == black else -1
    komi = query.komi if black else -query.komi

    def owned(owners: Array, listed: bool) -> dict[str, Any]:
        lead = round(sign * (float(np.sum(owners)) - komi), 3)
        squares = {"ownership": (sign * np.asarray(owners, float)).round(4).tolist()} if listed else {}
        return {"scoreLead": lead, "scoreMean": lead, **squares}

    root, after = (None, ()) if look is None else _seen(game, lines, look)
    infos = [
        {
            "move": game.name(line.action),
            "visits": line.visits,
            **_rates(sign * line.value),
            "prior": round(line.probability if root is None else float(root.policy[line.action]), 6),
            "order": order,
            "pv": game.names_of(line.moves[: query.analysis_pv_len + 1]),
            **(owned(after[order], query.include_moves_ownership) if len(after) else {}),
        }
        for order, line in enumerate(lines)
    ]
    value = lines[0].value if searched.found.value is None else float(np.clip(searched.found.value, -1, 1))
    about = {"currentPlayer": "B" if black else "W", "visits": searched.simulations, **_rates(sign * value)}
    answer = {**task.about, "isDuringSearch": during, "moveInfos": infos, "rootInfo": about}
    if root is not None and root.ownership is not None:
        found = owned(root.ownership, query.include_ownership)
        answer |= {"ownership": found.pop("ownership")} if query.include_ownership else {}
        about |= found
    if root is not None and query.include_policy:
        answer["policy"] = np.where(game.legal_mask, root.policy, -1).astype(float).round(4).tolist()
    return answer


def _seen(game: PlayableGame, lines: Sequence[Line], look: Look) -> tuple[Outlook, Sequence[np.ndarray[Any, Any]]]:
    """What the network makes of the position shown, and the ownership `[S]` after each line's first move for the player
    to move now; none without such a head.
    """
    states = [game.state]
    for line in lines:
        ahead = game.copy()
        play_on(ahead, line.action)
        states.append(ahead.state)
    padded = [*states, *[game.state] * (-len(states) % _BATCH)]
    policy, owned = jax.device_get(look(jax.tree.map(lambda *leaves: np.stack(leaves), *padded)))
    return Outlook(policy[0], None if owned is None else owned[0]), () if owned is None else -owned[1 : len(states)]


def _rates(value: float) -> dict[str, float]:
    """Of a value in [-1, 1]; its error is not estimated, so the lower bound is the win rate itself."""
    rate = round((value + 1) / 2, 6)
    return {"winrate": rate, "lcb": rate, "utility": round(value, 6)}
