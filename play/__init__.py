"""Playing with people: a session of one game, its board as text and as a picture, the terminal, and the page."""
