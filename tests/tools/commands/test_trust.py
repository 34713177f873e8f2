"""Code that an experiment names is imported only if the user trusts it."""

import importlib.util
import json
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings

from podzero.config import GymnasiumConfig, SimulatorConfig, import_paths, load, parse
from podzero.config.section import own_code
from podzero.core import importing
from podzero.core.errors import ConfigError
from podzero.envs import spec_of
from podzero.files.players import game_to_play
from podzero.files.workdir import Workdir
from podzero.networks.snapshots import save_snapshot
from podzero.tools.commands.trust import TrustedCode, approve_code, ask_before_imports


class User:
    """Answers questions, and keeps them."""

    def __init__(self, answer=True):
        self.answer, self.questions = answer, []

    def __call__(self, question):
        self.questions.append(question)
        return self.answer


@pytest.fixture
def code(tmp_path):
    """Makes a file in a folder."""

    def make(name, text="1"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return make


@pytest.fixture
def trusted(tmp_path):
    """Makes what approves the import paths that a user trusts, with a record that is there for all."""
    record = tmp_path / "config" / "podzero" / "trusted.json"
    return lambda user, trust_all=False: Approving(TrustedCode(record, user, "train mine.yaml", trust_all))


class Approving:
    """Approves files by their path."""

    def __init__(self, code):
        self.code = code

    def approve(self, path):
        self.code.approve(f"{path}:Net" if isinstance(path, Path) else path)


def test_a_folder_is_asked_about_once(code, trusted):
    user = User()
    file = code("mine/net.py")
    trusted(user).approve(file)
    file.write_text("changed")
    for other in (file, code("mine/deeper/loss.py")):
        trusted(user).approve(other)
    assert len(user.questions) == 1
    assert str(file) in user.questions[0]
    trusted(user).approve(code("other/net.py", "other"))
    assert len(user.questions) == 2


def test_the_copy_of_a_trusted_file_is_known_wherever_it_is(code, trusted):
    user = User()
    trusted(user).approve(code("mine/net.py", "v1"))
    trusted(user).approve(code("mine/net.py", "v2"))
    for version in ("v1", "v2"):
        trusted(None).approve(code(f"runs/x/code/{version}/net.py", version))
    with pytest.raises(ConfigError):
        trusted(None).approve(code("runs/x/code/v3/net.py", "v3"))


def test_no_is_remembered_by_nobody(code, trusted):
    file = code("theirs/net.py")
    with pytest.raises(ConfigError, match="not trusted"):
        trusted(User(answer=False)).approve(file)
    with pytest.raises(ConfigError, match=r"--trust train mine\.yaml"):
        trusted(None).approve(file)


def test_a_damaged_record_trusts_nothing(code, trusted, tmp_path):
    user = User()
    trusted(user).approve(code("mine/net.py"))
    record = tmp_path / "config" / "podzero" / "trusted.json"
    assert json.loads(record.read_text())["folders"] == [str(tmp_path / "mine")]
    record.write_text("{")
    trusted(user).approve(code("mine/net.py"))
    assert len(user.questions) == 2


def test_a_name_in_a_module_is_asked_about_once(trusted):
    user = User()
    for _ in range(2):
        trusted(user).approve("subprocess:Popen")
    trusted(None).approve("subprocess:Popen")
    assert len(user.questions) == 1
    assert "subprocess:Popen" in user.questions[0]
    for other in ("subprocess:run", "subprocess", "os:system"):
        with pytest.raises(ConfigError, match=f"{other} is code that the experiment names.*--trust train"):
            trusted(None).approve(other)


def test_a_name_with_escape_codes_is_shown_as_it_is_written(trusted):
    user = User()
    trusted(user).approve("subprocess:run\x1b[2K\roptax:adam")
    assert "\x1b" not in user.questions[0]


def test_what_is_trusted_by_the_option_is_known_later(code, trusted):
    file = code("mine/net.py", "v1")
    for path in (file, "subprocess:Popen"):
        trusted(None, trust_all=True).approve(path)
    trusted(None).approve("subprocess:Popen")
    trusted(None).approve(code("runs/x/code/digest/net.py", "v1"))
    with pytest.raises(ConfigError, match="--trust"):
        trusted(None).approve(code("mine/other.py", "not seen"))


def test_what_the_variable_trusts_is_not_remembered(code, tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "_approve", [])
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    for more, remembered in (({"PODZERO_TRUST": "1"}, False), ({}, True)):
        ask_before_imports(environment | more, trust_all=True)
        importing.approve(f"{code('mine/net.py')}:Net")
        assert (tmp_path / "config" / "podzero" / "trusted.json").exists() is remembered


@pytest.fixture
def asking(monkeypatch, tmp_path):
    """This process asks, with nobody there to answer."""
    monkeypatch.setattr(importing, "_approve", [])
    ask_before_imports({"XDG_CONFIG_HOME": str(tmp_path / "config")}, trust_all=False)


@pytest.mark.usefixtures("asking")
def test_experiments_of_podzero_itself_are_trusted_and_others_are_not(code):
    approve_code(load("own_game"))
    file = code("theirs/net.py", "raise SystemExit")
    with pytest.raises(ConfigError, match=str(file)):
        importing.import_named(f"{file}:Net", "network.name")
    simulator = f"env={{name: gymnasium_simulator, id: A-v0, module: '{file}'}}"
    for setting in (f"network={{name: '{file}:Net'}}", simulator):
        with pytest.raises(ConfigError, match=str(file)):
            approve_code(load("tic_tac_toe", [setting]))


WAYS = {
    "network": lambda path, more: {"network": {"name": path, **more}},
    "learned model": lambda path, more: {"env": _POLE, "network": {"name": path, "learns_model": True, **more}},
    "search": lambda path, more: {"search": {"algorithm": {"name": path, **more}}},
    "optimizer": lambda path, more: {"learner": {"optimizer": {"name": path, **more}}},
    "loss": lambda path, more: {"learner": {"objective": {"name": path, **more}}},
    "JAX game": lambda path, more: {"env": {"name": path, "kwargs": more}},
    "simulator": lambda path, more: {"env": {"name": "simulator", "id": path, "kwargs": more}},
    "environment": lambda path, more: _MODEL | {"env": _POLE | {"module": path.partition(":")[0], "kwargs": more}},
    "copied environment": lambda path, more: {
        "env": {"name": "gymnasium_simulator", "id": "A-v0", "module": path.partition(":")[0], "kwargs": more}
    },
    "wrapper": lambda path, more: _MODEL | {"env": _POLE | {"wrappers": [{"name": path, "kwargs": more}]}},
}
"""What an experiment holds that names code, for each way to do so."""
_POLE, _MODEL = {"name": "gymnasium", "id": "CartPole-v1"}, {"network": {"name": "muzero_mlp"}}
TIC_TAC_TOE = {"name": "theirs", "env": {"name": "tic_tac_toe"}}


COMMANDS = ("subprocess:check_output", "subprocess:Popen", "os:system", "posix:system", "builtins:exec", "pty:spawn")
WRITERS = ("shutil:rmtree", "pathlib:Path", "builtins:open", "numpy:save", "numpy:memmap", "logging:FileHandler")
IMPORTERS = (
    "importlib:import_module",
    "runpy:run_module",
    "pydoc:locate",
    "gymnasium:make",
    "gymnasium.envs.registration:load_env_creator",
    "cloudpickle:loads",
)
OWN = ("podzero.core.importing:import_named", "podzero.launch.main:main", "podzero.envs.registry:make_env")
CLOSE_TO_KNOWN = ("optax", "optax._src.alias:adam", "optax:_src", "optax.contrib", "gymnasium.wrappers:RecordVideo")
_words = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,7}", fullmatch=True)
PATHS = st.one_of(
    st.sampled_from([*COMMANDS, *WRITERS, *IMPORTERS, *OWN, *(path for path in CLOSE_TO_KNOWN if ":" in path)]),
    st.just("stranger_on_the_path:run"),
    st.builds("{}:{}".format, st.lists(_words, min_size=1, max_size=3).map(".".join), _words),
    st.builds("optax:{}".format, _words.map("_{}".format)),
)


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """The file that exists if code of the stranger has run: as a command, as a module, as a file."""
    ran = tmp_path / "ran"
    touch = f"open({str(ran)!r}, 'w')\ndef run(*args, **kwargs): pass\n"
    for name in ("stranger_on_the_path.py", "stranger.py"):
        (tmp_path / name).write_text(touch)
    monkeypatch.syspath_prepend(tmp_path)
    return ran


