"""Evaluation: players, matches, ratings, and judgement by solvers. Knows neither actors nor learner.

What the verbs `evaluate` and `analyze` need lies in `podzero.evaluation.evaluate`.
"""

from podzero.evaluation.arena import Arena as Arena
from podzero.evaluation.arena import play_match as play_match
from podzero.evaluation.episodes import EpisodesResult as EpisodesResult
from podzero.evaluation.episodes import baseline as baseline
from podzero.evaluation.episodes import play_episodes as play_episodes
from podzero.evaluation.evaluator import Evaluator as Evaluator
from podzero.evaluation.games import MatchResult as MatchResult
from podzero.evaluation.judge import Judge as Judge
from podzero.evaluation.judge import JudgeResult as JudgeResult
from podzero.evaluation.matches import MatchRounds as MatchRounds
from podzero.evaluation.players import NetworkPlayers as NetworkPlayers
from podzero.evaluation.players import Player as Player
from podzero.evaluation.players import RandomPlayer as RandomPlayer
from podzero.evaluation.players import SearchPlayer as SearchPlayer
from podzero.evaluation.players import SolverPlayer as SolverPlayer
from podzero.evaluation.players import mcts_player as mcts_player
from podzero.evaluation.positions import judged_positions as judged_positions
from podzero.evaluation.ratings import Ladder as Ladder
from podzero.evaluation.ratings import LadderError as LadderError
from podzero.evaluation.ratings import Rating as Rating
from podzero.evaluation.rounds import make_rounds as make_rounds
from podzero.evaluation.solvers import SOLVED as SOLVED
from podzero.evaluation.solvers import Solver as Solver
from podzero.evaluation.solvers import make_solver as make_solver
from podzero.evaluation.who import resolve as resolve
