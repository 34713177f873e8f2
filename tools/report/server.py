"""Serves the report of a run, kept up to date, to browsers on this machine or, on request, on others.

The address contains a token that cannot be guessed; a request without it gets nothing. On the loopback interface a
request must also name this machine as its host, which stops a foreign name that resolves to it (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from podzero.listen_address import AddressNotUsable, ListenAddress
from podzero.runtime.monitoring.status import is_locked
from podzero.tools.report.page import Live, content_policy, make_report
from podzero.tools.report.record import RunReader
from podzero.workdir import Workdir, WorkdirError

POLL_S = 5.0
"""Seconds between two looks for a newer report; reports are not made more often."""
LARGEST_SHARE = 0.1
"""The largest share of a core that making reports may take."""


class Version(NamedTuple):
    """A report, and a name that changes when its content does."""

    name: str
    html: str


class Dashboard:
    """The newest report of a run, shared by all browsers.

    Args:
      workdir: the run's working directory.
      clock: returns the time in seconds.
    """

    def __init__(self, workdir: Workdir, clock: Callable[[], float] = time.monotonic) -> None:
        self._workdir = workdir
        self._clock = clock
        self._reader = RunReader(workdir)
        self._one_at_a_time = asyncio.Lock()
        self._newest: Version | None = None
        self._due = 0.0

    async def newest(self) -> Version:
        """The report of the files as they are now or were a short time ago.

        Raises:
          WorkdirError: the run cannot be read.
        """
        async with self._one_at_a_time:
            if self._newest is None or self._clock() >= self._due:
                name = fingerprint(self._workdir)
                if self._newest is None or name != self._newest.name:
                    self._newest = await asyncio.to_thread(self._make, name)
            return self._newest

    def _make(self, name: str) -> Version:
        began = self._clock()
        html = make_report(self._reader.read(), live=Live(name, POLL_S))
        ended = self._clock()
        # The run may train on the same cores, so a report that takes long is made less often.
        self._due = ended + max(POLL_S, (ended - began) / LARGEST_SHARE)
        return Version(name, html)


def fingerprint(workdir: Workdir) -> str:
    """A short hash that changes when a file of the report changes, or when the run starts or ends."""
    files = (
        workdir.experiment_file, workdir.metrics_file, workdir.status_file, workdir.log_file, workdir.hardware_file,
        workdir.checkpoints, workdir.games,
    )  # fmt: skip
    states: list[object] = [is_locked(workdir)]
    for file in files:
        try:
            found = file.stat()
            states.append((found.st_ino, found.st_mtime_ns, found.st_size))
        except OSError:
            states.append(None)
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]


MAX_BODY = 1024
"""A request with a body of more bytes is refused. No body is ever read."""
TOKEN_BYTES = 32

KEEP_ALIVE_S = 60.0
"""Seconds after which an idle connection is closed."""
_DASHBOARD = web.AppKey("dashboard", Dashboard)


class ReportServer(NamedTuple):
    """A running server."""

    address: str
    """The address to open in a browser. Everyone who knows it can see the report."""
    runner: web.AppRunner


def serve(workdir: Workdir, where: ListenAddress, announce: Callable[[str], None]) -> None:
    """Serves the report until the process is interrupted.

    Args:
      workdir: the run's working directory.
      where: the address to listen on.
      announce: called with the address once the server answers.

    Raises:
      WorkdirError: the directory holds no run.
      AddressNotUsable: the port is in use.
    """

    async def run() -> None:
        dashboard = Dashboard(workdir)
        await dashboard.newest()
        server = await start(dashboard, where)
        try:
            announce(server.address)
            await asyncio.Event().wait()
        finally:
            await server.runner.cleanup()

    asyncio.run(run())


async def start(dashboard: Dashboard, where: ListenAddress) -> ReportServer:
    """Starts the server; the caller stops it with `runner.cleanup`.

    Raises:
      AddressNotUsable: the port is in use.
    """
    token = secrets.token_urlsafe(TOKEN_BYTES)
    app = web.Application(middlewares=[_guard(token, where.accepted_hosts)])
    app[_DASHBOARD] = dashboard
    app.router.add_get("/{token}/", _page)
    app.router.add_get("/{token}/version", _version)
    runner = web.AppRunner(
        app, access_log=None, lingering_time=0.0, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=2.0
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, where.host, where.port).start()
    except OSError as error:
        await runner.cleanup()
        raise AddressNotUsable(f"cannot listen on {where.url}: {error.strerror}; choose another --port") from None
    return ReportServer(f"{where.url}/{token}/", runner)


def _guard(token: str, hosts: tuple[str, ...] | None) -> Middleware:
    """Refuses requests from elsewhere before they are handled."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = refuse(request, token, hosts)
        answer = refusal or await _answer(request, handler)
        answer.headers.update(_headers())
        if refusal is not None:
            answer.force_close()  # aiohttp would otherwise read the refused body first
        return answer

    return guard


def refuse(request: web.Request, token: str, hosts: tuple[str, ...] | None) -> web.Response | None:
    """The answer to a request that is not allowed; None for one that is. For `hosts` see `ListenAddress`."""
    if hosts is not None and request.headers.get("Host") not in hosts:
        return web.Response(status=421, text="This server answers only at the address that it printed.")
    if (request.content_length or 0) > MAX_BODY or "Transfer-Encoding" in request.headers:
        return web.Response(status=413, text="Requests must not have a body.")
    given = request.path.split("/")[1]
    # Compared in constant time, so that the time of a refusal tells nothing about the token.

    if not secrets.compare_digest(given.encode(errors="replace"), token.encode()):
        return web.Response(status=403, text="Wrong token: open the address that `podzero report --serve` printed.")
    return None


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as refusal:
        return web.Response(status=refusal.status, text=refusal.reason)
    except WorkdirError as error:
        return web.Response(status=503, text=str(error))


async def _page(request: web.Request) -> web.Response:
    newest = await request.app[_DASHBOARD].newest()
    return web.Response(text=newest.html, content_type="text/html")


async def _version(request: web.Request) -> web.Response:
    newest = await request.app[_DASHBOARD].newest()
    return web.Response(text=newest.name)


def _headers() -> dict[str, str]:
    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": f"{content_policy()}; frame-ancestors 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
