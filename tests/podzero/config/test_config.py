"""What the schema accepts and refuses, and that a refusal says what to write instead."""

import re

import pydantic
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.config import (
    FOR_SLICES,
    Experiment,
    LearnerConfig,
    StopConfig,
    builtin_configs,
    load,
    parse,
    read_yaml,
    schedule_note,
)
from podzero.core.errors import ConfigError, nearest

SMALL = {"name": "small", "env": {"name": "tic_tac_toe"}}


def experiment(**sections):
    return parse(SMALL | sections, "test")


def refusal(**sections):
    with pytest.raises(ConfigError) as caught:
        experiment(**sections)
    return str(caught.value)


@pytest.mark.parametrize("name", builtin_configs())
def test_every_builtin_experiment_loads_and_begins_with_its_card(name):
    assert load(name).name == name.removeprefix(FOR_SLICES)
    text = builtin_configs()[name].read_text()
    assert text.startswith("# ")
    assert f"podzero train {name}" in text


@pytest.mark.parametrize("name", builtin_configs())
def test_the_learning_rate_of_every_builtin_experiment_falls_to_the_end_of_its_run_or_over_steps_if_it_has_none(name):
    found = load(name)
    assert schedule_note(found) is None
    assert found.learner.optimizer.decay_steps is None or found.stop == StopConfig()


@pytest.mark.parametrize("name", builtin_configs())
def test_to_yaml_then_load_gives_an_equal_experiment(name, tmp_path):
    first = load(name, ["replay.samples_per_insert=8.5", "stop.minutes=2"])
    path = tmp_path / "other_name.yaml"
    path.write_text(first.to_yaml())
    assert load(str(path)) == first


@pytest.mark.parametrize("game", ["chess", "gardner_chess", "go_9x9", "hex", "othello"])
def test_a_game_for_slices_has_the_same_settings_for_each_chip_of_every_slice(game):
    smallest, *larger = (of_a_chip(load(f"{FOR_SLICES}{game}_{where}")) for where in ("v5e_8", "v5e_16", "v4_32"))
    assert larger == [smallest] * 2


def of_a_chip(found):
    """The settings, those that grow with the slice divided by its chips, those of a host by the chips of a host."""
    where = found.cluster.tpu
    sections = found.model_dump(exclude={"name": True, "cluster": {"slice"}})
    for name in ("capacity", "min_size", "tolerance"):
        sections["replay"][name] /= where.chips
    sections["learner"]["batch_size"] /= where.chips
    sections["actors"]["games"] /= where.chips_of_host
    return sections


def test_the_chips_of_a_host_share_the_games_of_a_slice_evenly():
    with pytest.raises(ConfigError, match=r"actors\.games 1026 .* 4 chips .*v5e-16.*=1028"):
        load("slices/go_9x9_v5e_16", ["actors.games=1026"])
    assert load("slices/go_9x9_v5e_16", ["actors.games=1026", "actors.resources={TPU: 2}"]).actors.games == 1026


@settings(deadline=None)
@given(
    channels=st.integers(1, 512),
    learning_rate=st.floats(1e-9, 10.0),
    tolerance=st.none() | st.floats(600.0, 16384.0),
    opponents=st.lists(st.sampled_from(["random", "mcts:100", "earlier", "solver"])),
    minutes=st.none() | st.floats(0.1, 1e6),
)
def test_yaml_round_trip_keeps_any_value(channels, learning_rate, tolerance, opponents, minutes):
    first = experiment(
        network={"name": "resnet", "channels": channels},
        replay={"tolerance": tolerance},
        learner={"optimizer": {"learning_rate": learning_rate}},
        evaluation={"opponents": opponents},
        stop={"minutes": minutes},
    )
    assert parse(yaml.safe_load(first.to_yaml()), "again") == first


