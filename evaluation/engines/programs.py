"""The engines that podzero knows, and how they are set up for its rules."""

from __future__ import annotations

from collections.abc import Callable

from podzero.envs.boards.go import KOMI
from podzero.envs.notation import notation_of
from podzero.errors import ConfigError
from podzero.evaluation.engines.gtp import GtpEngine
from podzero.evaluation.engines.players import Engine, EngineContestant
from podzero.evaluation.engines.process import EngineFailed
from podzero.evaluation.engines.uci import UciEngine
from podzero.player_names import EnginePlayer, engine_program
from podzero.types import EnvSpec

NODES = 100_000
"""Positions that a chess engine searches for a move, at all levels."""
MOVE_TIMEOUT_S = 120.0
_HASH_MIB = 16


def engine_contestant(name: str, player: EnginePlayer, spec: EnvSpec) -> EngineContestant:
    """Makes the player with a name, which stands for `player`, and starts its engine.

    Raises:
      ConfigError: the engine does not play this game, is not installed, or cannot be used.
    """
    program = engine_program(name, player, spec.name)
    start = _gnugo(program, player.level, spec) if player.kind == "gnugo" else _stockfish(program, player, spec)
    try:
        return EngineContestant(name, start)
    except EngineFailed as error:
        raise ConfigError(f"player '{name}': {error}") from None


def _gnugo(program: str, level: int, spec: EnvSpec) -> Callable[[], Engine]:
    """GNU Go under podzero's rules: area scoring in which all stones left on the board are alive, positional superko,
    no suicide.
    """
    rules = ("--chinese-rules", "--capture-all-dead", "--positional-superko", "--forbid-suicide")
    command = (program, "--mode", "gtp", "--quiet", "--level", str(level), "--seed", "1", *rules)
    setup = (f"boardsize {spec.observation_shape[0]}", f"komi {KOMI}")
    return lambda: GtpEngine(command, notation_of(spec), setup, MOVE_TIMEOUT_S)


def _stockfish(program: str, player: EnginePlayer, spec: EnvSpec) -> Callable[[], Engine]:
    variants = {"chess": "chess", "gardner_chess": "gardner"}
    options = {"Threads": "1", "Hash": str(_HASH_MIB), "Skill Level": str(player.level)}
    if player.kind == "fairy-stockfish":
        options = {"UCI_Variant": variants[spec.name], **options}
    return lambda: UciEngine((program,), notation_of(spec), options, NODES, MOVE_TIMEOUT_S)
