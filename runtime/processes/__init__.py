"""The processes of a run, one file for each kind: what travels to its node, and what it builds and runs there."""
