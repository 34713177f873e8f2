"""Imports recorded games, from SGF, PGN or JSON lines, as positions that a learner trains on."""
