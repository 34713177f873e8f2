"""Videos of episodes, read again by another program's eyes: OpenCV's and Pillow's decoders."""

import sys

import cv2
import numpy as np
import pytest
from PIL import Image

from podzero.core.errors import ConfigError
from podzero.tools.play.episode import FrameLog, PlayedEpisode, WatchedAgent, described, number
from podzero.tools.play.video import WIDTH, check_file, pictures, write_video

SUBJECT = WatchedAgent("runs/x@7", "gymnasium/Toy-v0", 0.5, 10.0)


@pytest.fixture
def episode():
    """Makes an episode of three steps whose frames are red, green, blue and white."""

    def make(size=(40, 60), values=(1.5, -2.0, 0.25), steps_per_second=10.0, seed=3):
        log = FrameLog()
        for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200), (250, 250, 250)):
            log.add(np.full((*size, 3), colour, np.uint8))
        known = None if values is None else np.array(values)
        subject = SUBJECT._replace(steps_per_second=steps_per_second)
        return PlayedEpisode(subject, seed, log.frames, known, np.array([1.0, -4.0, 2.0]))

    return make


def decoded(path):
    """The pictures of a video `[N, H, W, 3]` in RGB, and its pictures per second."""
    video, found = cv2.VideoCapture(str(path)), []
    while (read := video.read())[0]:
        found.append(read[1][..., ::-1])
    return np.array(found), video.get(cv2.CAP_PROP_FPS)


def middle(picture):
    return np.asarray(picture)[150, WIDTH // 2].astype(int)


def test_a_video_shows_each_frame_at_the_speed_of_the_environment_and_its_end_longer(episode, tmp_path):
    file = tmp_path / "new" / "one.mp4"
    check_file(file)
    count = write_video(file, [episode()])
    shown, speed = decoded(file)
    assert (count, len(shown), speed) == (4 + 10, 4 + 10, 10.0)
    for picture, colour in zip(shown, [(200, 0, 0), (0, 200, 0), (0, 0, 200), *[(250, 250, 250)] * 11], strict=True):
        assert abs(middle(picture) - colour).max() < 30
    assert [path.name for path in file.parent.iterdir()] == ["one.mp4"]


def test_episodes_follow_one_another(episode, tmp_path):
    assert write_video(tmp_path / "two.mp4", iter([episode(), episode(seed=4)])) == 28
    assert len(decoded(tmp_path / "two.mp4")[0]) == 28


def test_a_gif_leaves_out_steps_of_a_fast_environment(episode, tmp_path):
    write_video(tmp_path / "slow.gif", [episode()])
    with Image.open(tmp_path / "slow.gif") as slow:
        assert slow.info["duration"] == 100
        assert (middle(slow.convert("RGB")) == (200, 0, 0)).all()
    assert write_video(tmp_path / "fast.gif", [episode(steps_per_second=50.0)]) == 27
    with Image.open(tmp_path / "fast.gif") as fast:
        assert fast.info["duration"] == 40


def test_curves_are_drawn_up_to_the_step(episode):
    shown = [np.asarray(picture).astype(int) for picture in pictures(episode())]
    assert len({picture.shape for picture in shown}) == 1
    assert shown[0].shape[0] % 2 == 0
    blue = [((picture[..., 2] - picture[..., 0] > 100)[-220:]).sum() for picture in shown]
    green = [((picture[..., 1] - picture[..., 0] > 100)[-110:]).sum() for picture in shown]
    assert blue[0] < blue[1] < blue[2]
    assert green[0] < green[1] < green[2] < green[3]
    without = next(pictures(episode(values=None)))
    assert without.height < shown[0].shape[0] - 90


@pytest.mark.parametrize(("size", "drawn"), [((10, 10), 520), ((400, 600), 600), ((900, 900), 520), ((30, 2000), 600)])
def test_frames_of_any_size_fit(episode, size, drawn):
    picture = np.asarray(next(pictures(episode(size))))
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


def test_a_missing_encoder_is_named(episode, tmp_path, monkeypatch):
    monkeypatch.setattr(cv2, "VideoWriter_fourcc", lambda *letters: 0x31637661)  # H.264, which OpenCV's wheels lack
    (tmp_path / "old.mp4").write_text("an older video")
    with pytest.raises(ConfigError, match=r"VP9.*\.gif"):
        write_video(tmp_path / "old.mp4", [episode()])
    assert (tmp_path / "old.mp4").read_text() == "an older video"
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ConfigError, match=r"\.mp4 .*--extra envs"):
        check_file(tmp_path / "new.mp4")
    check_file(tmp_path / "new.gif")


def test_a_step_in_words_and_as_a_chart(episode):
    from podzero.tools.play.episode_page import chart_of, cursor_at  # here: NiceGUI takes a second to import

    one = episode()
    assert described(one, 0) == "step 0 of 3, value 1.50, return 0.00"
    assert described(one, 2) == "step 2 of 3, value 0.25, reward -4.00, return -3.00"
    assert described(one, 3) == "step 3 of 3, reward 2.00, return -1.00"
    assert [number(value) for value in (0, -0.001, 12.345, -1234.5)] == ["0.00", "0.00", "12.3", "-1,234"]
    value, returns = chart_of(one)["series"]
    assert value["data"] == [[0, 1.5], [1, -2.0], [2, 0.25]]
    assert returns["data"] == [[0, 0.0], [1, 1.0], [2, -3.0], [3, -1.0]]
    assert "discounted by 0.5 per step" in chart_of(one)["title"][0]["text"]
    assert [series["id"] for series in cursor_at(one, 2)["series"]] == [value["id"], returns["id"]]
    assert [series["id"] for series in chart_of(episode(values=None))["series"]] == ["return"]
