"""Trained players for people and other programs: engine protocols."""
