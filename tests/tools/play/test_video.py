"""Videos of episodes, read again by another program's eyes: OpenCV's and Pillow's decoders."""

import sys
from functools import partial
from itertools import chain

import cv2
import numpy as np
import pytest
from PIL import Image

from podzero.core.errors import ConfigError
from podzero.tools.play import video
from podzero.tools.play.video import WIDTH, Episode, check_file, number, pictures, write_video


@pytest.fixture
def shown():
    """Makes the pictures of an episode of three steps whose frames are red, green, blue and white."""

    def make(size=(40, 60), values=(1.5, -2.0, 0.25), steps_per_second=10.0):
        episode = Episode(3, [], [1.0, -4.0, 2.0], list(values))
        for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200), (250, 250, 250)):
            episode.add_frame(partial(np.full, (*size, 3), colour, np.uint8))
        return pictures("gymnasium/Toy-v0", episode, 0.5, steps_per_second)

    return make


def decoded(path):
    """The pictures of a video `[N, H, W, 3]` in RGB, and its pictures per second."""
    capture, found = cv2.VideoCapture(str(path)), []
    while (read := capture.read())[0]:
        found.append(read[1][..., ::-1])
    return np.array(found), capture.get(cv2.CAP_PROP_FPS)


def middle(picture):
    return np.asarray(picture)[150, WIDTH // 2].astype(int)


def test_a_video_shows_each_frame_at_the_speed_of_the_environment_and_its_end_longer(shown, tmp_path):
    file = tmp_path / "new" / "one.mp4"
    check_file(file)
    write_video(file, shown(), 10.0)
    seen, speed = decoded(file)
    assert speed == 10.0
    for picture, colour in zip(seen, [(200, 0, 0), (0, 200, 0), (0, 0, 200), *[(250, 250, 250)] * 11], strict=True):
        assert abs(middle(picture) - colour).max() < 30
    assert [path.name for path in file.parent.iterdir()] == ["one.mp4"]


def test_episodes_follow_one_another(shown, tmp_path):
    write_video(tmp_path / "two.mp4", chain(shown(), shown()), 10.0)
    assert len(decoded(tmp_path / "two.mp4")[0]) == 28


def test_a_gif_leaves_out_steps_of_a_fast_environment(shown, tmp_path):
    write_video(tmp_path / "slow.gif", shown(), 10.0)
    with Image.open(tmp_path / "slow.gif") as slow:
        assert (slow.n_frames, slow.info["duration"]) == (4, 100)
        assert (middle(slow.convert("RGB")) == (200, 0, 0)).all()
    write_video(tmp_path / "fast.gif", shown(), 50.0)
    with Image.open(tmp_path / "fast.gif") as fast:
        assert (fast.n_frames, fast.info["duration"]) == (3, 40)


@pytest.mark.parametrize("limit", ["MAX_FRAMES", "MAX_BYTES"])
def test_frames_beyond_the_limit_are_not_even_rendered(limit, monkeypatch):
    monkeypatch.setattr(video, limit, 1)
    episode = Episode(3, [], [], [])
    episode.add_frame(lambda: np.zeros((4, 4, 3), np.uint8))
    episode.add_frame(lambda: pytest.fail("rendered"))
    assert len(episode.frames) == 1


def test_curves_are_drawn_up_to_the_step(shown):
    seen = [np.asarray(picture).astype(int) for picture in shown()][:4]
    assert len({picture.shape for picture in seen}) == 1
    assert seen[0].shape[0] % 2 == 0
    blue = [((picture[..., 2] - picture[..., 0] > 100)[-200:]).sum() for picture in seen]
    green = [((picture[..., 1] - picture[..., 0] > 100)[-90:]).sum() for picture in seen]
    assert blue[0] < blue[1] < blue[2]
    assert green[0] < green[1] < green[2] < green[3]
    assert next(shown(values=())).height < seen[0].shape[0] - 90


@pytest.mark.parametrize(("size", "drawn"), [((10, 10), 520), ((400, 600), 600), ((900, 900), 520), ((30, 2000), 600)])
def test_frames_of_any_size_fit(shown, size, drawn):
    picture = np.asarray(next(shown(size)))
    assert picture.shape[1] == WIDTH
    red = (picture[..., 0] > 150) & (picture[..., 1] < 60)
    assert abs(red.any(axis=0).sum() - drawn) <= 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("episode.avi", r"videos are written as .mp4 or .gif, not as '.avi'"),
        ("", "this is a folder; name a file in it"),
        ("file/episode.gif", "cannot be written: Not a directory|cannot be written: File exists"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_anything_is_played(tmp_path, name, message):
    (tmp_path / "file").write_text("")
    path = tmp_path / name
    with pytest.raises(ConfigError, match=message):
        check_file(path)


def test_a_missing_encoder_is_named(shown, tmp_path, monkeypatch):
    monkeypatch.setattr(cv2, "VideoWriter_fourcc", lambda *letters: 0x31637661)  # H.264, which OpenCV's wheels lack
    (tmp_path / "old.mp4").write_text("an older video")
    with pytest.raises(ConfigError, match=r"VP9.*\.gif"):
        write_video(tmp_path / "old.mp4", shown(), 10.0)
    assert (tmp_path / "old.mp4").read_text() == "an older video"
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ConfigError, match=r"\.mp4 .*--extra envs"):
        check_file(tmp_path / "new.mp4")
    check_file(tmp_path / "new.gif")


def test_numbers_have_about_three_digits():
    assert [number(value) for value in (0, -0.001, 12.345, -1234.5)] == ["0.00", "0.00", "12.3", "-1,234"]
