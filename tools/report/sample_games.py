"""The section of a report that shows games of the evaluator's newest round, as boards to step through."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

from podzero.config import EnvConfig, Experiment, GymnasiumConfig
from podzero.envs import make_env
from podzero.envs.notation import NotationError
from podzero.errors import PodzeroError
from podzero.evaluation.games import PlayedGame, game_title
from podzero.evaluation.kept_games import KeptGame
from podzero.protocols import Env
from podzero.tools.play.board import Drawing
from podzero.tools.play.drawing import drawing_of, last_squares
from podzero.tools.play.game import Game
from podzero.tools.play.picture import BoardPicture, Marks
from podzero.tools.report.figures import Replay, Section

MOST_GAMES = 4
"""The games that are shown, each of other players."""
_TITLE = "Sample games"


def sample_games(experiment: Experiment, kept: Sequence[KeptGame]) -> Section:
    """One game of each pair of players, the newest snapshot's first.

    Args:
      experiment: of the run; without two players there are no games.
      kept: the games of a round.
    """
    if isinstance(experiment.env, GymnasiumConfig) or not kept:
        return Section(_TITLE)
    try:
        env = _env(experiment.env.model_dump_json(), type(experiment.env))
    except PodzeroError as error:  # a game of one's own that is not importable here
        return Section(_TITLE, facts={"not shown": str(error)})
    replays = [replay for one in _one_of_each(kept) if (replay := _replay(cast(Hashable, env), one)) is not None]
    return Section(_TITLE, replays=replays)


def _one_of_each(kept: Iterable[KeptGame]) -> list[KeptGame]:
    chosen: dict[frozenset[str], KeptGame] = {}
    for one in kept:
        chosen.setdefault(frozenset((one.game.first, one.game.second)), one)
    return list(chosen.values())[:MOST_GAMES]


@lru_cache(maxsize=1)
def _env(settings: str, kind: type[EnvConfig]) -> Env:
    """Made once, because a served report is made again and again."""
    return make_env(kind.model_validate_json(settings))


@lru_cache(maxsize=4 * MOST_GAMES)
def _replay(env: Any, kept: KeptGame) -> Replay | None:
    """The boards of a game; None if it cannot be drawn, or is not one of this game."""
    game = Game(env)
    try:
        game.restart(kept.game.moves)
    except NotationError:
        return None
    frames, numbers = [], dict[str, int]()
    ground, extent = "", (0, 0)
    for ply in range(len(game.moves) + 1):
        game.show(ply)
        drawing = drawing_of(game)
        if drawing is None:
            return None
        picture = BoardPicture(env.spec.name, drawing.size)
        if ply == 0:
            ground, extent = picture.ground(drawing), picture.extent
        frames.append([numbers.setdefault(part, len(numbers)) for part in _parts(picture, drawing, game)])
    title = f"{kept.origin}: {game_title(kept.game)}"
    return Replay(title, extent, ground, tuple(numbers), frames, game.names, _caption(kept.game))


def _parts(picture: BoardPicture, drawing: Drawing, game: Game) -> list[str]:
    return picture.pieces(drawing, Marks(last=last_squares(game)))


def _caption(game: PlayedGame) -> str:
    opening = f" The first {game.opening_plies} plies are a random opening." if game.opening_plies else ""
    return f"{game.first} moves first.{opening}"