def _makes_what_it_names(experiment):
    """Imports all own code of an experiment as commands do that do not ask for all of it beforehand."""
    if import_paths(experiment.env):
        spec_of(experiment.env)
    for section, part in experiment.own_parts.items():
        own_code(part, section, ()).make({})


def _refused(stranger, way, path):
    more = {"args": f"touch {stranger}", "shell": True, "command": f"touch {stranger}"}
    experiment = parse(TIC_TAC_TOE | WAYS[way](path, more), "theirs.yaml")
    module = path.partition(":")[0]
    before = module in sys.modules
    for run in (approve_code, _makes_what_it_names):
        with pytest.raises(ConfigError, match=r"code that the experiment names|no file can be read"):
            run(experiment)
    assert not stranger.exists()
    assert (module in sys.modules) == before


_NAMED = {"way": st.sampled_from([*WAYS]), "path": PATHS}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=120, deadline=None)
@given(**_NAMED)
@pytest.mark.usefixtures("asking")
def test_no_import_path_of_a_strangers_experiment_runs_without_a_question(stranger, way, path):
    _refused(stranger, way, path)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=4000, deadline=None)
@given(**_NAMED)
@pytest.mark.usefixtures("asking")
def test_none_of_thousands_does(stranger, way, path):
    _refused(stranger, way, path)


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", [f"{__file__}:User", "subprocess:check_output", "stranger_on_the_path:run"])
def test_each_way_to_name_code_is_asked_about_by_name(stranger, way, path):
    experiment = parse(TIC_TAC_TOE | WAYS[way](path, {"args": f"touch {stranger}", "shell": True}), "theirs.yaml")
    for run in (approve_code, _makes_what_it_names):
        with pytest.raises(ConfigError, match=f"{path.partition(':')[0]}.* is code that the experiment names"):
            run(experiment)
    assert not stranger.exists()


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("path", CLOSE_TO_KNOWN)
def test_the_neighbours_of_what_is_known_are_asked_about(path):
    with pytest.raises(ConfigError, match=path):
        importing.approve(path)


