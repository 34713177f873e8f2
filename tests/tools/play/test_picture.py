"""Games for two that draw themselves."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from podzero.config import SimulatorConfig
from podzero.envs import SimulatorReplay, make_env
from podzero.tools.play.command import Video, is_watched
from podzero.tools.play.drawing import drawing_of
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.picture import BoardPicture, Marks, rendered_picture, star_points

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
    game, replay = PlayableGame(make_env(nim)), SimulatorReplay(nim)
    for action in (2, 0, 4):
        game.play(action)
    assert pixels(rendered_picture(replay, game)).shape == (4, 20, 3)
    assert (pixels(rendered_picture(replay, game)) == 30).all()
    game.show(1)
    assert (pixels(rendered_picture(replay, game)) == 10).all()


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


def board(game):
    """A game's board at its start, and the function that draws it with marks."""
    drawing = drawing_of(PlayableGame(make_env(game)))
    picture = BoardPicture(game, drawing.size)
    return picture, lambda **marks: picture.svg(drawing, Marks(**marks))


def test_the_board_of_go_is_one_area_with_star_points():
    """Squares of their own would leave hairlines between them."""
    _, draw = board("go_9x9")
    assert draw().count("<rect") == 1
    assert [len(star_points(size)) for size in (7, 9, 13, 19)] == [1, 5, 9, 9]
    assert sorted(star_points(9)) == [(2, 2), (2, 6), (4, 4), (6, 2), (6, 6)]


def test_the_lines_of_go_do_not_cross_the_numbers_of_a_policy():
    picture, draw = board("go_9x9")
    x, y = picture.center((3, 4))
    below, number = draw(heat={(3, 4): 0.25}).split(f'<circle cx="{x}" cy="{y}"')[1:]
    assert "fill-opacity" not in below
    assert "fill-opacity" in number
    assert ">25</text>" in number


def test_both_colours_of_chess_pieces_are_filled():
    """An outline would show the square behind a white piece."""
    _, draw = board("gardner_chess")
    content = draw()
    assert not set("♔♕♖♗♘♙") & set(content)
    assert (content.count('fill="#fff"'), content.count("♚")) == (10, 2)
