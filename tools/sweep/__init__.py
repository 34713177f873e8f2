"""Sweeps: many runs of one experiment with different settings, and a table of what they reached."""
