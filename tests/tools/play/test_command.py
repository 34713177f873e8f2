"""`podzero play` where people watch: which options fit, where the video goes, what is told of it."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from podzero.config import SimulatorConfig, load
from podzero.envs import make_env, rendering
from podzero.evaluation.evaluate import evaluate
from podzero.launch import cli
from podzero.tools.play import video as watching
from podzero.tools.play.command import Video, is_watched
from podzero.tools.play.game import PlayableGame


@pytest.fixture
def play(monkeypatch, capsys):
    """Runs `podzero play ARGUMENTS`; gives its exit code, its output and its errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["podzero", "play", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def test_a_video_is_written_into_the_working_directory_and_told_as_json(play, cartpole):
    code, out, _ = play(cartpole, "--seed", 5, "--json")
    told = json.loads(out)
    file = Path(cartpole) / "videos" / "step-7-seed-5.mp4"
    assert (code, told["file"]) == (0, str(file))
    assert file.stat().st_size > 10_000
    result = evaluate(cartpole, games=1, seed=5)
    assert (told["returns"], told["steps"]) == ([result["mean_return"]], [result["mean_length"]])
    assert (sum(told["rewards"][0]), len(told["values"][0])) == (result["mean_return"], result["mean_length"])
    assert (told["game"], told["player"]) == (result["game"], result["player"])
    assert told["frames"] == [told["steps"][0] + 1]


def test_several_episodes_have_the_next_seeds(play, cartpole, tmp_path):
    code, out, _ = play(cartpole, "--games", 2, "--to", tmp_path / "two.gif", "--simulations", 1, "--json")
    told = json.loads(out)
    assert (code, len(told["returns"]), told["seed"]) == (0, 2, 0)
    assert (tmp_path / "two.gif").read_bytes().startswith(b"GIF89a")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["random", "--game", "cartpole"], "'random' has no working directory of yours.*--to episode.mp4"),
        (["random", "--game", "cartpole", "--to", "x.avi"], "written as .mp4 or .gif"),
        (["random", "--game", "cartpole", "--second"], "shows a single agent, in a video: remove --second"),
        (["random", "solver", "--game", "cartpole", "--web"], "in a video: remove --web solver"),
        (["random", "--game", "tic_tac_toe", "--games", "2"], "tic_tac_toe is played against a person.*--games"),
        (["solver", "--game", "cartpole", "--to", "x.gif"], "'solver' cannot act in gymnasium/CartPole-v1"),
    ],
)
def test_options_that_do_not_fit_are_refused(play, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = play(*arguments)
    assert (code, out) == (2, "")
    assert re.search(message, err)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_of_the_environment_names_its_extra(play, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    code, _, err = play("random", "--game", "cartpole", "--to", tmp_path / "x.gif")
    assert code == 2
    assert "rendering needs a package that is not installed" in err
    assert "uv sync --inexact --extra envs" in err


def test_without_pillow_the_extra_is_named(play, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    code, _, err = play("random", "--game", "cartpole", "--to", tmp_path / "x.gif")
    assert (code, "uv sync --inexact --extra envs" in err) == (2, True)


def test_an_environment_without_pictures_is_refused(play, tmp_path, monkeypatch):
    def without(config):
        return rendering(config.model_copy(update={"id": "toys/Toy-v0", "module": "gymnasium_toys"}))

    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "envs")
    monkeypatch.setattr(watching, "rendering", without)
    code, _, err = play("random", "--game", "pendulum", "--to", tmp_path / "x.gif")
    assert code == 2
    assert "toys/Toy-v0 cannot be shown: it has no render mode 'rgb_array'" in err


def test_people_watch_environments_and_play_games():
    nothing = Video()
    assert is_watched(SimulatorConfig(name="gymnasium_simulator", id="CartPole-v1", reward_scale=0.002), nothing)
    two = SimulatorConfig(name="open_spiel", id="connect_four")
    assert not is_watched(two, nothing)
    assert not is_watched(two, Video(seed=1))
    assert not is_watched("tic_tac_toe", Video(seed=1))


def test_a_game_for_three_is_not_shown(play, three_players):
    code, _, err = play("random", "--game", three_players)
    assert code
    assert re.search("3 players.*podzero evaluate", err)


@pytest.mark.parametrize(("game", "square"), [("othello", (0, 1)), ("hex", (1, 0))])
def test_owners_are_shown_where_they_are_for_both_players(game, square):
    page = pytest.importorskip("podzero.tools.play.page")
    env = make_env(load(game).env)
    played, owned = PlayableGame(env), np.zeros(np.prod(env.spec.observation_shape[:2]), np.float32)
    owned[1] = 0.5
    assert page.owners_of(played, owned)[0, 1] == 0.5
    played.play(played.legal[0])
    assert {at: owner for at, owner in page.owners_of(played, owned).items() if owner} == {square: -0.5}


@pytest.mark.parametrize(("arguments", "game"), [([], "connect_four"), (["tic_tac_toe"], "tic_tac_toe")])
def test_the_demo_is_a_page_against_an_agent_of_the_zoo_in_the_browser(command, monkeypatch, arguments, game):
    page, shown = pytest.importorskip("podzero.tools.play.page"), []
    monkeypatch.setattr(page, "serve", lambda parts, where, opens: shown.append((parts, opens)))
    assert command("demo", *arguments)[0] == 0
    parts, opens = shown[0]
    assert (parts.env.spec.name, [*parts.players], opens) == (game, [f"zoo:{game}"], True)
    assert parts.look is None  # its network does not predict who owns a square
    assert command("play", f"zoo:{game}", "--web")[0] == 0
    assert shown[1][-1] is False


def test_the_demo_of_an_agent_that_does_not_come_with_podzero_is_refused(command):
    code, _, err = command("demo", "go_9x8")
    assert code == 2
    assert "no agent 'go_9x8' comes with podzero (did you mean 'go_9x9'?)" in err
    code, _, err = command("play", "zoo:tic_tac_toe", "--open")
    assert code == 2
    assert "--open" in err
