"""The server of a report: loopback only, a token, the right host, no bodies, one report for all browsers."""

import asyncio
import re
import socket
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest
from run_files import line, lines_of

from podzero.files.workdir import WorkdirError
from podzero.tools.commands.listen_address import AddressNotUsable, ListenAddress, free_address
from podzero.tools.report import server as servers
from podzero.tools.report.server import Dashboard


@asynccontextmanager
async def serving(workdir, host=None):
    async with servers.serving(Dashboard(workdir), free_address(host, None)) as address:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as client:
            yield address, client


async def get(client, address, method="GET", **arguments):
    async with client.request(method, address, **arguments) as answer:
        return answer.status, await answer.text(), answer.headers


def ask(workdir, *requests):
    """Status, text and headers of each of `requests`: functions of the address that give arguments of `get`."""

    async def run():
        async with serving(workdir) as (address, client):
            return [await get(client, **request(address)) for request in requests]

    return asyncio.run(run())


def test_the_address_gives_the_report(make_run):
    ((status, text, headers),) = ask(make_run(lines_of(100)), lambda address: {"address": address})
    assert status == 200
    assert "<h1>connect_four</h1>" in text
    assert headers["Content-Type"].startswith("text/html")
    assert headers["Cache-Control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"


def test_it_listens_on_loopback_only(make_run):
    async def run():
        async with serving(make_run()) as (address, _):
            port = urlsplit(address).port
            return [c.laddr.ip for c in psutil.Process().net_connections() if c.laddr and c.laddr.port == port]

    assert set(asyncio.run(run())) == {"127.0.0.1"}


def test_each_server_has_a_token_of_its_own_that_cannot_be_guessed(make_run):
    async def tokens():
        found = []
        for _ in range(3):
            async with serving(workdir) as (address, _):
                found.append(urlsplit(address).path.strip("/"))
        return found

    workdir = make_run()
    found = asyncio.run(tokens())
    assert len(set(found)) == 3
    assert all(re.fullmatch(r"[\w-]{43}", token) for token in found)


@pytest.mark.parametrize(
    "path", ["/", "/wrong/", "/wrong/version", "//", "/%ff%fe/", "/favicon.ico", "/../", "/?token=x"]
)
def test_a_wrong_token_is_refused(make_run, path):
    ((status, text, _),) = ask(make_run(), lambda address: {"address": f"http://{urlsplit(address).netloc}{path}"})
    assert status == 403
    assert "connect_four" not in text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "10.0.0.1:{port}", ""]
)
def test_a_request_for_another_host_is_refused(make_run, host):
    def request(address):
        return {"address": address, "headers": {"Host": host.format(port=urlsplit(address).port)}}

    ((status, text, _),) = ask(make_run(), request)
    assert status == 421
    assert "connect_four" not in text


def test_localhost_is_this_host(make_run):
    def request(address):
        return {"address": address, "headers": {"Host": f"localhost:{urlsplit(address).port}"}}

    assert ask(make_run(), request)[0][0] == 200


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_a_large_body_is_refused_without_being_read(make_run, method):
    request = {"method": method, "data": b"x" * (servers.MAX_BODY + 1)}
    ((status, _, headers),) = ask(make_run(), lambda address: {"address": address, **request})
    assert status == 413
    assert headers["Connection"] == "close"


def test_a_body_that_is_announced_but_never_sent_is_refused_at_once(make_run):
    async def run():
        async with serving(make_run()) as (address, _):
            parts = urlsplit(address)
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            head = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {2**40}\r\n\r\n"
            writer.write(head.encode())
            answer = await asyncio.wait_for(reader.read(), 30)
            writer.close()
            return answer

    assert asyncio.run(run()).startswith(b"HTTP/1.1 413")


def test_a_body_of_unknown_length_is_refused(make_run):
    async def chunks():
        yield b"x"

    ((status, _, _),) = ask(make_run(), lambda address: {"address": address, "method": "POST", "data": chunks()})
    assert status == 413


def test_methods_that_change_something_are_refused(make_run):
    answers = ask(
        make_run(), *(lambda address, method=m: {"address": address, "method": method} for m in ("POST", "DELETE"))
    )
    assert [status for status, _, _ in answers] == [405, 405]


def test_an_unknown_path_behind_the_token_is_not_found(make_run):
    ((status, _, _),) = ask(make_run(), lambda address: {"address": f"{address}../{urlsplit(address).path}x/y"})
    assert status in (403, 404)


def test_two_browsers_at_once_share_one_report(make_run, monkeypatch):
    made = []
    monkeypatch.setattr(servers, "make_report", lambda record, live: made.append(live["version"]) or f"report {live}")

    async def run():
        async with serving(make_run(lines_of(100))) as (address, client):
            return await asyncio.gather(*(get(client, address) for _ in range(10)))

    answers = asyncio.run(run())
    assert len(made) == 1
    assert {(status, text) for status, text, _ in answers} == {(200, answers[0][1])}


def test_a_report_is_made_again_when_the_files_changed_and_not_before_it_is_due(make_run, monkeypatch):
    workdir = make_run(lines_of(100))

    now = 0.0

    async def run():
        nonlocal now
        dashboard = Dashboard(workdir, clock=lambda: now)
        first = await dashboard.newest()
        assert (await dashboard.newest()) is first
        with workdir.metrics_file.open("ab") as file:
            file.write(line("learner", 200, 20, learner__loss=777.5) + b"\n")
        assert (await dashboard.newest()) is first
        now += servers.POLL_S
        second = await dashboard.newest()
        now += servers.POLL_S
        assert (await dashboard.newest()) is second
        return first, second

    first, second = asyncio.run(run())
    assert first.name != second.name
    assert "777.5" in second.html
    assert second.name in second.html


def test_a_run_that_vanishes_is_an_answer_with_the_reason(make_run):
    workdir = make_run(lines_of(100))

    async def run():
        async with serving(workdir) as (address, client):
            workdir.experiment_file.unlink()
            refused = await get(client, address)
            workdir.open(make_run(folder="other").experiment())
            return refused, await get(client, address)

    refused, answered = asyncio.run(run())
    assert refused[0] == 503
    assert "experiment.yaml" in refused[1]
    assert answered[0] == 200


def test_a_port_that_is_in_use_is_refused_with_advice(make_run):
    async def run(port):
        async with servers.serving(Dashboard(make_run()), ListenAddress("127.0.0.1", port)) as address:
            pytest.fail(f"listens on {address}")

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(AddressNotUsable, match="--port"):
            asyncio.run(run(other.getsockname()[1]))


def test_a_directory_without_a_run_is_not_served(tmp_path):
    from podzero.files.workdir import Workdir

    with pytest.raises(WorkdirError, match="working directory"):
        servers.serve(Workdir(tmp_path), free_address(None, None), lambda address: pytest.fail("was served"))


def test_beyond_this_machine_the_token_alone_opens_the_report_under_any_name(make_run):
    """A container is reached by names and mapped ports that it does not know."""

    async def run():
        async with serving(make_run(), host="0.0.0.0") as (address, client):
            elsewhere = {"Host": "elsewhere.example:8000"}
            opened = await get(client, address, headers=elsewhere)
            wrong = await get(client, address.replace(urlsplit(address).path, "/wrong/"), headers=elsewhere)
            return opened[0], wrong[0]

    assert asyncio.run(run()) == (200, 403)
