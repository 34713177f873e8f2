"""Experiments that extend others: what is merged, what is replaced, where each setting comes from, what is refused."""

import pytest
import yaml

from podzero.config import builtin_configs, load, read_layers
from podzero.core.errors import ConfigError
from podzero.files.workdir import Workdir, differences, flatten


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a YAML file below the present directory; returns its path."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    return write


def changed(config):
    """The settings that differ from connect_four, without the name."""
    return {c.setting: c.new for c in differences(load("connect_four"), load(config)) if c.setting != "name"}


def test_sections_are_merged_at_any_depth_lists_are_replaced_and_the_name_is_that_of_the_file(write):
    write("base.yaml", "extends: connect_four\nname: other\nlearner: {optimizer: {learning_rate: 0.1}, ema: 0.5}\n")
    mine = write(
        "mine.yaml", "extends: base.yaml\nlearner: {ema: 0.6}\nevaluation: {opponents: [random]}\nactors: {}\n"
    )
    assert changed(mine) == {
        "learner.optimizer.learning_rate": 0.1, "learner.ema": 0.6, "evaluation.opponents": ["random"],
    }  # fmt: skip
    assert load(mine).name == "mine"


@pytest.mark.parametrize(
    ("text", "section", "expected"),
    [
        ("network: {name: mlp, layers: 3}", "network", {"name": "mlp", "layers": 3}),
        ("network: {name: resnet, blocks: 1}", "network", {"name": "resnet", "channels": 32, "blocks": 1}),
        ("network: {blocks: 1}", "network", {"name": "resnet", "channels": 32, "blocks": 1}),
        ("env: {name: open_spiel, id: connect_four}", "env", {"name": "open_spiel", "id": "connect_four"}),
        ("learner: {optimizer: {name: sgd}}", "learner.optimizer", {"name": "sgd"}),
    ],
)
def test_a_section_with_another_name_replaces_the_section_of_the_parent(write, text, section, expected):
    tree = read_layers(write("mine.yaml", f"extends: connect_four\n{text}\n")).tree
    for part in section.split("."):
        tree = tree[part]
    assert tree == expected


def test_an_optimizer_without_a_name_is_the_default_one(write):
    write("base.yaml", "env: {name: hex}\nlearner: {optimizer: {learning_rate: 0.1}}\n")
    for name, kept in (("adamw", True), ("lion", False)):
        mine = load(write("mine.yaml", f"extends: base.yaml\nlearner: {{optimizer: {{name: {name}}}}}\n"))
        assert (mine.learner.optimizer.learning_rate == 0.1) is kept


def test_a_parent_is_found_from_the_folder_of_its_child_and_its_own_files_from_its_own_folder(write):
    write("games/game.py", "")
    write("games/base.yaml", 'env: {name: simulator, id: "game.py:Game"}\n')
    mine = write("mine/mine.yaml", "extends: ../games/base.yaml\nseed: 2\n")
    (file,) = (word for word in load(mine).env.id.split(":") if word.endswith(".py"))
    assert file.endswith("games/game.py")
    assert read_layers(mine).files == ("mine/mine.yaml", "games/base.yaml")


def test_the_origin_of_each_setting_is_the_nearest_file_that_gives_it(write):
    mine = write("mine.yaml", "extends: connect_four_int8\nseed: 3\nnetwork: {blocks: 6}\n")
    layers = read_layers(mine, ["learner.optimizer={name: sgd, learning_rate: 0.1}", "stop.minutes=1"])
    assert layers.files == ("mine.yaml", "connect_four_int8", "connect_four")
    assert {setting: layers.origins[setting] for setting in ("seed", "network.blocks", "network.channels")} == {
        "seed": "mine.yaml", "network.blocks": "mine.yaml", "network.channels": "connect_four_int8",
    }  # fmt: skip
    assert layers.inherited["env.name"] == "connect_four"
    overridden = {setting for setting, origin in layers.origins.items() if origin == "command line"}
    assert overridden == {"learner.optimizer.name", "learner.optimizer.learning_rate", "stop.minutes"}
    assert "learner.optimizer.warmup_steps" not in layers.origins
    assert not {*overridden, "seed"} & {*layers.inherited}


