"""Games. `make_env` is the door; everything behind it is JAX and NumPy only."""

from podzero.envs.pgx_games import PgxGame as PgxGame
from podzero.envs.registry import GAMES as GAMES
from podzero.envs.registry import make_env as make_env
