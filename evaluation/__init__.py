"""Evaluation: players, matches, ratings, and judgement by solvers; knows neither actors nor learner."""