@pytest.mark.usefixtures("asking")
def test_optimizers_of_optax_and_wrappers_of_gymnasium_are_known():
    optimizer = {"learner": {"optimizer": {"name": "optax:adamax"}}}
    wrapped = {"env": _POLE | {"module": "ale_py", "wrappers": [{"name": "TimeLimit"}]}}
    approve_code(parse(TIC_TAC_TOE | _MODEL | optimizer | wrapped, "mine.yaml"))


@pytest.mark.usefixtures("asking")
def test_what_a_known_module_imports_from_elsewhere_is_asked_about(monkeypatch, stranger, trusted, code):
    monkeypatch.setattr(optax, "borrowed", subprocess.check_output, raising=False)
    config = load(
        "tic_tac_toe", [f"learner.optimizer={{name: 'optax:borrowed', args: 'touch {stranger}', shell: true}}"]
    )
    with pytest.raises(ConfigError, match="subprocess:check_output"):
        _makes_what_it_names(config)
    file = code(
        "mine/tools.py", "from shutil import rmtree as clear\nfrom podzero.core.types import View\ndef own(): pass\n"
    )
    trusted(User()).approve(file)
    importing.import_named(f"{file}:own", "network.name")
    for name, home in (("clear", "shutil:rmtree"), ("View", "podzero.core.types:View")):
        with pytest.raises(ConfigError, match=home):
            importing.import_named(f"{file}:{name}", "network.name")


