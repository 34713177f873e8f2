"""A report's games of the evaluator's newest round, as boards; unlike the rest of the report, this imports JAX."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

from podzero.config import EnvConfig, Experiment, GymnasiumConfig, in_matches
from podzero.core.errors import PodzeroError
from podzero.core.protocols import Env
from podzero.envs import make_env
from podzero.envs.notation import NotationError
from podzero.evaluation.games import StoredGame, game_title
from podzero.tools.play.drawing import drawing_of, last_squares
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.picture import BoardPicture, Marks
from podzero.tools.report.figures import ReportSection, SampleGame

MOST_GAMES = 4
"""Most games in a report, each of another pair of players."""
_TITLE = "Sample games"


def sample_games(experiment: Experiment, kept: Sequence[StoredGame]) -> ReportSection:
    """The section with one game of each pair of players of a round; empty for single-player environments."""
    if isinstance(experiment.env, GymnasiumConfig) or not kept:
        return ReportSection(_TITLE)
    try:
        env = _env(experiment.env.model_dump_json(), type(experiment.env))
    # A user's own game may not be importable here.
    except PodzeroError as error:
        return ReportSection(_TITLE, facts={"not shown": str(error)})
    replays = [replay for one in _one_of_each(kept) if (replay := _replay(cast(Hashable, env), one)) is not None]
    return ReportSection(_TITLE, replays=replays)


def _one_of_each(kept: Iterable[StoredGame]) -> list[StoredGame]:
    chosen: dict[frozenset[str], StoredGame] = {}
    for one in kept:
        chosen.setdefault(frozenset((one.game.first, one.game.second)), one)
    return list(chosen.values())[:MOST_GAMES]


@lru_cache(maxsize=1)
def _env(settings: str, kind: type[EnvConfig]) -> Env:
    # Cached, since a served report is made repeatedly.
    return make_env(in_matches(kind.model_validate_json(settings)))


@lru_cache(maxsize=4 * MOST_GAMES)
def _replay(env: Any, kept: StoredGame) -> SampleGame | None:
    """The boards of a game; None if it has no board or a move is illegal."""
    game = PlayableGame(env)
    try:
        game.restart(kept.game.moves)
    except NotationError:
        return None
    frames, numbers, ground = [], dict[str, int](), ""
    for ply in range(len(game.moves) + 1):
        game.show(ply)
        if (drawing := drawing_of(game)) is None:
            return None
        picture = BoardPicture(env.spec.name, drawing.size)
        ground = ground or picture.ground(drawing)
        # Most SVG elements stay from ply to ply: the page holds each once, and a frame is a list of their numbers.
        parts = picture.pieces(drawing, Marks(last=last_squares(game)))
        frames.append([numbers.setdefault(part, len(numbers)) for part in parts])
    title, opening = f"{kept.origin}: {game_title(kept.game)}", kept.game.opening_plies
    caption = f"{kept.game.first} moves first."
    if opening:
        caption += f" The first {opening} plies are a random opening."
    return SampleGame(title, picture.extent, ground, tuple(numbers), frames, game.names, caption)
