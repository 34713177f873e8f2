"""Files that outlive a process: working directories, their locks and checkpoints, and the agents that a name finds."""
