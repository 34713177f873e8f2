"""Names of actions, as people and other programs write moves, and FEN for chess positions."""

from podzero.envs.notation.chess import fen_of as fen_of
from podzero.envs.notation.chess import pieces_of as pieces_of
from podzero.envs.notation.chess import state_of as state_of
from podzero.envs.notation.chess import white_to_move as white_to_move
from podzero.envs.notation.names import LineNotation as LineNotation
from podzero.envs.notation.names import Notation as Notation
from podzero.envs.notation.names import NotationError as NotationError
from podzero.envs.notation.names import names_in_text as names_in_text
from podzero.envs.notation.registry import notation_of as notation_of
from podzero.envs.notation.shogi import SHOGI_GAMES as SHOGI_GAMES
from podzero.envs.notation.shogi import ShogiGame as ShogiGame
from podzero.envs.notation.shogi import square_seen_first as square_seen_first
