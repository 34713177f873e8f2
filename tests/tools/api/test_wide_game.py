"""Tree search without a network in a game with many moves."""

import numpy as np

import podzero

ACTIONS, WINNING = 82, 57


class Wide:
    """One move of the first player, as many as on a 9x9 board of go: one of them wins, the others draw."""

    num_actions, players = ACTIONS, 2

    def reset(self, seed):
        self.played = None

    def step(self, action):
        self.played = action

    def legal_actions(self):
        return np.arange(ACTIONS if self.played is None else 0)

    def observation(self):
        return np.array([self.played is not None])

    def player(self):
        return 0

    def done(self):
        return self.played is not None

    def rewards(self):
        return (1.0, -1.0) if self.played == WINNING else (0.0, 0.0)

    def clone(self):
        twin = Wide()
        twin.played = self.played
        return twin


def test_of_82_moves_each_is_visited_and_the_one_that_wins_is_played(tmp_path):
    game = tmp_path / "wide.yaml"
    game.write_text(f'env: {{name: simulator, id: "{__file__}:Wide", max_plies: 1}}\nnetwork: {{name: mlp}}\n')
    found = podzero.load("mcts:200", game=str(game)).search()
    assert found.visits.min() >= 1
    assert found.action == WINNING
