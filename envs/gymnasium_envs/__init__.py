"""Vectors of gymnasium environments.

This package does not import JAX. The code that the processes of `vectorization: async` run is pickled by value, so that
they import only gymnasium and the environment itself.
"""
