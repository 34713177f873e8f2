"""Rules of board games written for vector units: arithmetic on the bits of boards, without gathers and scatters.

Each game agrees with that of pgx (Koyamada et al. 2023, https://arxiv.org/abs/2303.17503) ply by ply; in Hex, pgx does
not transpose the board for the second player.
"""

from collections.abc import Callable
from functools import partial

from podzero.envs.boards.backgammon import Backgammon
from podzero.envs.boards.chess import CHESS_SIZES, Chess
from podzero.envs.boards.connect_four import ConnectFour
from podzero.envs.boards.go import GO_GAMES as GO_GAMES
from podzero.envs.boards.go import Go
from podzero.envs.boards.hex import Hex
from podzero.envs.boards.othello import Othello
from podzero.envs.boards.play_2048 import Play2048
from podzero.envs.boards.rules import BoardGame

BOARD_GAMES: dict[str, Callable[[], BoardGame]] = {
    "connect_four": ConnectFour,
    "othello": Othello,
    "hex": Hex,
    **{name: partial(Chess, size) for name, size in CHESS_SIZES.items()},
    **{name: partial(Go, size) for name, size in GO_GAMES.items()},
}
"""The games without chance."""

CHANCE_GAMES: dict[str, Callable[[float], Play2048 | Backgammon]] = {"2048": Play2048, "backgammon": Backgammon}
"""The games of chance, made with a factor on their rewards."""
