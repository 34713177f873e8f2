"""Stages of the loop, each measured beside its own limit: `podzero bench`."""
