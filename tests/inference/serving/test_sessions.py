"""Who may send requests to a server."""

import pytest

from podzero.inference.serving.messages import CREDITS, Hello, Identity
from podzero.inference.serving.server import LEASE_S, Refusal, Sessions

IDENTITY = Identity("run", "hex", "resnet 1234", 16, 10)


def hello(name="actor-0", positions=8, **changes):
    return Hello(name, positions, IDENTITY._replace(**changes))


def sessions(most=10 * CREDITS * 8):
    return Sessions("inference-0", IDENTITY, 99, most)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "resnet 9999"}, "another network 'resnet 9999' instead of 'resnet 1234'"),
        ({"game": "go", "row_bytes": 3}, "another game 'go' instead of 'hex', another row_bytes 3 instead of 16"),
    ],
)
def test_an_actor_with_another_network_or_game_is_refused_for_good(changes, message):
    with pytest.raises(Refusal, match=message) as refusal:
        sessions().admit(b"a", hello(**changes), 0.0)
    assert not refusal.value.elsewhere


def test_an_actor_of_another_run_is_sent_elsewhere():
    with pytest.raises(Refusal, match="belongs to another run") as refusal:
        sessions().admit(b"a", hello(run="other", network="other"), 0.0)
    assert refusal.value.elsewhere


def test_more_than_memory_holds_is_refused_with_the_setting_to_change():
    served = sessions(most=2 * CREDITS * 8)
    served.admit(b"a", hello(), 0.0)
    served.admit(b"b", hello(), 0.0)
    with pytest.raises(Refusal, match=r"hold 32 positions \(1 GiB\).*server.count") as refusal:
        served.admit(b"c", hello(), 1.0)
    assert refusal.value.elsewhere
    assert served.active(1.0) == 2


def test_a_silent_client_loses_its_place_to_a_new_one():
    served = sessions(most=2 * CREDITS * 8)
    served.admit(b"a", hello(), 0.0)
    served.admit(b"b", hello(), 5.0)
    assert served.admit(b"c", hello(), LEASE_S + 1.0) == [b"a"]
    with pytest.raises(KeyError):
        served.ask(b"a", 0, 1, LEASE_S + 2.0)


def test_credits_and_the_announced_size_bound_what_a_client_sends():
    served = sessions()
    served.admit(b"a", hello(), 0.0)
    with pytest.raises(Refusal, match=r"sent 9 positions .* announced 8"):
        served.ask(b"a", 0, 9, 0.0)
    for number in range(CREDITS):
        served.ask(b"a", number, 8, 0.0)
    with pytest.raises(Refusal, match=f"more than {CREDITS} unanswered"):
        served.ask(b"a", 9, 8, 0.0)
    served.answered(b"a", 0)
    served.ask(b"a", 9, 8, 0.0)


def test_an_answer_to_an_earlier_session_gives_no_credit():
    served = sessions()
    served.admit(b"a", hello(), 0.0)
    served.ask(b"a", 0, 8, 0.0)
    served.admit(b"a", hello(), 1.0)
    served.ask(b"a", 1, 8, 1.0)
    served.answered(b"a", 0)
    assert not served.others_may_ask(1.0)


def test_a_refused_client_keeps_its_place_and_takes_nobody_elses():
    served = sessions(most=2 * CREDITS * 8)
    served.admit(b"a", hello(), 0.0)
    served.admit(b"b", hello(), 0.0)
    with pytest.raises(Refusal):
        served.admit(b"a", hello(positions=99), LEASE_S + 1.0)
    served.ask(b"a", 0, 8, LEASE_S + 2.0)
    served.ask(b"b", 0, 8, LEASE_S + 2.0)


def test_only_active_clients_without_a_request_are_waited_for():
    served = sessions()
    assert not served.others_may_ask(0.0)
    served.admit(b"a", hello(), 0.0)
    assert served.others_may_ask(0.5)
    assert not served.others_may_ask(5.0)  # silent for long: perhaps it is gone
    served.ask(b"a", 0, 8, 5.0)
    assert not served.others_may_ask(5.1)
    served.answered(b"a", 0)
    assert served.others_may_ask(5.2)
