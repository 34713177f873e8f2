"""The report of a run: a self-contained HTML page made from the files of its working directory.

`record` reads a run, `figures`, `sections` and `sample_games` make the parts, `page` renders, and `server` serves them.
"""
