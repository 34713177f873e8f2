"""Experiments with anything in the place of their settings are refused by name, or can be run: no other error."""

from __future__ import annotations

import math
import time
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from mutations import TEXTS, mutated, values

from podzero.config import builtin_configs, flatten, load, read_layers, schedule_note
from podzero.core import importing
from podzero.core.errors import ConfigError, PodzeroError
from podzero.files.players import parse_player
from podzero.files.workdir import Workdir
from podzero.launch import train
from podzero.tools.commands.trust import TrustedCode

CPU_S = 2.0
"""The most seconds of a CPU that a refusal may take."""
_TEXTS = [
    *TEXTS,
    *(
        "",
        " ",
        "a\nb",
        "x" * 5000,
        "ü\u202e",
        "\ud800",
        "a\0b",
        "\x1b]0;x\x07",
        "1e400",
        "%s",
        "{}",
        "!!x",
        "(",
        "(" * 999,
    ),
    *("..", "../../x", "/dev/zero", "/etc/passwd", "~nobody/x", "~nobody/x.py:Y", "a\0.py:Y", "/tmp@" + "9" * 5000),
    *("os:system", "subprocess:Popen", ":", "a:b", "x.py:Y", "x.py", "self", "random", "zoo:", "zoo:tic_tac_toe"),
    *("mcts:0", "mcts:²", "mcts:" + "9" * 5000, "gnugo:99", "v5e-16", "v5e:4x4x999", "a{9999999999999999999}"),
    *("http://[", "[::1]:80", "http://me:secret@host", "0.0.0.0:99999", "file:///etc/passwd"),
]
_SECTIONS = [
    *({"a.b": 1}, {1: 2}, {None: 1}, {"": 1}, {"name": None}, {"name": []}, {"name": {}}, {"name": "simulator"}),
    *({"name": "x.py:Y", "learns_model": True}, {"name": "gymnasium"}, [{"who": "self", "share": math.nan}], [{}]),
]
_VALUES = values(_TEXTS, _SECTIONS)


def bomb(one, several):
    """A list of aliases of a list of aliases, and so on, which stands for 9 ** 7 values."""
    names = "abcdefgh"
    nine = {name: several.format(", ".join([f"*{name}"] * 9)) for name in names}
    return f"&a {one}" + "".join(f"\n  {name}: &{name} {nine[before]}" for before, name in pairwise(names))


_YAML = [
    *("2026-99-99", "9" * 5000, "0b_", "1:99:99", "&a [*a]", "&a {<<: *a}", "*x", "<<", "{[1]: 2}", "{1: 2, 1.0: 3}"),
    *("[" * 2000, "{a: " * 300 + "1" + "}" * 300, "[1" + ",1" * 9999 + "]", "[1" + ",1" * 19999 + "]", "x" * 99999),
    *("!!python/object/apply:os.system [id]", "!!python/name:os.system", "!!binary x", "!!bool x", "!!timestamp x"),
    *("|", "@", bomb("[1, 2]", "[{}]"), bomb("{x: 1}", "{{<<: [{}]}}")),
]
"""Values that only YAML can express, such as aliases that stand for millions of values."""


@cache
def tree_of(name, resolved):
    """The settings of a built-in experiment, those by default too if it is `resolved`."""
    return yaml.safe_load(load(name).to_yaml()) if resolved else read_layers(name).tree


@st.composite
def experiments(draw):
    """A mutated experiment as bytes of YAML."""
    tree = tree_of(draw(st.sampled_from(sorted(builtin_configs()))), draw(st.booleans()))
    tree = draw(mutated(tree, _VALUES, ("zz", "nam", "", 3, None, "extends", "<<", "a.b")))
    text = yaml.safe_dump(tree)
    if draw(st.integers(0, 3)) == 0:
        lines = text.splitlines()
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = lines[number].partition(":")[0] + ": " + draw(st.sampled_from(_YAML))
        text = "\n".join(lines)
    return text.encode() if draw(st.integers(0, 9)) else text.encode()[: draw(st.integers(0, 200))] + b"\xff"


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Checks a file as `podzero train --check` does, without a terminal; returns the refusal or None."""
    monkeypatch.chdir(tmp_path)
    trusted = TrustedCode(tmp_path / "trusted.json", None, "train")
    monkeypatch.setattr(importing, "_approve", [trusted.approve])
    file = tmp_path / "mutated.yaml"

    def check(content, workdir):
        file.write_bytes(content)
        try:
            found = train.find_start(str(file), (), workdir)
            train.check_startable(found.experiment, Workdir(found.root))
        except PodzeroError as refused:
            return str(refused)
        schedule_note(found.experiment)
        assert found.layers.explain(found.experiment.model_dump(mode="json"))
        return None

    return check


NAMES = {part for name in flatten(load("tic_tac_toe").model_dump()) for part in name.split(".")}


def is_for_people(refusal):
    """Whether a refusal names a setting or a line of the file, and its lines can be read."""
    assert all(len(line) < 1500 for line in refusal.splitlines())
    return any(name in refusal for name in (*NAMES, "line ", "YAML"))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(content=experiments(), named=st.booleans())
def test_a_mutated_experiment_is_refused_by_name_or_can_be_run(checked, monkeypatch, content, named):
    monkeypatch.setattr(train, "_check_made", lambda experiment: None)  # compiles programs
    refusal = checked(content, Path("run") if named else None)
    event("accepted" if refusal is None else "refused")
    assert refusal is None or is_for_people(refusal)


@pytest.mark.slow
@pytest.mark.usefixtures("made_here")
def test_a_thousand_are(checked):
    """Prints how many were refused, and the longest time of a CPU that a refusal took."""
    took = []

    @settings(max_examples=1000, database=None, suppress_health_check=list(HealthCheck))
    @given(content=experiments(), named=st.booleans())
    def check(content, named):
        began = time.thread_time()
        refusal = checked(content, Path("run") if named else None)
        took.append((time.thread_time() - began, refusal is not None))
        assert refusal is None or is_for_people(refusal)

    check()
    refusals = sorted(cpu_s for cpu_s, refused in took if refused)
    print(f"{len(took):,} mutated experiments: {len(refusals):,} refused, {len(took) - len(refusals):,} accepted")
    print(f"seconds of CPU for a refusal: median {refusals[len(refusals) // 2]:.3f}, longest {refusals[-1]:.2f}")
    assert refusals[-1] < CPU_S


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("replay: {min_size: .inf, shards: 10000000000000000}", ["replay.min_size = inf", "replay.shards = 1000"]),
        ("learner: {optimizer: {learning_rate: .nan}}", ["learner.optimizer.learning_rate = nan", "finite"]),
        ("learner: {frozen: ['(']}", ["learner.frozen.0", "regular expression"]),
        ("learner: {a.b: 1}", ["learner.a.b", "no such field", "batch_size"]),
        ("seed: 2026-99-99", ["valid YAML", "month"]),
        ("init_from: &a {a: *a}", ["line 2", "within each other"]),
    ],
)
def test_the_refusal_says_what_is_wrong_with_which_setting(checked, text, named):
    refusal = checked(f"env: {{name: hex}}\n{text}".encode(), Path("run"))
    assert refusal is not None
    assert [word for word in named if word not in refusal] == [], refusal


@pytest.mark.parametrize("name", ["~nobody/run", "x" * 5000, "/tmp@" + "9" * 5000, "/tmp@²"])
def test_what_names_no_folder_names_no_run(name):
    with pytest.raises(ConfigError):
        train.find_start(name, (), None)
    with pytest.raises(ConfigError):
        parse_player(name)
