"""Where pages are served: this machine alone unless asked otherwise."""

import socket

import pytest

from podzero.tools.commands.listen_address import AddressNotUsable, ListenAddress, free_address


def test_without_a_host_only_this_machine_reaches_the_page():
    found = free_address(None, None)
    assert (found.host, found.is_local) == ("127.0.0.1", True)
    assert found.accepted_hosts == (f"127.0.0.1:{found.port}", f"localhost:{found.port}")
    assert found.url == f"http://127.0.0.1:{found.port}"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://localhost:80"),
        ("::", "http://localhost:80"),
        ("192.0.2.7", "http://192.0.2.7:80"),
        ("2001:db8::7", "http://[2001:db8::7]:80"),
        ("box.example", "http://box.example:80"),
    ],
)
def test_other_addresses_are_answered_under_any_name(host, url):
    found = ListenAddress(host, 80)
    assert (found.url, found.accepted_hosts, found.is_local) == (url, None, False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_loopback_addresses_refuse_foreign_names(host):
    assert ListenAddress(host, 80).accepted_hosts is not None


def test_a_port_in_use_is_refused_with_advice():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(AddressNotUsable, match="choose another --port"):
            free_address(None, other.getsockname()[1])


@pytest.mark.parametrize("host", ["192.0.2.7", "no such host"])
def test_an_address_of_another_machine_is_refused_with_advice(host):
    with pytest.raises(AddressNotUsable, match="choose another --host"):
        free_address(host, None)
