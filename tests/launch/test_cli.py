"""The command line as people meet it: words, exit codes, and that nothing heavy is loaded before it is needed."""

import json
import os
import re
import subprocess
import sys

import pytest

from podzero.config import load
from podzero.launch import cli
from podzero.monitoring.status import RunStatus, write_status
from podzero.workdir import Workdir


@pytest.fixture
def podzero(monkeypatch, capsys):
    """Runs the command line in this process; returns exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["podzero", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def test_configs_lists_every_experiment_with_its_card(podzero):
    code, out, _ = podzero("configs", "--json")
    assert code == 0
    assert out.count("\n") == 1
    listed = {entry["name"]: entry["card"] for entry in json.loads(out)["configs"]}
    assert "podzero train connect_four" in listed["connect_four"]
    assert not any(line.startswith("#") for line in listed["connect_four"].splitlines())
    code, out, _ = podzero("configs")
    assert code == 0
    assert all(name in out for name in listed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "conect_four"], "did you mean 'connect_four'"),
        (["train", "connect_four", "learner.batch_sise=3"], "did you mean 'batch_size'"),
        (["train", "connect_four", "env.name=conect_four"], "did you mean 'connect_four'"),
        (["bench", "learner", "--config", "nothing"], "no experiment 'nothing'"),
        (["status", "/nowhere"], "is no working directory"),
    ],
)
def test_what_a_person_did_wrong_is_one_message_and_code_2(podzero, arguments, words):
    code, out, err = podzero(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("podzero: ")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["tarin"], ["bench", "everything"], ["evaluate", "x", "--games", "0"], ["train"]]
)
def test_a_wrong_word_on_the_command_line_is_code_2(podzero, arguments):
    code, _, err = podzero(*arguments)
    assert code == 2
    assert "Traceback" not in err


def test_what_nobody_foresaw_keeps_its_traceback(podzero, monkeypatch):
    def fail(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr(cli, "load", fail)
    monkeypatch.setattr(sys, "argv", ["podzero", "train", "x"])
    with pytest.raises(RuntimeError, match="a defect"):
        cli.main()


def test_ctrl_c_ends_with_the_code_of_an_interrupt(podzero, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load", interrupt)
    code, _, err = podzero("train", "x")
    assert code == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["configs"], ["train", "conect_four"], ["train", "hex", "a.b=1"], ["status", "/nowhere"]]
)
def test_help_lists_and_refusals_load_nothing_heavy(arguments):
    script = (
        "import sys, contextlib\n"
        f"sys.argv = ['podzero', *{arguments!r}]\n"
        "from podzero.launch.cli import main\n"
        "with contextlib.suppress(SystemExit):\n    main()\n"
        "heavy = {'jax', 'ray', 'tensorflow', 'reverb', 'numpy', 'pgx', 'flax'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)


def test_status_shows_a_run_from_its_files(podzero, tmp_path):
    workdir = Workdir(tmp_path)
    workdir.open(load("tic_tac_toe"))
    write_status(workdir, RunStatus("tic_tac_toe", "ended", 300.0, step=4321, keeps_value=0.97, rated_step=4000))
    code, out, _ = podzero("status", str(tmp_path))
    assert code == 0
    assert "step 4,321" in out
    assert re.search(r"ended \(status \d+ s old\)", " ".join(out.split()))
    code, out, _ = podzero("status", str(tmp_path), "--json")
    found = json.loads(out)
    assert (found["step"], found["keeps_value"], found["alive"], found["phase"]) == (4321, 0.97, False, "ended")


def test_a_bench_prints_one_line_with_one_object(podzero, monkeypatch):
    class Fake:
        @staticmethod
        def bench_learner(experiment, seconds):
            return {"ratio": 0.97, "sizes": [experiment.learner.batch_size], "seconds": seconds}

    monkeypatch.setattr(cli, "import_module", lambda name: Fake if name == "podzero.benchmarks.learner" else None)
    code, out, _ = podzero("bench", "learner", "learner.batch_size=64", "--seconds", "3", "--json")
    assert code == 0
    assert out == '{"ratio": 0.97, "sizes": [64], "seconds": 3.0}\n'
    code, out, _ = podzero("bench", "learner", "--seconds", "3")
    assert "ratio    0.97" in out


def test_the_card_is_the_comment_that_opens_the_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("# First.\n#\n#   indented\nenv: {name: hex}\n# not the card\n")
    assert cli.card(path) == "First.\n\n  indented"


def test_the_entry_point_is_installed():
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "podzero"), "--help"],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert "train" in done.stdout


@pytest.mark.parametrize("module", cli.ERRORS_FOR_PEOPLE)
def test_the_errors_shown_without_traceback_exist(module):
    door = cli.import_module(module)
    for name in cli.ERRORS_FOR_PEOPLE[module]:
        assert issubclass(getattr(door, name), Exception)


@pytest.mark.parametrize(("device", "spared"), [(None, "1"), ("accel0", None), ("vfio", None)])
def test_only_machines_without_tpus_are_kept_from_asking_for_them(tmp_path, monkeypatch, device, spared):
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "")  # so that it is put back afterwards
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY")
    if device is not None:
        (tmp_path / device).mkdir()
    cli.spare_metadata_queries(tmp_path)
    assert os.environ.get("TPU_SKIP_MDS_QUERY") == spared