@pytest.mark.parametrize(
    ("sections", "field", "words"),
    [
        ({"env": {"name": "conect_four"}}, "env.name = 'conect_four'", ["did you mean 'connect_four'", "tic_tac_toe"]),
        ({"learner": {"batch_sise": 8}}, "learner.batch_sise", ["did you mean 'batch_size'", "publish_every"]),
        ({"lerner": {}}, "lerner", ["did you mean 'learner'"]),
        ({"learner": {"batch_size": 0}}, "learner.batch_size = 0", ["greater than 0"]),
        ({"learner": {"batch_size": "many"}}, "learner.batch_size = 'many'", ["integer"]),
        ({"actors": {"count": 2, "min_count": 3}}, "actors", ["min_count 3 is larger than count 2"]),
        ({"actors": {"count": 2, "min_count": 1, "inference": "device"}}, "actors", ["min_count", "device"]),
        (
            {"actors": {"opponents": [{"who": "earlier", "share": 0.3}]}},
            "actors",
            ["add up to 0.3", "self"],
        ),
        (
            {"actors": {"opponents": [{"who": "random", "share": 0.5}, {"who": "random", "share": 0.5}]}},
            "actors",
            ["'random' is listed twice"],
        ),
        (
            {"actors": {"inference": "device", "opponents": [{"who": "random", "share": 1}]}},
            "actors",
            ["inference=device", "set inference=local or int8"],
        ),
        ({"actors": {"games": 1, "opponents": [{"who": "random", "share": 1}]}}, "actors", ["games 1 is too small"]),
        (
            {"env": {"name": "open_spiel", "id": "connect_four"}, "actors": {"inference": "device"}},
            "",
            ["open_spiel/connect_four runs on the host", "set actors.inference=server or local"],
        ),
        (
            {"actors": {"resources": {"TPU": 4}}},
            "actors",
            ["accelerators of actors that play on them", "set inference=device as well"],
        ),
        (
            {"actors": {"inference": "server", "games": 9}},
            "",
            ["actors.games 9 is not a multiple of the 2 groups", "server.groups", "set actors.games=10"],
        ),
        (
            {
                "env": {"name": "gymnasium", "id": "CartPole-v1"},
                "network": {"name": "muzero_mlp"},
                "actors": {"inference": "server"},
                "evaluation": {"opponents": []},
            },
            "",
            ["'muzero_mlp' learns a model", "set actors.inference=local"],
        ),
        ({"server": {"batch_sizes": [64, 16]}}, "server.batch_sizes", ["sizes must ascend, as [16, 64]"]),
        ({"search": {"slots": 9}}, "search", ["slots limits the actions of dense trees"]),
        ({"learner": {"ema": 1.5}}, "learner.ema = 1.5", ["less than or equal to 1"]),
        ({"checkpoint": {"keep": 2}}, "checkpoint.keep", ["no such field (CHANGELOG.md lists those of earlier"]),
        ({"restarts": {"max_failures": 9}}, "restarts", ["no such field", "CHANGELOG.md", "known here: extends, name"]),
        (
            {"network": {"name": "resnett"}},
            "network.name = 'resnett'",
            ["did you mean 'resnet'", "transformer", "file.py:Name"],
        ),
        ({"search": {"algorithm": "puckt"}}, "search.algorithm = 'puckt'", ["did you mean 'puct'"]),
        ({"search": {"algorithm": {"c": 1}}}, "search.algorithm.name", ["missing"]),
        ({"learner": {"objective": {"name": 1}}}, "learner.objective.name = 1", ["a string"]),
        (
            {"learner": {"optimizer": {"name": "adam"}}},
            "learner.optimizer.name = 'adam'",
            ["did you mean 'adamw'", "file.py:Name"],
        ),
        (
            {"learner": {"optimizer": {"learning_rat": 1}}},
            "learner.optimizer.learning_rat",
            ["did you mean 'learning_rate'"],
        ),
        ({"network": {"name": [1]}}, "network.name = [1]", ["unknown", "transformer"]),
        ({"network": 5}, "network.name = 5", ["unknown", "transformer"]),
        (
            {"network": {"name": "mine.py:Net"}, "actors": {"inference": "int8"}},
            "",
            ["supports the network resnet, not 'mine.py:Net'", "set actors.inference=local"],
        ),
        ({"network": {"channels": 8}}, "network.name", ["missing", "transformer"]),
        ({"network": {"name": "resnet", "chanels": 8}}, "network.chanels", ["did you mean 'channels'"]),
        ({"network": {"name": "transformer", "width": 10, "heads": 4}}, "network", ["multiple of heads 4"]),
        (
            {"network": {"name": "transformer"}, "actors": {"inference": "int8"}},
            "",
            ["supports the network resnet, not 'transformer'", "set actors.inference=local"],
        ),
        ({"network": {"name": "resnet", "ownership": True}}, "network", ["set auxiliary=true, or ownership=false"]),
        (
            {"network": {"name": "mlp"}, "learner": {"cpu_convolutions": "openvino"}},
            "",
            ["supports the network resnet, not 'mlp'", "set learner.cpu_convolutions=xla"],
        ),
        (
            {"int8": {"on_tpu": True}},
            "",
            [
                "int8.on_tpu is for evaluation on TPUs, and actors.inference = local",
                "actors.inference=server or device",
            ],
        ),
        (
            {"network": {"name": "transformer"}, "actors": {"inference": "server"}, "int8": {"on_tpu": True}},
            "",
            ["int8.on_tpu supports the network resnet, not 'transformer'"],
        ),
        ({"actors": {"cpus": 0}}, "actors.cpus = 0", ["greater than 0"]),
        ({"search": "fast"}, "search = 'fast'", ["must be a section"]),
        ({"learner": {"augment": "perhaps"}}, "learner.augment = 'perhaps'", ["must be true or false"]),
        ({"evaluation": {"opponents": "random"}}, "evaluation.opponents = 'random'", ["must be a list"]),
        (
            {"learner": {"mesh": {"rules": [{"match": "x", "dimensio": 1}]}}},
            "learner.mesh.rules.0.dimensio",
            ["did you mean 'dimension'"],
        ),
    ],
)
def test_a_refusal_names_field_value_and_nearest_name(sections, field, words):
    message = refusal(**sections)
    assert message.startswith("test: this experiment cannot be run:\n")
    assert f"  {field}" in message
    for word in words:
        assert word in message


