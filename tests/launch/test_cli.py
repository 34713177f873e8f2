"""The command line: messages, exit codes, and that nothing heavy is imported before it is needed."""

import importlib.metadata
import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
import yaml

from podzero.config import load, parse
from podzero.files.players import parse_player
from podzero.files.workdir import Workdir
from podzero.launch import cli
from podzero.launch.experiments import card
from podzero.runtime.monitoring.status import RunStatus, write_status
from podzero.runtime.start import last_checkpoint_failed
from podzero.runtime.train import End
from podzero.tools.commands import printing
from podzero.tools.commands.printing import progress
from podzero.tools.play.searching import STEP

PODZERO = os.path.join(os.path.dirname(sys.executable), "podzero")


def test_configs_lists_every_experiment_with_its_card(command):
    code, out, _ = command("configs", "--json")
    assert code == 0
    assert out.count("\n") == 1
    listed = {entry["name"]: entry["card"] for entry in json.loads(out)["configs"]}
    assert "podzero train connect_four" in listed["connect_four"]
    assert not any(line.startswith("#") for line in listed["connect_four"].splitlines())
    code, out, _ = command("configs")
    assert code == 0
    assert all(name in out for name in listed)
    general, _, for_slices = out.partition("for TPU slices")
    assert "slices/" not in general
    assert "slices/go_9x9_v5e_8" in for_slices


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "conect_four"], "did you mean 'connect_four'"),
        (["train", "nothere.yaml"], "no such file: nothere.yaml"),
        (["train", "slices/go_9x9_v5e16"], "did you mean 'slices/go_9x9_v5e_16'"),
        (["train", "connect_four", "learner.batch_sise=3"], "did you mean 'batch_size'"),
        (["train", "connect_four", "env.name=conect_four"], "did you mean 'connect_four'"),
        (["bench", "learner", "--config", "nothing"], "no experiment 'nothing'"),
        (["bench", "selfplay", "go_9x9"], "`podzero bench selfplay --config go_9x9`"),
        (["bench", "selfplay", "go_9x9.json"], "expected section.field=value"),
        (["compile", "hex", "--scaling", "v5e-4"], "expected at least two slices"),
        (["evaluate", "nowhere"], "unknown player 'nowhere'"),
        (["analyze", "mcts:"], "expected a positive number of simulations"),
        (["settings", "lerner"], "did you mean 'learner'"),
        (["status", "/nowhere"], "it holds no experiment.yaml"),
        (["runs", "/nowhere"], "no such directory: /nowhere"),
        (["train", "cartpole", "--workdir", "hdfs://b/x"], "hdfs://b/x is not a folder"),
        (["evaluate", "hdfs://b/x"], "hdfs://b/x is not a folder"),
        (["runs", "gs://b/x"], "gs://b/x is not a folder"),
        (["tournament", "random", "mcts:2", "--game", "hex", "--workdir", "gs://b/x"], "gs://b/x is not a folder"),
        (["launch", "gke", "hex", "--workdir", "gs://b/x"], "gs://b/x is not a folder"),
        (["launch", "gke", "hex", "--folder", "gs://b/x"], "gs://b/x is not a folder"),
    ],
)
def test_a_user_error_is_one_message_and_code_2(command, arguments, words):
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("podzero: ")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["tarin"], ["bench", "everything"], ["evaluate", "x", "--games", "0"], ["train"]]
)
def test_a_usage_error_is_code_2(command, arguments):
    code, _, err = command(*arguments)
    assert code == 2
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["evaluate", "nowhere"], "ConfigError"),
        (["status", "/nowhere"], "WorkdirError"),
        (["evaluate"], "MissingParameter"),
        (["configs", "--wrong"], "NoSuchOption"),
    ],
)
def test_errors_are_one_json_object_if_json_is_asked_for(command, arguments, kind):
    code, out, err = command(*arguments, "--json")
    assert (code, err) == (2, "")
    assert out.count("\n") == 1
    answer = json.loads(out)
    assert set(answer) == {"error", "kind"}
    assert answer["kind"] == kind


