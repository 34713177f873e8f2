"""What a launch says before it rents machines, and what it asks."""

import pytest
import typer
from cloud_tools import OPTIONS, calls, words

from podzero.config import load
from podzero.launch.targets import cli as command
from podzero.tools.compile import waiting

CPU_ACTORS = ["go_9x9", "cluster.slice=v5e-16", "replay.shards=4", "actors.count=100"]


@pytest.fixture
def terminal(monkeypatch):
    """Answers the question of a launch."""

    def answer(yes):
        monkeypatch.setattr(command.sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(typer, "confirm", lambda question: yes)

    return answer


MACHINES = {
    "queued": "machines: v5litepod-16: 4 hosts with 4 chips, 112 CPUs, 178 GiB each",
    "gke": "machines: 1 pod of 4 CPUs: the head; 1 pods of 16 CPUs and 64 GiB; v5litepod-16: 4 hosts",
}


@pytest.mark.parametrize("target", MACHINES)
def test_a_launch_says_what_it_rents_at_what_price_and_what_the_chips_will_do(podzero, tools, tmp_path, states, target):
    launch = [target, "slices/go_9x9_v5e_16", "cluster.price_per_hour=19.2", *OPTIONS]
    found = waiting.rates(load("slices/go_9x9_v5e_16"))
    chips = f"its chips play {1 - found.training:.0%} of the time and train {found.training:.0%} of it"
    for options in (["--dry-run"], []):
        code, out, err = podzero(*launch, *options)
        assert code == 0, err
        assert MACHINES[target] in out
        assert "price: 19.20 an hour, at most 192.00 from" in out
        assert f"learner: {chips}, {found.moves_per_s:,.0f} moves/s; none waits" in out
    assert calls(tmp_path)


def test_a_dry_run_says_it_in_comments(podzero, tools):
    _, out, _ = podzero("gke", *CPU_ACTORS, *OPTIONS, "--dry-run")
    (learner,) = [line for line in out.splitlines() if line.startswith("# learner:")]
    assert learner.startswith("# learner: it will wait 99.8% of its time for actors (estimated: ")


def test_a_launch_that_waits_is_refused_where_nobody_can_be_asked(podzero, tools, tmp_path):
    code, out, err = podzero("gke", *CPU_ACTORS, *OPTIONS)
    assert code == 2
    assert "learner: it will wait 99.8% of its time" in out
    assert "actors.inference=device" in err
    assert "--yes" in err
    assert calls(tmp_path) == []


def test_a_launch_that_waits_is_started_if_the_answer_is_yes(podzero, tools, tmp_path, terminal):
    terminal(True)
    assert podzero("gke", *CPU_ACTORS, *OPTIONS)[0] == 0
    assert calls(tmp_path)


def test_a_launch_that_waits_is_left_alone_if_the_answer_is_no(podzero, tools, tmp_path, terminal):
    terminal(False)
    code, out, _ = podzero("gke", *CPU_ACTORS, *OPTIONS)
    assert code == 1
    assert "Nothing was started" in out
    assert calls(tmp_path) == []


UNLIMITED = ["slices/go_9x9_v5e_16", *OPTIONS, "stop.minutes=null"]


def test_a_launch_without_a_limit_is_refused_where_nobody_can_be_asked(podzero, tools, tmp_path):
    code, _, err = podzero("queued", *UNLIMITED)
    assert (code, calls(tmp_path)) == (2, [])
    assert "stop.hours=" in err
    assert "--yes" in err


@pytest.mark.parametrize(("answer", "code"), [(True, 0), (False, 1)])
def test_a_launch_without_a_limit_asks(podzero, tools, tmp_path, states, terminal, answer, code):
    terminal(answer)
    assert podzero("queued", *UNLIMITED)[0] == code
    assert bool(calls(tmp_path)) == answer


@pytest.mark.parametrize("limit", ["stop.steps=1000", "stop.games=10"])
def test_another_limit_is_enough_but_has_no_price(podzero, tools, tmp_path, states, limit):
    code, out, err = podzero("queued", *UNLIMITED, limit, "cluster.price_per_hour=19.2")
    assert code == 0, err
    assert "price: 19.20 an hour, without a limit of time" in out


@pytest.mark.parametrize(
    ("limits", "total"),
    [
        (["stop.hours=5"], "at most 96.00 for 5 hours"),
        (["stop.cost=48"], "at most 48.00 for 2.5 hours"),
        (["stop.cost=48", "stop.hours=2"], "at most 38.40 for 2 hours"),
    ],
)
def test_the_most_that_a_launch_can_cost_is_said_before_it_starts(podzero, tools, tmp_path, states, limits, total):
    code, out, err = podzero("queued", *UNLIMITED, *limits, "cluster.price_per_hour=19.2")
    assert code == 0, err
    assert f"price: 19.20 an hour, {total}" in out


def test_a_limit_of_cost_needs_a_price(podzero, tools, tmp_path):
    code, _, err = podzero("queued", *UNLIMITED, "stop.cost=48")
    assert (code, calls(tmp_path)) == (2, [])
    assert "cluster.price_per_hour" in err


def test_nobody_is_asked_before_machines_are_deleted(podzero, tools, tmp_path):
    code, out, err = podzero("gke", *CPU_ACTORS, *OPTIONS, "--down")
    assert code == 0, err
    assert "learner:" not in out


def test_what_is_not_known_is_said_and_not_asked_about(podzero, tools):
    code, out, err = podzero("gke", "cartpole", "cluster.slice=v5e-16", "replay.shards=4", *OPTIONS)
    assert code == 0, err
    assert "unknown" in out
    assert "price: not given" in out


def test_yes_answers_beforehand(podzero, tools, tmp_path):
    assert podzero(*words("gke"))[0] == 0  # with --yes
    assert calls(tmp_path)


def test_a_share_never_rounds_to_all_of_the_time():
    assert [command.waiting_share(waiting) for waiting in (0.5, 0.998, 0.9996)] == ["50.0%", "99.8%", "more than 99.9%"]