def test_the_explained_settings_are_yaml_of_the_same_experiment(write):
    mine = write("mine.yaml", 'extends: connect_four\nenv: {name: open_spiel, id: x, kwargs: {t: "two\\nlines"}}\n')
    experiment = load(mine, ["learner.optimizer.learning_rate=1e-5"])
    text = read_layers(mine, ["learner.optimizer.learning_rate=1e-5"]).explain(experiment.model_dump(mode="json"))
    assert load(write("again.yaml", text)) == experiment
    assert text.startswith("# mine.yaml extends connect_four\n")
    (line,) = (line for line in text.splitlines() if "batch_size:" in line)
    assert line.endswith("# connect_four")
    (line,) = (line for line in text.splitlines() if "ema:" in line)
    assert "#" not in line


@pytest.mark.parametrize("name", [name for name in builtin_configs() if len(read_layers(name).files) > 1])
def test_no_built_in_experiment_repeats_what_it_inherits(name):
    own = yaml.safe_load(builtin_configs()[name].read_text())
    parent = flatten(read_layers(own.pop("extends")).tree)
    assert {key for key, value in flatten(own).items() if key in parent and parent[key] == value} <= {"env.id"}


def test_a_working_directory_needs_no_parent_and_records_what_was_inherited(write, tmp_path):
    base = write("base.yaml", "env: {name: hex}\nseed: 5\n")
    mine = write("mine.yaml", "extends: base.yaml\n")
    experiment, run = load(mine), Workdir(tmp_path / "run")
    run.open(experiment, layers=read_layers(mine))
    (tmp_path / base).unlink()
    assert run.experiment() == experiment
    again = read_layers(str(run.experiment_file))
    run.open(experiment, 10, again)
    assert run.inheritance().lineage == "mine.yaml extends base.yaml"
    assert run.inheritance().settings == {"env.name": "base.yaml", "seed": "base.yaml"}


def test_a_run_of_one_file_inherits_nothing(tmp_path):
    run = Workdir(tmp_path)
    run.open(load("hex"), layers=read_layers("hex"))
    assert run.inheritance() is None
    run.inherited_file.write_text('{"lineage": 3')
    assert run.inheritance() is None


@pytest.mark.parametrize(
    ("parent", "words"),
    [
        ("connect_for", ["mine.yaml: extends: no experiment 'connect_for'", "did you mean 'connect_four'"]),
        ("nowhere.yaml", ["mine.yaml: extends: no such file: nowhere.yaml"]),
        ("folder", ["mine.yaml: extends: folder is a directory"]),
        ("[hex, chess]", ["mine.yaml: extends = ['hex', 'chess']", "extends: connect_four"]),
        ("", ["mine.yaml: extends = None"]),
        ("list.yaml", ["mine.yaml: extends: list.yaml holds a list"]),
        ("word.yaml", ["mine.yaml: extends: word.yaml holds a single value"]),
        ("empty.yaml", ["mine.yaml: extends: empty.yaml is empty"]),
        ("broken.yaml", ["mine.yaml: extends: broken.yaml is not valid YAML"]),
        ("mine.yaml", ["mine.yaml extends mine.yaml", "circle"]),
        ("one.yaml", ["one.yaml extends two.yaml extends one.yaml", "circle"]),
    ],
)
def test_a_parent_that_cannot_be_extended_is_refused(write, parent, words):
    write("folder/x.yaml", "seed: 1\n")
    write("list.yaml", "- a\n")
    write("word.yaml", "just words\n")
    write("empty.yaml", "# nothing\n")
    write("broken.yaml", "env: {name")
    write("one.yaml", "extends: ./two.yaml\n")
    write("two.yaml", "extends: folder/../one.yaml\n")
    with pytest.raises(ConfigError) as caught:
        load(write("mine.yaml", f"extends: {parent}\nenv: {{name: hex}}\n"))
    for word in words:
        assert word in str(caught.value)
    assert "mine.yaml extends one" not in str(caught.value)


def test_a_fault_of_an_inherited_setting_names_its_file(write):
    write("base.yaml", "env: {name: hex}\nlearner: {batch_size: 0, ema: 2}\n")
    with pytest.raises(ConfigError, match=r"batch_size = 0: .*base\.yaml") as caught:
        load(write("mine.yaml", "extends: base.yaml\nlearner: {ema: 3}\n"))
    (ema,) = (line for line in str(caught.value).splitlines() if "learner.ema" in line)
    assert "base.yaml" not in ema


def test_a_misspelt_extends_is_recognized(write):
    with pytest.raises(ConfigError, match="did you mean 'extends'"):
        load(write("mine.yaml", "extend: hex\nenv: {name: hex}\n"))