def test_the_contract_of_an_environment_is_checked(command):
    game = f"{Path(__file__).parents[2] / 'configs' / 'own_game.py'}:Domineering"
    code, out, _ = command("check-env", game, "--games", "2", "--json")
    assert code == 0
    assert json.loads(out)["name"] == "simulator/Domineering"


def test_a_class_that_is_no_environment_is_refused(command):
    code, _, err = command("check-env", "collections:Counter")
    assert code == 2
    assert "Counter" in err


def test_an_unexpected_error_keeps_its_traceback(monkeypatch):
    def fail(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr("podzero.launch.train.find_start", fail)
    monkeypatch.setattr(sys, "argv", ["podzero", "train", "x"])
    with pytest.raises(RuntimeError, match="a defect"):
        cli.main()


def test_a_run_that_has_ended_names_commands_that_go_on(command, tmp_path, monkeypatch):
    """With the names of the directory as they were chosen; each is accepted by the command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("podzero.runtime.train.train", lambda *_: End("stop.steps=5 is reached", signal=0))
    monkeypatch.setenv("HUB_KEY", "secret")
    code, out, _ = command("train", "tic_tac_toe", "seed=1", "stop.steps=5", "--view", "plain", "--env", "HUB_KEY")
    assert code == 0
    assert out.startswith("New run in runs/tic_tac_toe-seed1, named after what differs from tic_tac_toe: seed=1.\n")
    Workdir("runs/tic_tac_toe-seed1").open(load("tic_tac_toe", ["seed=1", "stop.steps=5"]))
    assert "\nEvaluate it with: podzero evaluate runs/tic_tac_toe-seed1\n" in out
    assert parse_player("runs/tic_tac_toe-seed1").step is None
    again = out.splitlines()[-1].removeprefix("Continue it with: podzero ").split()
    assert again[:2] == ["train", "runs/tic_tac_toe-seed1"]
    assert again[-2:] == ["--env", "HUB_KEY"]
    code, out, _ = command(*again, "--check")
    assert (code, parse(yaml.safe_load(out), "printed").stop.steps) == (0, 10)


@pytest.mark.parametrize(
    ("variable", "options", "joined"),
    [
        ("head:6379", [], "head:6379"),
        ("head:6379", ["--address", "other:1"], "other:1"),
        ("head:6379", ["--address", "local"], None),
        ("local", [], None),
        ("", [], None),
    ],
)
def test_a_run_joins_the_cluster_of_ray_address_unless_an_option_says_otherwise(
    command, tmp_path, monkeypatch, variable, options, joined
):
    found = []
    monkeypatch.setenv("RAY_ADDRESS", variable)
    monkeypatch.setattr(
        "podzero.runtime.train.train", lambda *given: found.append(given[2]) or End("the test is over", signal=0)
    )
    code, _, _ = command("train", "tic_tac_toe", "--workdir", str(tmp_path / "run"), "--view", "plain", *options)
    assert (code, found) == (0, [joined])


@pytest.mark.parametrize(("ended", "code"), [(0, 0), (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_run_that_a_signal_has_ended_is_no_success(command, tmp_path, monkeypatch, ended, code):
    """Else Kubernetes would count its job as complete."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("podzero.runtime.train.train", lambda *_: End("over", ended))
    assert command("train", "tic_tac_toe", "--view", "plain")[0] == code


def test_a_run_without_its_last_checkpoint_is_code_3(command, tmp_path, monkeypatch):
    def fail(*_):
        raise last_checkpoint_failed("stop.steps=5 is reached", OSError(28, "No space left"), Workdir(tmp_path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("podzero.runtime.train.train", fail)
    code, _, err = command("train", "tic_tac_toe", "--view", "plain")
    assert code == 3
    assert "No space left" in err
    assert f"podzero train {tmp_path}" in err


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_ctrl_c_is_code_130(command, monkeypatch, options):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("podzero.tools.bench.cli.load", interrupt)
    code, out, err = command("bench", "learner", *options)
    assert (code, out) == (130, "")
    assert "Traceback" not in err


def test_help_and_refusals_import_nothing_heavy():
    """What makes them fast, on any machine: `import jax` alone takes seconds."""
    commands = [
        ["-h"], ["--version"], ["configs"], ["settings", "replay"], ["train", "-h"],
        ["train", "conect_four"], ["train", "hex", "a.b=1"], ["train", "connect_four", "--check"],
        ["evaluate", "nowhere"], ["evaluate", "random", "--game", "othelo"], ["analyze", "nowhere"],
        ["bench", "selfplay", "learner.batchsize=3"], ["compile", "connect_four", "--topology", "v9"],
        ["compile", "hex", "--scaling", "v5e-4"], ["launch", "gke", "nothere"],
        ["status", "/nowhere"], ["runs", "/nowhere"], ["train", "hex", "--workdir", "hdfs://b/x"],
    ]  # fmt: skip
    script = (
        "import sys, contextlib\n"
        "from podzero.launch.cli import main\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['podzero', *command]\n"
        "    with contextlib.suppress(SystemExit):\n        main()\n"
        "    heavy = {'jax', 'ray', 'tensorflow', 'reverb', 'numpy', 'pgx', 'flax', 'gymnasium'} & set(sys.modules)\n"
        "    assert not heavy, (command, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_version_is_that_of_the_package(command):
    assert command("--version") == (0, importlib.metadata.version("podzero") + "\n", "")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_of_the_program_shows_the_first_paragraph_of_each_command(name):
    shown = typer.main.get_command(cli.app).get_command(None, name).help
    assert shown
    assert shown == cli.load_command(name).help.split("\n\n")[0]


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("arguments", [[], ["train"], ["runs"]])
def test_every_command_has_both_help_options(command, arguments, option):
    code, out, _ = command(*arguments, option)
    assert code == 0
    assert "Usage: podzero" in out


def test_help_shows_defaults_exit_codes_and_completion(command):
    assert "[default: (runs/NAME, or" in " ".join(command("train", "-h")[1].split())
    out = command("-h")[1]
    assert "MuZero" in out
    assert "Exit codes" in out
    assert "--install-completion" in out


def test_help_of_engine_says_how_many_simulations_there_are_at_most(command):
    """Four times those of training are `podzero.tools.play.searching.STEP` of them."""
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", command("engine", "-h")[1]).split())
    assert f"[default: ({STEP} times the number in training; N for mcts:N)]" in shown


def test_completion_offers_the_experiments(command, monkeypatch):
    monkeypatch.setenv("_PODZERO_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "podzero train conn")
    monkeypatch.setenv("COMP_CWORD", "2")
    expected = ["connect_four", "connect_four_gpu", "connect_four_int8", "connect_four_two_hours"]
    assert command()[1].split() == expected


def test_check_prints_the_experiment_and_makes_no_directory(command, tmp_path):
    code, out, _ = command("train", "tic_tac_toe", "seed=7", "--check", "--workdir", str(tmp_path / "run"))
    assert code == 0
    assert parse(yaml.safe_load(out), "printed") == load("tic_tac_toe", ["seed=7"])
    assert not (tmp_path / "run").exists()


def test_check_says_that_a_run_without_an_end_has_a_constant_learning_rate(command, tmp_path):
    arguments = ("train", "connect_four", "--check", "--workdir", str(tmp_path / "run"))
    assert command(*arguments)[2] == ""
    code, out, err = command(*arguments, "stop.minutes=null")
    assert code == 0
    assert "learning rate stays at 0.002" in err
    assert parse(yaml.safe_load(out), "printed") == load("connect_four", ["stop.minutes=null"])
    assert command(*arguments, "stop.minutes=null", "learner.optimizer.decay_steps=100")[2] == ""


def test_a_refused_experiment_leaves_no_directory(command, tmp_path):
    code, _, err = command("train", "cartpole", "env.id=Nope-v1", "--workdir", str(tmp_path / "run"))
    assert code == 2
    assert "unknown gymnasium id 'Nope-v1'" in err
    assert not (tmp_path / "run").exists()


def test_a_setting_that_is_a_number_or_a_word_is_described_as_both(command):
    _, out, _ = command("settings")
    assert "| `steps_per_dispatch` | integer > 0, or `auto` | `auto` |" in out


def test_settings_are_those_of_the_docs(command):
    """After a change of the settings: `podzero settings > docs/settings.md`."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "settings.md").read_text()
    assert command("settings") == (0, page, "")
    one = command("settings", "learner")[1]
    assert one.strip() in page
    assert "### learner.optimizer" in one


def test_status_shows_a_run_from_its_files(command, tmp_path):
    workdir = Workdir(tmp_path)
    workdir.open(load("tic_tac_toe"))
    write_status(workdir, RunStatus("tic_tac_toe", "ended", 300.0, step=4321, keeps_value=0.97, rated_step=4000))
    code, out, _ = command("status", str(tmp_path))
    assert code == 0
    assert out.endswith("\n")
    assert "step 4,321" in out
    assert re.search(r"ended \(status \d+ s old\)", " ".join(out.split()))
    code, out, _ = command("status", str(tmp_path), "--json")
    found = json.loads(out)
    assert (found["step"], found["keeps_value"], found["alive"], found["phase"]) == (4321, 0.97, False, "ended")


def test_a_bench_prints_one_line_with_one_object(command, monkeypatch):
    class Fake:
        @staticmethod
        def bench_learner(experiment, seconds):
            logging.getLogger("podzero.tools.bench.learner").info("compiling the train step")
            return {"ratio": 0.97, "sizes": [experiment.learner.batch_size], "seconds": seconds}

    benches = {"podzero.tools.bench.learner": Fake}
    monkeypatch.setattr("podzero.tools.bench.cli.import_module", benches.get)
    code, out, err = command("bench", "learner", "learner.batch_size=64", "--seconds", "3", "--json")
    assert (code, err) == (0, "")
    assert out == '{"ratio": 0.97, "sizes": [64], "seconds": 3.0}\n'
    code, out, err = command("bench", "learner", "--seconds", "3")
    assert "ratio    0.97" in out
    assert re.fullmatch(r"\[ *[\d.]+ s\] compiling the train step\n", err)


def test_the_card_is_the_comment_at_the_top_of_the_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("# First.\n#\n#   indented\nenv: {name: hex}\n# not the card\n")
    assert card(path) == "First.\n\n  indented"


def test_the_entry_point_is_installed():
    done = subprocess.run(
        [PODZERO, "--help"],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert "train" in done.stdout


@pytest.mark.skipif(
    any(path.name.startswith(("accel", "vfio", "nvidia", "kfd", "dxg")) for path in Path("/dev").iterdir()),
    reason="JAX may report about the accelerator",
)
def test_a_machine_without_accelerator_prints_no_errors_about_it():
    environment = {
        name: value for name, value in os.environ.items() if name not in {"JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY"}
    }
    done = subprocess.run(
        [PODZERO, "evaluate", "random", "--game", "tic_tac_toe", "--opponent", "random", "--games", "2"],
        check=False, capture_output=True, text=True, timeout=240, env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert " won, " in done.stdout


def test_progress_is_told_at_intervals(monkeypatch, capsys):
    """Every second for 25 seconds; a line is printed at the tenth and the twentieth."""
    now = [0.0]
    monkeypatch.setattr(printing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    report = progress(lambda done: f"{done} done")
    for second in range(1, 26):
        now[0] = float(second)
        report(second)
    assert capsys.readouterr().err == "10 done\n20 done\n"


@pytest.mark.parametrize(
    ("answers", "code"), [([{"id": 1, "move": 4}], 0), ([], 0), ([{"id": 1, "error": "no"}, {"id": 2, "move": 4}], 1)]
)
def test_analyze_fails_if_a_line_has_no_answer(command, monkeypatch, answers, code):
    monkeypatch.setattr("podzero.evaluation.analysis.analyze", lambda *_: iter(answers))
    found, out, _ = command("analyze", "mcts:2", "--game", "tic_tac_toe")
    assert found == code
    assert [json.loads(line) for line in out.splitlines()] == answers


def test_escape_codes_of_a_file_are_shown_and_not_obeyed(command, tmp_path):
    (tmp_path / "a.yaml").write_text('env: {name: hex}\n"\\e]0;x\\a": 1\n')
    code, _, error = command("train", str(tmp_path / "a.yaml"), "--check")
    assert code == 2
    assert "\x1b" not in error
    assert r"\x1b]0;x" in error
