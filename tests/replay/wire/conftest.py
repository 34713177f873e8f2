"""Reverb's own client, in the environment of the replay server."""

import pytest

from podzero.tools.bench.replay import BareClient


class RowClient:
    """Reverb's own client of tables whose items are rows of `size` bytes, in a column `rows`."""

    def __init__(self, endpoint, size):
        self._client = BareClient(endpoint)
        self._columns = [("rows", [size], "uint8")]

    def insert(self, table, rows, priorities, chunk=1):
        digits = [row.tobytes().hex() for row in rows]
        return self._client.ask(
            "insert", table, columns=self._columns, rows=digits, priorities=list(priorities), chunk=chunk
        )

    def sample(self, table, items):
        """`items` pairs of key and bytes."""
        answer = self._client.ask("sample", table, columns=self._columns, items=items)
        return [(key, bytes.fromhex(row)) for key, row in answer]

    def close(self):
        self._client.close()


@pytest.fixture
def own_client():
    """Makes clients of an endpoint, which end with the test."""
    clients = []

    def make(endpoint, size):
        clients.append(RowClient(endpoint, size))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