def test_all_faults_are_reported_at_once():
    message = refusal(learner={"batch_size": -1, "ema": 2}, env={"name": "tic_tac"})
    assert message.count("\n") == 3


def test_a_refusal_hides_pydantic():
    with pytest.raises(ConfigError) as caught:
        experiment(learner={"batch_size": 0})
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize(
    ("replay", "words"),
    [
        ({"min_size": 5000, "capacity": 4096}, "learning would never start"),
        ({"tolerance": 10.0}, "replay.tolerance 10 would deadlock"),
        ({"shards": 2000, "samples_per_insert": 1.0, "min_size": 20000}, "replay.tolerance 2048 would deadlock"),
        ({"min_size": 16, "tolerance": 2048.0}, "min_size 16 is too small"),
    ],
)
def test_a_replay_that_would_deadlock_is_refused(replay, words):
    assert words in refusal(replay=replay)


@settings(deadline=None)
@given(
    batch=st.integers(1, 4096),
    ratio=st.floats(0.1, 64.0),
    sizes=st.tuples(st.integers(1, 200_000), st.integers(1, 200_000)),
    shards=st.integers(1, 16),
    tolerance=st.none() | st.floats(1.0, 1e6),
)
def test_what_the_refusal_of_a_replay_says_to_set_is_accepted(batch, ratio, sizes, shards, tolerance):
    replay = {"samples_per_insert": ratio, "min_size": sizes[0], "capacity": sizes[1], "shards": shards}
    replay |= {} if tolerance is None else {"tolerance": tolerance}
    try:
        experiment(learner={"batch_size": batch}, replay=replay)
    except ConfigError as error:
        advised = dict(word.split("=") for word in re.search(r"; set (.*)$", str(error))[1].split())
        assert advised
        replay |= {name.removeprefix("replay."): float(value) for name, value in advised.items()}
        experiment(learner={"batch_size": batch}, replay=replay)


def test_a_working_directory_where_an_experiment_is_expected_names_its_file(tmp_path):
    file = tmp_path / "experiment.yaml"
    file.write_text(load("hex").to_yaml())
    with pytest.raises(ConfigError, match="is a directory") as caught:
        load(str(tmp_path))
    assert load(str(caught.value).rpartition(": ")[2]) == load("hex")


@pytest.mark.parametrize("ratio", [".inf", ".nan", "0", "-1"])
def test_a_replay_ratio_that_no_limiter_could_keep_is_refused(ratio):
    with pytest.raises(ConfigError, match=r"replay\.samples_per_insert = .*: must be"):
        load("tic_tac_toe", [f"replay.samples_per_insert={ratio}"])


@settings(deadline=None)
@given(
    batch=st.integers(1, 4096),
    ratio=st.floats(0.1, 64.0),
    min_size=st.integers(1, 200_000),
    shards=st.integers(1, 16),
)
def test_an_accepted_tolerance_admits_a_batch_and_an_insert_on_every_shard(batch, ratio, min_size, shards):
    try:
        accepted = experiment(
            learner={"batch_size": batch},
            replay={"samples_per_insert": ratio, "min_size": min_size, "shards": shards},
        )
    except ConfigError:
        return
    assert accepted.replay_tolerance >= batch + shards * max(1.0, ratio)
    assert accepted.replay_tolerance <= ratio * min_size + 1e-6


