"""Players for people and other programs: games in the terminal and on a page, and the protocols of engines."""
