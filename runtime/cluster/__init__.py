"""Ray: nodes and their environments, placement, remote actors, and checks before a run starts."""