@pytest.mark.parametrize(
    ("sections", "words", "advice"),
    [
        ({"learner": {"batch_size": 1}}, "batch_size 1 is too small with reanalyse.share", "learner.batch_size=2"),
        (
            {"reanalyse": {"capacity": 100}},
            "capacity 100 is too small: learning starts from 256 reanalysed samples",
            "reanalyse.capacity=256",
        ),
    ],
)
def test_an_impossible_reanalyse_section_is_refused(sections, words, advice):
    message = refusal(**sections | {"reanalyse": {"share": 0.5} | sections.get("reanalyse", {})})
    assert f"; set {advice}" in message
    assert words in refusal(**sections | {"reanalyse": {"share": 0.5} | sections.get("reanalyse", {})})


@settings(deadline=None)
@given(
    share=st.floats(0.001, 0.999),
    batch=st.integers(2, 4096),
    ratio=st.floats(0.1, 64.0),
    shards=st.integers(1, 16),
    tolerance=st.none() | st.floats(1.0, 1e5),
)
def test_an_accepted_reanalyse_tolerance_admits_a_batch_and_an_insert_on_every_shard(
    share, batch, ratio, shards, tolerance
):
    replay = {"samples_per_insert": ratio, "shards": shards, "min_size": 200_000, "tolerance": tolerance}
    try:
        accepted = experiment(learner={"batch_size": batch}, replay=replay, reanalyse={"share": share})
    except ConfigError:
        return
    fresh, reanalysed, recorded = accepted.batch_parts
    assert fresh > 0
    assert reanalysed > 0
    assert (fresh + reanalysed, recorded) == (batch, 0)
    assert accepted.reanalysed_tolerance >= reanalysed + shards * accepted.replay.samples_per_item * max(1.0, ratio)
    assert accepted.reanalysed_tolerance <= ratio * accepted.reanalysed_min_size + 1e-6
    assert accepted.reanalysed_min_size <= accepted.reanalyse.capacity


def test_overrides_are_typed_and_reach_any_depth():
    changed = load("tic_tac_toe", ["learner.optimizer.learning_rate=3e-4", "learner.augment=no", "replay.tolerance="])
    assert changed.learner.optimizer.learning_rate == pytest.approx(3e-4)
    assert changed.learner.augment is False
    assert changed.replay.tolerance is None


def test_the_last_of_two_overrides_holds():
    assert load("tic_tac_toe", ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("learner.batch_size", "expected section.field=value"),
        ("=3", "expected section.field=value"),
        ("seed.deep=3", "seed"),
        ("learner.batch_size=[1", "not valid YAML"),
        ("learner={batch_size: 64, batch_size: 128}", "'batch_size' is given twice"),
        ("learner.batchsize=3", "did you mean 'batch_size'"),
        ("stop.minuts=3", "did you mean 'minutes'"),
    ],
)
def test_a_wrong_override_is_refused(override, words):
    with pytest.raises(ConfigError, match="(?s).*" + re.escape(words)):
        load("tic_tac_toe", ["seed=1", override])


def test_an_unknown_experiment_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'tic_tac_toe'"):
        load("tictactoe")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("nothere.yaml", "no such file: nothere.yaml"),
        ("no/such/dir", "no such file: no/such/dir"),
        (".", "is a directory"),
        ("nothere", "no experiment 'nothere'; built in: "),
        ("shogi", "podzero new --game shogi --to shogi.yaml"),
        ("backgammon", "podzero new --game backgammon --to backgammon.yaml"),
    ],
)
def test_a_missing_file_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        load(config)


def test_an_unknown_name_lists_no_experiment_for_slices():
    with pytest.raises(ConfigError) as refused:
        load("nothere")
    assert "go_9x9_hour" in str(refused.value)
    assert "v5e" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "found"), [("", "is empty"), ("- a\n- b\n", "holds a list"), ("just words", "holds a single value")]
)
def test_a_file_without_sections_is_refused(tmp_path, text, found):
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=found):
        load(str(path))


@pytest.mark.parametrize("content", [b"env: {name", b"\xff\xfe\x00", b"a: \x00"])
def test_a_file_that_is_not_yaml_is_refused(tmp_path, content):
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load(str(path))


