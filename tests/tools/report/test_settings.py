"""How an experiment differs from the built-in one of its name, or from the defaults."""

from podzero.changes import Change, RecordedChange
from podzero.config import load, parse
from podzero.tools.report.settings import settings


def test_settings_that_differ_from_the_built_in_experiment():
    section = settings(load("connect_four", ["learner.batch_size=64", "actors.games=7"]), load("connect_four"))
    (table,) = section.tables
    held = load("connect_four")
    assert table.rows == [
        ("actors.games", f"{held.actors.games}", "7"),
        ("learner.batch_size", f"{held.learner.batch_size}", "64"),
    ]
    assert "batch_size: 64" in section.text


def test_an_unchanged_experiment_has_no_differences():
    section = settings(load("connect_four"), load("connect_four"))
    assert section.tables == ()
    assert "none" in section.facts["differences"]


def test_what_was_changed_at_resumptions_is_listed_with_its_step():
    change = RecordedChange(1_700_000_000.0, 1200, Change("learner.optimizer.learning_rate", 0.001, 0.0005))
    section = settings(load("connect_four"), load("connect_four"), [change])
    ((step, _, *rest),) = section.tables[0].rows
    assert (step, *rest) == ("1,200", "learner.optimizer.learning_rate", "0.001", "0.0005")


def test_an_experiment_of_ones_own_is_compared_with_the_defaults():
    own = parse({"name": "mine", "env": {"name": "hex"}, "learner": {"batch_size": 64}}, "mine")
    (table,) = settings(own, None).tables
    rows = {row[0]: row[1:] for row in table.rows}
    default = type(own).model_fields["learner"].default.batch_size
    assert rows["learner.batch_size"] == (f"{default}", "64")
    assert rows["env.name"] == ("\N{EN DASH}", "hex")
    assert "learner.publish_every" not in rows