@pytest.mark.usefixtures("asking")
def test_compiled_code_beside_a_trusted_file_is_not_run(stranger, trusted, code):
    """A file that is known by its digest may lie in a stranger's directory, with anything beside it."""
    trusted(User()).approve(code("mine/net.py", "value = 1"))
    copy, other = code("theirs/net.py", "value = 1"), code("other.py", f"value = 2\nopen({str(stranger)!r}, 'w')")
    compiled = Path(importlib.util.cache_from_source(str(copy)))
    py_compile.compile(str(other), str(compiled), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert importing.import_named(f"{copy}:value", "network.name") == 1
    assert not stranger.exists()


@pytest.mark.usefixtures("asking")
def test_a_file_that_is_not_there_is_refused_since_other_processes_might_find_it(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path}/gone.py, where no file can be read"):
        approve_code(parse(TIC_TAC_TOE | {"network": {"name": f"{tmp_path}/gone.py:Net"}}, "theirs.yaml"))


@pytest.mark.usefixtures("asking")
def test_a_link_to_a_file_of_another_name_is_asked_about(stranger, code):
    link = stranger.with_name("net.py")
    link.symlink_to(code("net.txt", f"open({str(stranger)!r}, 'w')"))
    with pytest.raises(ConfigError, match="code that the experiment names"):
        importing.import_named(f"{link}:Net", "network.name")
    assert not stranger.exists()


@pytest.mark.parametrize("name", ["gymnasium", "gymnasium_simulator", "open_spiel"])
@pytest.mark.parametrize("identifier", ["stranger_on_the_path:A-v0", "stranger_on_the_path", "..stranger_on_the_path"])
def test_the_id_of_a_librarys_environment_is_no_import_path(stranger, name, identifier):
    kind = GymnasiumConfig if name == "gymnasium" else SimulatorConfig
    for env in (kind(name=name, id=identifier), kind(name=name, id="CartPole-v1", kwargs={"id": identifier})):
        with pytest.raises(ConfigError):
            spec_of(env)
    assert not stranger.exists()


def test_tags_of_yaml_name_no_code(stranger, code):
    tagged = f"!!python/object/apply:os.system ['touch {stranger}']"
    for text in (f"env: {tagged}\n", f"env: {{name: hex}}\nlearner: {{optimizer: {tagged}}}\n"):
        with pytest.raises(ConfigError, match="not valid YAML"):
            load(str(code("theirs.yaml", text)))
    with pytest.raises(ConfigError, match="not valid YAML"):
        load("hex", [f"learner.optimizer={tagged}"])
    assert not stranger.exists()


@pytest.mark.usefixtures("asking")
def test_the_code_of_teachers_and_opponents_is_asked_about(tmp_path):
    agent = Workdir(tmp_path / "agent")
    agent.open(load("tic_tac_toe", ["network={name: 'subprocess:Popen'}"]))
    for setting in (f"teacher={agent.root}", f"actors.opponents=[{{who: '{agent.root}', share: 1}}]"):
        with pytest.raises(ConfigError, match="subprocess:Popen"):
            approve_code(load("tic_tac_toe", [setting]))
    approve_code(load("tic_tac_toe", ["actors.opponents=[{who: random, share: 1}]", f"init_from={agent.root}"]))


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("name", ["gtp:sh -c 'rm x'", "uci:gnugo", "gtp:own_game.py:Game", "usi:optax:adam"])
def test_the_commands_of_engines_are_asked_about(name):
    experiment = load("tic_tac_toe", [f"evaluation.opponents={json.dumps(['random', 'gnugo:1', name])}"])
    with pytest.raises(ConfigError, match=f"{name} is code that the experiment names. It would run"):
        approve_code(experiment)


def test_the_command_of_an_engine_is_asked_about_once(trusted):
    user = User()
    for name in ("gtp:gnugo --mode gtp", "gtp:gnugo --mode gtp", "gtp:gnugo"):
        trusted(user).approve(name)
    assert len(user.questions) == 2
    assert "Do you trust gtp:gnugo --mode gtp, now" in user.questions[0]


@pytest.mark.usefixtures("asking")
def test_players_are_refused_before_anything_is_loaded(tmp_path):
    agent = Workdir(tmp_path / "agent")
    agent.open(load("tic_tac_toe", ["env={name: simulator, id: 'subprocess:Popen'}"]))
    for game, who in ((None, str(agent.root)), (str(agent.experiment_file), "random")):
        with pytest.raises(ConfigError, match="subprocess:Popen"):
            game_to_play(game, who)


@pytest.fixture
def podzero(tmp_path):
    """Types a command, with nobody there to answer."""
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    del environment["PODZERO_TRUST"]
    program = "import sys; sys.argv[0] = 'podzero'; from podzero.launch.main import main; main()"

    def run(*words):
        command = [sys.executable, "-c", program, *map(str, words)]
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )

    return run