def test_an_experiment_is_named_after_its_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("env: {name: hex}\n")
    assert load(str(path)).name == "mine"


def test_an_experiment_is_frozen():
    with pytest.raises(pydantic.ValidationError):
        experiment().seed = 3
    assert isinstance(experiment(), Experiment)


TWO_SLICES = ["cluster.slice=v5e-16", "cluster.slices=2", "replay.shards=8", "replay.min_size=8192"]


def test_a_learner_has_the_hosts_of_all_slices_that_train():
    found = load("connect_four", [*TWO_SLICES, "cluster.min_slices=1", "learner.batch_size=1024"])
    assert found.cluster.learner_hosts == 8
    assert list(found.cluster.slice_counts) == [1, 2]
    fewer = found.on_hosts(4)
    assert (fewer.cluster.slices, fewer.cluster.learner_hosts, fewer.learner) == (1, 4, found.learner)
    assert fewer.model_validate(fewer.model_dump()) == fewer
    assert found.on_hosts(8) == found


def test_a_learner_has_the_hosts_of_its_slice():
    four = ("replay.shards=4", "replay.min_size=8192")
    experiment = load("connect_four", ["cluster.slice=v5e:4x4", *four])
    assert experiment.cluster.slice == "v5e-16"
    assert experiment.cluster.learner_hosts == 4
    assert load("connect_four", ["cluster.hosts=2", "replay.shards=2"]).cluster.learner_hosts == 2
    assert load("connect_four").cluster.learner_hosts == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster.slice=v5e-17"], "cluster.slice: unknown slice 'v5e-17'.*v5e-16"),
        (["cluster.slice=tpu8i-16"], "cluster.slice: slice 'tpu8i-16': libtpu cannot compile for tpu8i"),
        (
            ["cluster.slice=tpu7x-8", "actors.inference=device", "int8.on_tpu=true"],
            r"int8\.on_tpu gains nothing .*tpu7x .*int8\.on_tpu=false or network\.channels=256",
        ),
        (["cluster.slice=v5e-16", "cluster.hosts=3"], "v5e-16 has 4 hosts, not 3"),
        ([*TWO_SLICES, "cluster.hosts=4"], "2 x v5e-16 has 8 hosts, not 4"),
        (["cluster.slices=2"], "slices 2: .*set slice .*v5e-16"),
        ([*TWO_SLICES, "cluster.min_slices=3"], "min_slices 3 is more than slices 2"),
        ([*TWO_SLICES, "replay.shards=4"], r"replay\.shards 4 .* 8.*hosts of 2 slices .*replay\.shards=8"),
        ([*TWO_SLICES, "learner.batch_size=528"], r"batch_size 528 .* 32.*devices .*learner\.batch_size=544"),
        ([*TWO_SLICES, "learner.microbatches=32"], r"batch_size 512 .* 1024.*microbatches.*batch_size=1024"),
        ([*TWO_SLICES, "cluster.slices=3", "cluster.min_slices=1"], r"shards 8 .* 24.*1 to 3 slices.*shards=24"),
        (["cluster.hosts=4", "replay.shards=6"], "replay.shards 6 is not a multiple of the 4 learner hosts.*shards=8"),
        (["cluster.hosts=3", "replay.shards=3"], "learner.batch_size 512 is not a multiple of the 3.*batch_size=513"),
    ],
)
def test_wrong_hosts_are_refused_with_what_would_fit(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load("connect_four", overrides)


@pytest.mark.parametrize("name", ["randm", "mcts", "mcts:0", "runs/other"])
def test_an_unknown_opponent_is_refused(name):
    refused = refusal(evaluation={"opponents": ["random", name]})
    assert f"evaluation.opponents.1: unknown opponent '{name}'" in refused
    assert "known: random, solver, earlier, mcts:N" in refused


def test_single_player_environments_have_no_opponents():
    with pytest.raises(ConfigError, match=r"CartPole-v1 .*one player"):
        load("cartpole", ["evaluation.opponents=[random]"])


@pytest.mark.parametrize("setting", ["actors.opening_plies=2", "actors.td_lambda=0.9", "actors.resign_value=-0.9"])
def test_settings_of_games_are_refused_for_networks_that_learn_a_model(setting):
    field = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{re.escape(field)} .*self-play of games"):
        load("cartpole", [setting])


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_the_tables_of_reanalyse_do_not_depend_on_the_hosts(hosts):
    """A run resumes its replay on another number of hosts."""
    tables = [
        (found.reanalysed_tolerance, found.reanalysed_min_size)
        for number in (1, hosts)
        for found in [experiment(
            replay={"shards": 4}, learner={"batch_size": 128}, reanalyse={"share": 0.3}, cluster={"hosts": number}
        )]
    ]  # fmt: skip
    assert tables[0] == tables[1]


def test_own_files_are_found_beside_the_experiment(tmp_path, monkeypatch):
    """The path of an existing file becomes absolute; any other name stays as written."""
    (tmp_path / "beside").mkdir()
    for place in ("beside/mine.py", "here.py"):
        (tmp_path / place).touch()
    monkeypatch.chdir(tmp_path)
    wrappers = [{"name": "mine.py:Slow"}, {"name": "here.py:Loud"}, {"name": "gone.py:Shy"}, {"name": "TimeLimit"}]
    env = {"name": "gymnasium", "id": "Mine-v0", "module": "mine.py", "wrappers": wrappers}
    path = tmp_path / "beside" / "mine.yaml"
    path.write_text(yaml.safe_dump({"env": env, "network": {"name": "muzero_mlp"}, "replay": {"samples_per_item": 1}}))
    found = load(str(path)).env
    assert found.module == f"{tmp_path}/beside/mine.py"
    names = [f"{tmp_path}/beside/mine.py:Slow", f"{tmp_path}/here.py:Loud", "gone.py:Shy", "TimeLimit"]
    assert [wrapper.name for wrapper in found.wrappers] == names


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"name": "hex", "komi": [0.5, 7.5]}, "komi is only for Go, not for 'hex'"),
        ({"name": "go_9x9", "komi": [7.5, 0.5]}, "[least, largest]"),
        ({"name": "go_9x9", "komi": [0.25, 7.5]}, "multiple of 0.5"),
        ({"name": "go_9x9", "komi": [0.5, 31.5]}, "less than or equal to 31"),
        ({"name": "go_9x9", "komi": 7.5}, "env.komi"),
        ({"name": "go_9x9", "size": 9}, "size is only for Hex, not for 'go_9x9'"),
        ({"name": "hex", "size": 4}, "env.size = 4"),
        ({"name": "hex", "size": 12}, "less than or equal to 11"),
    ],
)
def test_komi_is_a_range_of_half_points_in_go_and_size_a_number_in_hex(env, words):
    assert words in refusal(env=env)


