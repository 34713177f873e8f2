"""The report of a run: one self-contained HTML page, made from the files of its working directory.

`record` reads a run, `overview`, `strength`, `training` and `sample_games` make the sections, `page` renders them, and
`server` keeps the page up to date.
"""
