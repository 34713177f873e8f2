"""The driver process of a run: its loop, the supervisor of its workers, and its checkpoints."""