def test_module_is_refused_for_other_simulators():
    assert "module is only for gymnasium_simulator" in refusal(env={"name": "open_spiel", "id": "go", "module": "m"})


@pytest.mark.parametrize(
    ("word", "suggestion"), [("Hoper-v5", " (did you mean 'Hopper-v5'?)"), ("Nope-v1", ""), ("", "")]
)
def test_only_similar_names_are_suggested(word, suggestion):
    assert nearest(word, ["CartPole-v1", "Hopper-v5", "Ant-v5"]) == suggestion


RECORDS = {"records": "games"}


@pytest.mark.parametrize(
    ("sections", "setting"),
    [
        ({"data": {"share": 0.5}}, "data.records"),
        ({"data": RECORDS | {"share": 0.0}}, "data.share"),
        ({"data": RECORDS | {"share": 1.1}}, "data.share"),
        ({"data": RECORDS, "stop": {"games": 100}}, "stop.steps"),
        ({"stop": {"cost": 100}}, "cluster.price_per_hour"),
        ({"data": RECORDS, "reanalyse": {"share": 0.5}}, "reanalyse.share=0"),
        ({"data": RECORDS | {"share": 0.6}, "reanalyse": {"share": 0.4}}, "below 1"),
        (
            {"data": RECORDS | {"share": 0.5}, "replay": {"sampler": "prioritized", "samples_per_item": 1}},
            "replay.sampler=uniform",
        ),
        ({"data": RECORDS | {"share": 0.5}, "learner": {"batch_size": 1}}, "learner.batch_size=2"),
    ],
)
def test_records_that_an_experiment_cannot_train_on_are_refused(sections, setting):
    assert setting in refusal(**sections)


