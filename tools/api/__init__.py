"""podzero in Python, for notebooks and programs: see `docs/python.md`. `import podzero` gives its names."""
