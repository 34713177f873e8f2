"""Serves the report of a run at an address that nobody can guess, to browsers of this machine or, if asked, of others.

Only those who know the token in the address get anything. On the loopback interface a request must also name this
machine as its host, so that a page of a foreign name that resolves to it (DNS rebinding) gets nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from podzero.listen_address import AddressNotUsable, ListenAddress
from podzero.tools.report.dashboard import Dashboard
from podzero.tools.report.page import content_policy
from podzero.workdir import Workdir, WorkdirError

MAX_BODY = 1024
"""Bytes of a request's body above which it is refused; none is ever read."""
TOKEN_BYTES = 32

KEEP_ALIVE_S = 60.0
"""Seconds after which an idle connection is closed."""
_DASHBOARD = web.AppKey("dashboard", Dashboard)


class Server(NamedTuple):
    """A server that runs."""

    address: str
    """What to open in a browser; whoever knows it sees the report."""
    runner: web.AppRunner


def serve(workdir: Workdir, where: ListenAddress, announce: Callable[[str], None]) -> None:
    """Serves the report until the process is interrupted.

    Args:
      workdir: of the run.
      where: the server listens.
      announce: gets the address once the server answers.

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


async def start(dashboard: Dashboard, where: ListenAddress) -> Server:
    """Starts the server; the caller ends it by `runner.cleanup`.

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
    return Server(f"{where.url}/{token}/", runner)


def _guard(token: str, hosts: tuple[str, ...] | None) -> Middleware:
    """Refuses requests from elsewhere, before anything of them is looked at."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = refuse(request, token, hosts)
        answer = refusal or await _answer(request, handler)
        answer.headers.update(_headers())
        if refusal is not None:
            answer.force_close()
        return answer

    return guard


def refuse(request: web.Request, token: str, hosts: tuple[str, ...] | None) -> web.Response | None:
    """The answer to a request that is not allowed; None for one that is. For `hosts` see `ListenAddress`."""
    if hosts is not None and request.headers.get("Host") not in hosts:
        return web.Response(status=421, text="This server answers to the address that it printed only.")
    if (request.content_length or 0) > MAX_BODY or "Transfer-Encoding" in request.headers:
        return web.Response(status=413, text="Requests have no body here.")
    given = request.path.split("/")[1]
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
