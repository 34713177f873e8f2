"""Exports the networks of trained agents to files for other programs: `agent` writes and checks them."""
