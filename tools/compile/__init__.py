"""Ahead-of-time compilation: whether an experiment fits a TPU slice, and its cost there, without a TPU.

`programs` lowers the programs of a run, `hlo` and `cost` count what one does, `compiled` says what that means for a
run, `waiting` how long a learner waits for moves, and `command` is the work of `podzero compile`.
"""
