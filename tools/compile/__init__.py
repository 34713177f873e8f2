"""Ahead-of-time compilation: whether an experiment fits a TPU slice, and its cost there, without a TPU."""
