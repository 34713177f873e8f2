"""The Python interface for notebooks and programs, see `docs/python.md`; `import podzero` exports its names."""
