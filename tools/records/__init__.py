"""Imports recorded games, from SGF, PGN or JSON lines, as positions that a learner trains on."""

from podzero.tools.records.command import import_games as import_games
