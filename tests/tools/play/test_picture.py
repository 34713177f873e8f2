"""Games for two that draw themselves."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from podzero.config import SimulatorConfig
from podzero.envs import make_env
from podzero.tools.play.command import Video, is_watched
from podzero.tools.play.drawing import drawing_of
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.picture import BoardPicture, Marks, OwnPicture

NIM = '''
import numpy as np


class Nim:
    """A row of five cells; who fills the last one wins. The picture is as bright as cells are filled."""

    num_actions, players = 5, 2

    def reset(self, seed):
        self.filled, self.mover = np.zeros(5, bool), 0

    def step(self, action):
        self.filled[action] = True
        self.mover = 1 - self.mover

    def legal_actions(self):
        return np.flatnonzero(~self.filled)

    def observation(self):
        return np.stack([self.filled, np.full(5, self.mover == 0)], axis=-1)[None]

    def player(self):
        return self.mover

    def done(self):
        return bool(self.filled.all())

    def rewards(self):
        return ((1.0, -1.0) if self.mover else (-1.0, 1.0)) if self.done() else (0.0, 0.0)

    def clone(self):
        twin = Nim()
        twin.filled, twin.mover = self.filled.copy(), self.mover
        return twin

    def render(self):
        return np.full((4, 20, 3), 10 * self.filled.sum(), np.uint8)
'''


@pytest.fixture
def nim(tmp_path, monkeypatch):
    (tmp_path / "nim.py").write_text(NIM)
    monkeypatch.chdir(tmp_path)
    return SimulatorConfig(name="simulator", id="nim.py:Nim", max_plies=5)


def pixels(address):
    kind, _, data = address.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_the_position_that_is_shown_is_drawn_by_its_game(nim):
    game, picture = PlayableGame(make_env(nim)), OwnPicture(nim)
    for action in (2, 0, 4):
        game.play(action)
    assert pixels(picture(game)).shape == (4, 20, 3)
    assert (pixels(picture(game)) == 30).all()
    game.show(1)
    assert (pixels(picture(game)) == 10).all()


def test_marks_and_clicks_fit_a_picture_without_a_margin(nim):
    game = PlayableGame(make_env(nim))
    board = BoardPicture("nim", drawing_of(game).size, margin=0)
    assert board.extent == (300, 60)
    assert board.square_at(130, 59) == (0, 2)
    content = board.over("data:x", Marks(heat={(0, 2): 0.5}, last=[(0, 1)]))
    assert content.startswith('<image href="data:x" width="300" height="60"')
    assert (content.count("<circle"), content.count("<rect")) == (1, 1)


def test_games_for_two_are_played_and_not_watched(nim):
    assert not is_watched(nim, Video())
    assert not is_watched(nim, Video(seed=1))
