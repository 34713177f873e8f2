"""The web server of `podzero play --web`; browsers need its token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui import app, background_tasks, ui
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from podzero.core.protocols import Env
from podzero.evaluation.games import KeptGame
from podzero.tools.commands.listen_address import ListenAddress, RequestGuard, new_guard
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.page import GamePage
from podzero.tools.play.searching import PositionSearch


def serve(
    env: Env,
    players: Mapping[str, PositionSearch],
    simulations: int,
    where: ListenAddress,
    kept: Sequence[KeptGame] = (),
    rendered_picture: Callable[[PlayableGame], str] | None = None,
) -> None:
    """Prints the address of a `GamePage` and serves it at `where` until Ctrl-C."""
    # In a game for one player, the agent only searches the person's positions.
    title = f"{env.spec.name} {'with' if env.spec.players == 1 else 'against'} {next(iter(players))}"
    guard = new_guard(where, "podzero play --web", MAX_BODY_BYTES)
    app.add_middleware(GuardedApp, guard=guard)

    @ui.page("/", title=f"podzero: {env.spec.name}")
    def page() -> None:
        GamePage(env, players, simulations, kept, rendered_picture)

    async def announce() -> None:
        # NiceGUI starts before it listens. If it cannot listen, it ends, and this task with it.
        while not await _listens(where):
            await asyncio.sleep(0.05)
        print(f"For {where.readers} that know this address. Ctrl-C ends it.", flush=True)
        print(f"{title}: {where.url}/?token={guard.token}", flush=True)

    app.on_startup(lambda: background_tasks.create(announce(), name="announce"))
    # An open page keeps its connection: a longer graceful shutdown would only delay Ctrl-C.
    ui.run(
        host=where.host, port=where.port, show=False, reload=False, dark=None, show_welcome_message=False,
        ws_max_size=MAX_BODY_BYTES, timeout_graceful_shutdown=2,
    )  # fmt: skip


async def _listens(where: ListenAddress) -> bool:
    """Whether the server accepts connections."""
    try:
        _, writer = await asyncio.open_connection(where.host, where.port)
    except OSError:
        return False
    writer.close()
    return True


COOKIE = "podzero_token"
MAX_BODY_BYTES = 1_000_000
"""Largest request body and largest WebSocket message."""


class GuardedApp:
    """Passes on the requests that `guard` allows and refuses all others."""

    def __init__(self, app: ASGIApp, guard: RequestGuard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request, see ASGI."""
        # Start-up and shut-down.
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        # The first request has the token in its address, `/?token=...`, and gets a cookie, which later requests send.
        request = HTTPConnection(scope)
        given = request.query_params.get("token")
        refusal = self._guard.refusal(request.headers, given or request.cookies.get(COOKIE, ""))
        if refusal is not None:
            await _refuse(scope, receive, send, *refusal)
            return

        async def with_cookie(message: Any) -> None:
            if message["type"] == "http.response.start" and given:
                cookie = f"{COOKIE}={self._guard.token}; HttpOnly; SameSite=Strict; Path=/"
                message["headers"] = [*message.get("headers", []), (b"set-cookie", cookie.encode())]
            await send(message)

        await self._app(scope, receive, with_cookie)


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        # ASGI: a connection may be closed only after its connect message has been received.
        await receive()
        await send({"type": "websocket.close", "code": 1008})
    else:
        await PlainTextResponse(f"podzero: {text}\n", status_code=status)(scope, receive, send)
