"""Engines outside of podzero as players: GNU Go by GTP, Stockfish and Fairy-Stockfish by UCI."""

from podzero.evaluation.engines.players import EngineContestant as EngineContestant
from podzero.evaluation.engines.programs import engine_contestant as engine_contestant
