"""Ahead-of-time compilation: whether an experiment fits a TPU slice, and its cost there, without a TPU.

`programs` lowers the programs of a run, `compiled` compiles one, `hlo` and `cost` count what it does, `rates` and
`waiting` say what that means for a run, `command` is the work of `podzero compile`.
"""
