"""The directory of addresses, and the copy of it that each process keeps."""

from __future__ import annotations

import queue
import threading

import pytest

from podzero.core.errors import ClusterError
from podzero.runtime.cluster import services as module
from podzero.runtime.cluster.services import STALE_S, AddressBook, Directory


def test_the_directory_forgets_servers_that_fall_silent(clock):
    directory = Directory()
    directory.announce("replay-0", 0, "a:1")
    clock[0] += STALE_S / 2
    directory.announce("inference-0", 0, "b:1")
    assert directory.addresses() == {"replay-0": "a:1", "inference-0": "b:1"}
    clock[0] += STALE_S / 2
    assert directory.addresses() == {"inference-0": "b:1"}


def test_a_process_that_was_replaced_and_still_runs_is_ignored():
    directory = Directory()
    for address, attempt in (("a:1", 40), ("b:1", 41), ("a:1", 40)):
        directory.announce("replay-0", attempt, address)
    assert directory.addresses() == {"replay-0": "b:1"}


@pytest.fixture
def open_book(monkeypatch):
    """Opens an address book; the second value answers one question of it, by addresses or by an exception."""
    asked = queue.Queue()

    def ask():
        answer, heard = asked.get()
        heard.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(module, "ASK_EVERY_S", 0.0)

    def tell(*answers):
        """Answers, and then once more as the last time: the book has taken in what it hears before it asks again."""
        for answer in (*answers, answers[-1]):
            heard = threading.Event()
            asked.put((answer, heard))
            assert heard.wait(10.0)

    return AddressBook(ask), tell


def test_servers_are_waited_for_by_name(open_book):
    book, tell = open_book
    tell({"replay-0": "a:1"})
    with pytest.raises(ClusterError, match=r"waited 0 s for replay-1 "):
        book.await_servers(["replay-0", "replay-1"], 0.01)
    tell({"replay-1": "b:1", "replay-0": "a:1", "replay-2": "c:1"})
    assert book.await_servers(["replay-0", "replay-1"], 10.0)() == ["a:1", "b:1"]


def test_a_server_that_is_missing_keeps_its_last_address_until_it_announces_another(open_book):
    book, tell = open_book
    tell({"replay-0": "a:1", "replay-1": "b:1"})
    addresses = book.await_servers(["replay-0", "replay-1"], 10.0)
    tell({"replay-0": "a:1"})
    assert (book.present("replay"), addresses()) == ({"replay-0": "a:1"}, ["a:1", "b:1"])
    tell({"replay-0": "a:1", "replay-1": "c:1"})
    assert addresses() == ["a:1", "c:1"]


def test_the_servers_of_one_kind_are_found_without_the_others(open_book):
    book, tell = open_book
    tell({"replay-0": "a:1", "inference-0": "b:1", "inference-1": "c:1"})
    assert book.present("inference") == {"inference-0": "b:1", "inference-1": "c:1"}


def test_a_directory_that_does_not_answer_is_said_once_and_asked_again(open_book, caplog):
    book, tell = open_book
    tell({"replay-0": "a:1"})
    addresses = book.await_servers(["replay-0"], 10.0)
    tell(ClusterError("waited 20 s"), ClusterError("waited 20 s"))
    with pytest.raises(ClusterError, match="waited 20 s"):
        book.present("replay")
    assert addresses() == ["a:1"]
    assert len(caplog.messages) == 1
    tell({"replay-0": "b:1"})
    assert (book.present("replay"), addresses()) == ({"replay-0": "b:1"}, ["b:1"])
