"""What the schema accepts, what it refuses, and whether a person can tell from the refusal what to write instead."""

import re

import pydantic
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from podzero.config import Experiment, builtin_configs, load, parse
from podzero.errors import ConfigError

SMALL = {"name": "small", "env": {"name": "tic_tac_toe"}}


def experiment(**sections):
    return parse(SMALL | sections, "test")


def refusal(**sections):
    with pytest.raises(ConfigError) as caught:
        experiment(**sections)
    return str(caught.value)


@pytest.mark.parametrize("name", builtin_configs())
def test_every_experiment_that_ships_loads_and_opens_with_its_card(name):
    assert load(name).name == name
    text = builtin_configs()[name].read_text()
    assert text.startswith("# ")
    assert f"podzero train {name}" in text


@pytest.mark.parametrize("name", builtin_configs())
def test_what_is_written_out_is_what_comes_back_in(name, tmp_path):
    first = load(name, ["replay.samples_per_insert=8.5", "stop.minutes=2"])
    path = tmp_path / "other_name.yaml"
    path.write_text(first.to_yaml())
    assert load(str(path)) == first


@given(
    channels=st.integers(1, 512),
    learning_rate=st.floats(1e-9, 10.0),
    tolerance=st.none() | st.floats(600.0, 16384.0),
    opponents=st.lists(st.sampled_from(["random", "mcts:100", "earlier", "solver"])),
    minutes=st.none() | st.floats(0.1, 1e6),
)
def test_any_experiment_survives_the_way_through_yaml(channels, learning_rate, tolerance, opponents, minutes):
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
        ({"actors": {"count": 2, "min_count": 3}}, "actors", ["min_count 3 is above count 2"]),
        ({"learner": {"ema": 1.5}}, "learner.ema = 1.5", ["less than or equal to 1"]),
        ({"learner": {"mesh": {"data": 0}}}, "learner.mesh.data", ["-1 or at least 1"]),
        ({"learner": {"optimizer": {"schedule": "cosine"}}}, "learner.optimizer", ["'cosine' needs decay_steps"]),
        ({"network": {"name": "resnett"}}, "network.name = 'resnett'", ["did you mean 'resnet'", "transformer"]),
        ({"network": {"channels": 8}}, "network.name", ["missing", "transformer"]),
        ({"network": {"name": "resnet", "chanels": 8}}, "network.chanels", ["did you mean 'channels'"]),
        ({"network": {"name": "transformer", "width": 10, "heads": 4}}, "network", ["multiple of heads 4"]),
        ({"search": "fast"}, "search = 'fast'", []),
    ],
)
def test_a_refusal_names_the_field_its_value_and_the_nearest_right_name(sections, field, words):
    message = refusal(**sections)
    assert message.startswith("test: this experiment cannot be run:\n")
    assert f"  {field}" in message
    for word in words:
        assert word in message


def test_everything_that_is_wrong_is_said_at_once():
    message = refusal(learner={"batch_size": -1, "prefetch": 0}, env={"name": "tic_tac"})
    assert message.count("\n") == 3


def test_a_refusal_carries_no_trace_of_the_machinery():
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


@given(
    batch=st.integers(1, 4096),
    ratio=st.floats(0.1, 64.0),
    min_size=st.integers(1, 200_000),
    shards=st.integers(1, 16),
)
def test_an_accepted_replay_leaves_room_for_a_batch_and_an_insert_on_every_shard(batch, ratio, min_size, shards):
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
    ("share", "batch", "hosts", "parts"),
    [(0.0, 512, 1, (512, 0)), (0.5, 512, 1, (256, 256)), (0.3, 10, 1, (7, 3)), (0.3, 20, 2, (14, 6)),
     (0.001, 512, 4, (508, 4)), (0.999, 512, 4, (4, 508))],
)  # fmt: skip
def test_a_batch_holds_whole_samples_of_either_kind_on_every_host(share, batch, hosts, parts):
    accepted = experiment(
        reanalyse={"share": share},
        learner={"batch_size": batch},
        cluster={"hosts": hosts},
        replay={"shards": hosts, "samples_per_insert": 8.0},
    )
    assert accepted.batch_parts == parts


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"learner": {"batch_size": 1}}, "batch_size 1 is too small for reanalyse.share 0.5"),
        ({"reanalyse": {"games": 12}}, "reanalyse.games 12 must be a multiple of replay.samples_per_item (8)"),
        ({"reanalyse": {"capacity": 100}}, "capacity 100 is too small: learning starts from 256 reanalysed samples"),
    ],
)
def test_a_reanalysis_that_could_not_work_is_refused(sections, words):
    assert words in refusal(**sections | {"reanalyse": {"share": 0.5} | sections.get("reanalyse", {})})


