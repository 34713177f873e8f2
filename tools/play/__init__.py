"""Games and episodes for people, and engines for other programs by GTP and UCI."""