@pytest.mark.parametrize(
    ("recorded", "reanalysed", "batch", "hosts", "parts"),
    [
        (None, 0.0, 512, 1, (512, 0, 0)),
        (None, 0.5, 512, 1, (256, 256, 0)),
        (None, 0.3, 10, 1, (7, 3, 0)),
        (None, 0.3, 20, 2, (14, 6, 0)),
        (None, 0.001, 512, 4, (508, 4, 0)),
        (None, 0.999, 512, 4, (4, 508, 0)),
        (1.0, 0.0, 64, 2, (0, 0, 64)),
        (0.5, 0.0, 64, 1, (32, 0, 32)),
        (0.5, 0.25, 64, 2, (16, 16, 32)),
        (0.001, 0.001, 64, 4, (56, 4, 4)),
        (0.999, 0.0, 64, 4, (4, 0, 60)),
        (0.8, 0.19, 48, 16, (16, 16, 16)),
    ],
)
def test_a_batch_has_whole_samples_of_each_kind_on_every_host(recorded, reanalysed, batch, hosts, parts):
    accepted = experiment(
        data={} if recorded is None else RECORDS | {"share": recorded},
        reanalyse={"share": reanalysed},
        learner={"batch_size": batch},
        cluster={"hosts": hosts},
        replay={"shards": hosts, "samples_per_insert": 8.0},
    )
    assert accepted.batch_parts == parts


def test_without_self_play_the_settings_of_replay_do_not_matter():
    assert "deadlock" in refusal(replay={"tolerance": 1})
    found = experiment(data=RECORDS, replay={"tolerance": 1, "shards": 3}, cluster={"hosts": 2})
    assert not found.has_self_play


def test_the_folder_of_records_is_found_beside_the_experiment(tmp_path):
    (tmp_path / "games").mkdir()
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SMALL | {"data": RECORDS}))
    assert load(str(tmp_path / "mine.yaml")).data.records == str(tmp_path / "games")


