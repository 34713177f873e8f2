"""The command line: `cli` says where each command is. Those of training, runs, experiments and clouds are here."""