def test_the_command_line_asks_before_it_runs_a_strangers_code(code, tmp_path, podzero):
    ran = tmp_path / "ran"
    file = code("theirs/net.py", f"open({str(ran)!r}, 'w')")
    refused = podzero("check-env", f"{file}:Game")
    assert (refused.returncode, ran.exists()) == (2, False)
    assert f"podzero --trust check-env {file}:Game" in refused.stderr
    podzero("--trust", "check-env", f"{file}:Game")
    assert ran.exists()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["network", "simulator"])
def test_no_command_runs_code_that_a_strangers_files_name(tmp_path, podzero, way):
    ran = tmp_path / "ran"
    more = {"args": f"touch {ran}", "shell": True}
    experiment = parse(TIC_TAC_TOE | WAYS[way]("subprocess:check_output", more), "theirs.yaml")
    agent = Workdir(tmp_path / "theirs")
    agent.open(experiment)
    save_snapshot(agent.snapshots, 1, {"weight": np.ones(1, np.float32)}, experiment)
    teacher = tmp_path / "taught.yaml"
    teacher.write_text(f"extends: tic_tac_toe\nteacher: {agent.root}\n")
    launch = ["--project", "my-project", "--zone", "us-east1-b", "--image", "a/b:1", "--share", "10.0.0.2:/x", "--yes"]
    asked = [
        ("train", agent.experiment_file, "--check"),
        ("train", agent.root),
        ("train", teacher, "--check"),
        ("sweep", agent.experiment_file, "seed=0..1", "--minutes", "1"),
        ("compile", agent.experiment_file),
        ("bench", "learner", "--config", agent.experiment_file),
        ("launch", "gke", agent.experiment_file, "cluster.slice=v5e-4", *launch),
    ]
    shown = [
        ("evaluate", agent.root, "--games", "2"),
        ("evaluate", "random", "--game", agent.experiment_file),
        ("tournament", agent.root, "random", "--games", "2"),
        ("play", agent.root),
        ("analyze", agent.root),
        ("engine", agent.root, "--protocol", "gtp"),
        ("export", agent.root, "--to", tmp_path / "agent.onnx"),
        ("import", __file__, "--game", agent.experiment_file, "--to", tmp_path / "records"),
        ("check-env", agent.experiment_file),
        ("info", agent.root),
        ("report", agent.root),
        ("compare", agent.root, agent.root),
        ("runs", tmp_path),
        ("status", agent.root),
    ]
    for command in (*asked, *shown):
        done = podzero(*command)
        assert not ran.exists(), command
        assert "Traceback" not in done.stderr, command
        if command in asked:
            assert done.returncode == 2, (command, done.stderr)
            assert "subprocess:check_output is code that the experiment names" in done.stderr, (command, done.stderr)


def test_an_id_that_makes_an_environment_of_any_module_is_asked_about(trusted):
    tree = {
        "name": "a",
        "env": {"name": "gymnasium", "id": "GymV26Environment-v0", "kwargs": {"env_id": "os:Env-v0"}},
        **_MODEL,
    }
    (path,) = parse(tree, "a test").import_paths
    user = User(answer=False)
    with pytest.raises(ConfigError, match="GymV26Environment-v0 is not trusted"):
        trusted(user).approve(path)


@pytest.mark.parametrize("place", ["optax:evil.py", "gymnasium.wrappers:evil.py"])
def test_a_file_whose_name_holds_that_of_a_known_module_is_asked_for(trusted, code, monkeypatch, place):
    monkeypatch.chdir(code(place, "1").parent)
    with pytest.raises(ConfigError, match=place):
        trusted(None).approve(place)


@pytest.mark.parametrize("place", ["base64:evil.py", "optax:evil.py"])
def test_a_file_without_a_name_is_never_read_as_a_module_with_one(place):
    with pytest.raises(ConfigError, match="expected module:Name"):
        importing.import_named(place, "network.name")