@given(
    share=st.floats(0.001, 0.999),
    batch=st.integers(2, 4096),
    ratio=st.floats(0.1, 64.0),
    shards=st.integers(1, 16),
    tolerance=st.none() | st.floats(1.0, 1e5),
)
def test_refreshed_samples_leave_room_for_a_batch_and_an_insert_on_every_shard(share, batch, ratio, shards, tolerance):
    replay = {"samples_per_insert": ratio, "shards": shards, "min_size": 200_000, "tolerance": tolerance}
    try:
        accepted = experiment(learner={"batch_size": batch}, replay=replay, reanalyse={"share": share})
    except ConfigError:
        return
    fresh, refreshed = accepted.batch_parts
    assert fresh > 0
    assert refreshed > 0
    assert fresh + refreshed == batch
    assert accepted.reanalysed_tolerance >= refreshed + shards * accepted.replay.samples_per_item * max(1.0, ratio)
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
        ("learner.batch_size=[1", "not YAML"),
        ("learner.batchsize=3", "did you mean 'batch_size'"),
        ("stop.minuts=3", "did you mean 'minutes'"),
    ],
)
def test_a_wrong_override_is_refused_in_words(override, words):
    with pytest.raises(ConfigError, match="(?s).*" + re.escape(words)):
        load("tic_tac_toe", ["seed=1", override])


def test_an_unknown_experiment_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'tic_tac_toe'"):
        load("tictactoe")


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words"])
def test_a_file_that_holds_no_sections_is_refused(tmp_path, text):
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"expected `section: \.\.\.` lines"):
        load(str(path))


@pytest.mark.parametrize("content", [b"env: {name", b"\xff\xfe\x00", b"a: \x00"])
def test_a_file_that_is_no_yaml_is_refused(tmp_path, content):
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read as YAML"):
        load(str(path))


def test_the_name_of_a_file_names_its_experiment(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("env: {name: hex}\n")
    assert load(str(path)).name == "mine"


def test_an_experiment_does_not_change():
    with pytest.raises(pydantic.ValidationError):
        experiment().seed = 3
    assert isinstance(experiment(), Experiment)


def test_the_hosts_of_a_learner_are_those_of_its_slice():
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
        (["cluster.slice=v5e-16", "cluster.hosts=3"], "v5e-16 has 4 hosts, not 3"),
        (["cluster.hosts=4", "replay.shards=6"], "replay.shards 6 is not divided by the 4 learner hosts.*shards=8"),
        (["cluster.hosts=3", "replay.shards=3"], "learner.batch_size 512 is not divided by the 3.*batch_size=513"),
    ],
)
def test_hosts_that_do_not_fit_are_refused_with_what_would(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load("connect_four", overrides)


@pytest.mark.parametrize("name", ["randm", "mcts", "mcts:0", "runs/other"])
def test_an_opponent_that_nobody_is_called_is_refused(name):
    refused = refusal(evaluation={"opponents": ["random", name]})
    assert f"evaluation.opponents.1 = '{name}': string should match pattern '^(random|solver|earlier|mcts" in refused


def test_opponents_are_refused_where_nobody_is_met():
    with pytest.raises(ConfigError, match="nobody is met in gymnasium/CartPole-v1"):
        load("cartpole", ["evaluation.opponents=[random]"])


def test_files_of_ones_own_are_found_beside_the_experiment(tmp_path, monkeypatch):
    """What is there is known by its whole path from then on; what is not is left as it was written."""
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


def test_only_gymnasium_environments_are_registered_by_a_module():
    assert "module is for gymnasium_simulator only" in refusal(env={"name": "open_spiel", "id": "go", "module": "m"})
