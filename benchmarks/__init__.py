"""Each stage of the loop measured beside its own limit, in one run."""
