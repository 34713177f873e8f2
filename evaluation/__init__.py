"""Evaluation: players, matches, ratings, and judgement by solvers."""
