"""Serves the report of a run and keeps it up to date; browsers need the token in its address."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from podzero.core.errors import os_errors
from podzero.files.workdir import Workdir, WorkdirError
from podzero.tools.commands.listen_address import AddressNotUsable, ListenAddress, RequestGuard
from podzero.tools.report.page import content_policy, make_report
from podzero.tools.report.record import RunReader

POLL_S = 5.0
"""Interval in seconds at which pages ask for a newer report; reports are not made more often."""
LARGEST_SHARE = 0.1
"""Largest share of a core spent on making reports."""


class Version(NamedTuple):
    """A report, named after its content."""

    name: str
    html: str


class Dashboard:
    """The newest report of a run, shared by all browsers; `clock` returns the time in seconds."""

    def __init__(self, workdir: Workdir, clock: Callable[[], float] = time.monotonic) -> None:
        self._workdir = workdir
        self._clock = clock
        self._reader = RunReader(workdir)
        self._one_at_a_time = asyncio.Lock()
        self._newest: Version | None = None
        self._due = 0.0

    async def newest(self) -> Version:
        """The report, made from files that are at most a short time old."""
        async with self._one_at_a_time:
            if self._newest is None or self._clock() >= self._due:
                name = fingerprint(self._workdir)
                if self._newest is None or name != self._newest.name:
                    self._newest = await asyncio.to_thread(self._make, name)
            return self._newest

    def _make(self, name: str) -> Version:
        began = self._clock()
        html = make_report(self._reader.read(), live={"version": name, "poll_s": POLL_S})
        ended = self._clock()
        # The run may train on the same cores, so a report that takes long is made less often.
        self._due = ended + max(POLL_S, (ended - began) / LARGEST_SHARE)
        return Version(name, html)


def fingerprint(workdir: Workdir) -> str:
    """A hash that changes when a file of the report changes, or when the run starts or ends."""
    files = (
        workdir.experiment_file, workdir.metrics_file, workdir.status_file, workdir.log_file, workdir.hardware_file,
        workdir.checkpoints, workdir.games,
    )  # fmt: skip
    workdir.refresh(long=True)
    states: list[object] = [workdir.holder()]
    for file in files:
        with suppress(OSError):
            found = file.stat()
            states.append((file.name, found.st_ino, found.st_mtime_ns, found.st_size))
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]


MAX_BODY = 1024
"""Largest body of a request in bytes; no body is read."""
KEEP_ALIVE_S = 60.0
"""Seconds after which idle connections are closed."""


def serve(workdir: Workdir, where: ListenAddress, announce: Callable[[str], None]) -> None:
    """Serves the report until Ctrl-C; `announce` is called with the address once the server answers."""

    async def run() -> None:
        dashboard = Dashboard(workdir)
        # A run that cannot be read ends the command, before any browser is told of it.
        await dashboard.newest()
        async with serving(dashboard, where) as address:
            announce(address)
            await asyncio.Event().wait()

    asyncio.run(run())


@asynccontextmanager
async def serving(dashboard: Dashboard, where: ListenAddress) -> AsyncIterator[str]:
    """Serves the report at an address with a token; whoever knows it can see the report.

    Raises `AddressNotUsable` if the port is in use.
    """
    guard = RequestGuard(where, "podzero report --serve", MAX_BODY)

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=(await dashboard.newest()).html, content_type="text/html")

    async def version(_: web.Request) -> web.Response:
        return web.Response(text=(await dashboard.newest()).name)

    app = web.Application(middlewares=[_guarded(guard)])
    app.router.add_get("/{token}/", page)
    app.router.add_get("/{token}/version", version)
    # No request has a body that is read, so a connection need not linger until the rest of it has arrived.
    runner = web.AppRunner(app, access_log=None, lingering_time=0, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=2)
    await runner.setup()
    try:
        with os_errors(AddressNotUsable, f"cannot listen on {where.url}", "choose another --port"):
            await web.TCPSite(runner, where.host, where.port).start()
        yield f"{where.url}/{guard.token}/"
    finally:
        await runner.cleanup()


def _guarded(guard: RequestGuard) -> Middleware:
    """Middleware that refuses the requests that `guard` does not allow, and answers errors with their text."""
    headers = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": f"{content_policy()}; frame-ancestors 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    @web.middleware
    async def answer_guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        lowered = {name.lower(): value for name, value in request.headers.items()}
        refusal = guard.refusal(lowered, request.path.split("/")[1])
        answer: web.StreamResponse
        if refusal is not None:
            answer = web.Response(status=refusal[0], text=refusal[1])
            # Otherwise aiohttp would read the refused body first.
            answer.force_close()
        else:
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                answer = web.Response(status=error.status, text=error.reason)
            except WorkdirError as error:
                answer = web.Response(status=503, text=str(error))
        answer.headers.update(headers)
        return answer

    return answer_guarded