def test_runs_that_oppose_are_found_beside_the_experiment(tmp_path):
    (tmp_path / "run").mkdir()
    opponents = "[{who: self, share: 0.5}, {who: run@3, share: 0.5}]"
    file = tmp_path / "mine.yaml"
    file.write_text(f"extends: tic_tac_toe\nactors: {{opponents: {opponents}}}\n")
    assert [entry.who for entry in load(str(file)).actors.opponents] == ["self", str(tmp_path / "run@3")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("env: {name: hex}\nseed: 1\nlearner: {batch_size: 64}\nseed: 2\n", "line 4, column 1: 'seed' is given twice"),
        ("env: {name: hex, name: chess}\n", "line 1, column 18: 'name' is given twice"),
        ("env: {name: hex}\nreplay: {}\n'replay': {}\n", "line 3, column 1: 'replay' is given twice"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(str(tmp_path / "mine.yaml"))


def test_keys_that_an_alias_merges_may_be_replaced():
    text = "a: &base {x: 1, y: 2}\nb: {<<: *base, x: 3}\nc: {<<: [*base, {z: 1}], <<: {w: 1}}\n"
    with pytest.raises(yaml.YAMLError, match="'<<' is given twice"):
        read_yaml(text)
    assert read_yaml(text.partition("c:")[0])["b"] == {"x": 3, "y": 2}
    nested = "a: &a {k: 0}\nx: {inner: &i {<<: *a, k: 1}}\ny: {<<: *i}\n"
    assert read_yaml(nested) == yaml.safe_load(nested)


_KEYS = st.text("abcdefghij", min_size=1, max_size=2)
_TREES = st.recursive(
    st.integers(0, 9),
    lambda inner: st.dictionaries(_KEYS, inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(tree=st.dictionaries(_KEYS, _TREES, min_size=1), block=st.booleans())
def test_a_file_with_unique_keys_is_read_as_it_was_written(tree, block):
    text = yaml.safe_dump(tree, default_flow_style=not block)
    assert read_yaml(text) == tree
    if block:
        with pytest.raises(yaml.YAMLError, match="is given twice"):
            read_yaml(text + yaml.safe_dump({next(iter(tree)): 1}))


@pytest.mark.parametrize("name", ["..", ".", "/", "../x", "/tmp/x", "a/../../b", "a//b", "a/", "a\0b"])
def test_a_name_that_leads_out_of_the_folder_of_runs_is_refused(name):
    with pytest.raises(ConfigError, match=r"name: .*folder"):
        parse({"name": name, "env": {"name": "hex"}}, "mine")


@pytest.mark.parametrize("name", ["hex", "..hex", "team/hex", "große Läufe", "a..b"])
def test_other_names_are_taken(name):
    assert parse({"name": name, "env": {"name": "hex"}}, "mine").name == name


@pytest.mark.parametrize(
    "address", ["http://me:secret@host:5000", "https://secret@host", "postgresql://me:secret@h/db"]
)
def test_a_password_in_an_address_is_refused_and_not_repeated(address):
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD") as refused:
        load("hex", [f"metrics.mlflow={address}"])
    assert "secret" not in str(refused.value)
    assert load("hex", ["metrics.mlflow=http://host:5000/a@b"]).metrics.mlflow == "http://host:5000/a@b"


def fits(publish_every, steps):
    """Whether publications fall on whole dispatches of `steps`, or dispatches on whole publications."""
    return publish_every % steps == 0 or steps % publish_every == 0


@given(publish_every=st.integers(1, 200), step_s=st.floats(1e-5, 1.0))
def test_auto_is_the_smallest_divisor_or_multiple_of_publish_every_whose_dispatch_takes_15_ms(publish_every, step_s):
    learner = LearnerConfig(publish_every=publish_every)
    steps = learner.dispatch_steps(step_s)
    assert fits(publish_every, steps)
    assert steps * step_s >= 0.015 * (1 - 1e-9)
    assert all(fewer * step_s < 0.015 for fewer in range(1, steps) if fits(publish_every, fewer))
    assert LearnerConfig(publish_every=publish_every, steps_per_dispatch=1).dispatch_steps(step_s) == 1
    assert publish_every % learner.dispatch_steps() == 0
    assert learner.dispatch_steps() <= 4


def test_auto_is_found_at_once_for_a_learner_that_hardly_ever_publishes():
    """1, 2, 4, 5, 8, 10 and 16 divide it."""
    assert LearnerConfig(publish_every=10**12).dispatch_steps(0.001) == 16


@pytest.mark.parametrize("steps", ["automatic", 0, 2.5])
def test_steps_per_dispatch_are_a_number_or_auto(steps):
    said = refusal(learner={"steps_per_dispatch": steps})
    assert "learner.steps_per_dispatch" in said
    assert "integer above 0 or auto" in said


@pytest.mark.parametrize(
    ("overrides", "samples"),
    [
        (("connect_four",), 8), (("connect_four", "actors.games=255"), 8), (("connect_four", "actors.games=4096"), 32),
        (("connect_four", "actors.games=4096", "replay.samples_per_item=16"), 16),
        (("cartpole", "actors.games=256"), 1),
    ],
)  # fmt: skip
def test_actors_of_many_games_write_larger_items(overrides, samples):
    name, *changes = overrides
    assert load(name, changes).replay.samples_per_item == samples


LEARNED = {
    "env": {"name": "gymnax", "id": "CartPole-v1", "model": "learned"},
    "network": {"name": "muzero_mlp"},
    "actors": {"inference": "device"},
}


def test_a_learned_model_has_the_discount_of_muzero_unless_another_is_given():
    assert experiment(**LEARNED).env.discount == 0.997
    assert experiment(**LEARNED | {"env": LEARNED["env"] | {"discount": 0.9}}).env.discount == 0.9
    assert experiment(env={"name": "gymnax", "id": "CartPole-v1"}).env.discount == 1.0


def test_agents_of_a_learned_model_and_of_the_rules_do_not_play_each_others_games():
    learned, rules = experiment(**LEARNED), experiment(env={"name": "gymnax", "id": "CartPole-v1"})
    assert not learned.plays(rules.env.title)
    assert not rules.plays(learned.env.title)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"network": {"name": "mlp"}}, ["needs a network that learns a model", "env.model=rules"]),
        ({"env": {"name": "gymnax", "id": "CartPole-v1"}}, ["'muzero_mlp' learns a model", "env.model=learned"]),
        ({"actors": {}}, ["actors.inference = local", "actors.inference=device"]),
        ({"reanalyse": {"share": 0.25}}, ["reanalyse.share", "remove it"]),
        ({"data": {"records": "somewhere", "share": 0.5}}, ["data.records", "remove it"]),
        (
            {"actors": {"inference": "device", "opponents": [{"who": "self", "share": 1.0}]}},
            ["actors.opponents", "remove it"],
        ),
    ],
)
def test_what_cannot_go_with_a_learned_model_of_a_simulator_is_refused_by_name(changes, words):
    found = refusal(**LEARNED | changes)
    assert all(word in found for word in words), found
