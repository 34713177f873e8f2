"""The web server of `play --web`, and its guard: a random token, the header `Host`, and the body's size."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from nicegui import app, ui
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from podzero.config import GymnasiumConfig, SimulatorConfig
from podzero.evaluation.games import KeptGame
from podzero.listen_address import ListenAddress
from podzero.protocols import Env
from podzero.tools.play.episode import watcher_of
from podzero.tools.play.episode_page import EpisodePage, Recordings
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.page import GamePage
from podzero.tools.play.searching import PositionSearch


def serve_game(
    env: Env,
    players: Mapping[str, PositionSearch],
    simulations: int,
    where: ListenAddress,
    kept: Sequence[KeptGame] = (),
    own_picture: Callable[[PlayableGame], str] | None = None,
) -> None:
    """Serves the page of a game; the arguments are those of `GamePage` and `serve`."""
    title = f"{env.spec.name} against {next(iter(players))}"
    serve(env.spec.name, title, lambda: GamePage(env, players, simulations, kept, own_picture), where)


def watch(
    who: str, env: GymnasiumConfig | SimulatorConfig, simulations: int | None, seed: int, where: ListenAddress
) -> None:
    """Serves the page on which an agent is watched in a single-agent environment.

    Args:
      who: see `podzero.player_names`.
      env: the environment.
      simulations: per step; None takes as many as in training.
      seed: the seed of the first episode.
      where: the address to listen on.

    Raises:
      ConfigError, WorkdirError, SnapshotError: as `watcher_of`.
    """
    recordings = Recordings(watcher_of(who, env, simulations))
    app.on_shutdown(recordings.stop)
    name = env.title
    serve(name, f"{name} with {recordings.subject.player}", lambda: EpisodePage(recordings, seed), where)


def serve(name: str, title: str, build: Callable[[], object], where: ListenAddress) -> None:
    """Serves a page until the process ends (Ctrl-C); prints its address.

    Args:
      name: the page's name, in the browser.
      title: what is printed before the address.
      build: builds the page of one browser.
      where: the address to listen on.
    """
    token = secrets.token_urlsafe(16)
    app.add_middleware(RequestGuard, token=token, hosts=where.accepted_hosts)

    @ui.page("/", title=f"podzero: {name}")
    def page() -> None:
        build()

    def announce() -> None:
        print(f"For {where.readers} that know this address. Ctrl-C ends it.", flush=True)
        print(f"{title}: {where.url}/?token={token}", flush=True)

    app.on_startup(announce)
    ui.run(
        host=where.host, port=where.port, show=False, reload=False, dark=None, show_welcome_message=False,
        ws_max_size=MAX_BODY_BYTES, timeout_graceful_shutdown=2,
    )  # fmt: skip


COOKIE = "podzero_token"
MAX_BODY_BYTES = 1_000_000
"""Largest body of a request, and message of a socket."""


class RequestGuard:
    """Refuses requests with another host (DNS rebinding), without the token, or with a large body.

    The first request has the token in its address, as `/?token=...`, and gets it as a cookie, which later ones send.

    Args:
      app: that is guarded.
      token: of this server.
      hosts: the values of the header `Host` that are answered; None for all (`ListenAddress.accepted_hosts`).
    """

    def __init__(self, app: ASGIApp, token: str, hosts: tuple[str, ...] | None) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers 403, 400 or 413."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        refusal = self._refusal(headers, given)
        if refusal is not None:
            await _refuse(scope, receive, send, refusal)
            return

        async def with_cookie(message: Any) -> None:
            if message["type"] == "http.response.start" and given:
                cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                message["headers"] = [*message.get("headers", []), (b"set-cookie", cookie.encode())]
            await send(message)

        await self._app(scope, receive, with_cookie)

    def _refusal(self, headers: dict[str, str], given: str) -> tuple[int, str] | None:
        """The status and the words of a refusal; None for a request that may pass."""
        if self._hosts is not None and headers.get("host", "") not in self._hosts:
            return 403, f"this server is {self._hosts[0]} only"
        if not _equal(given or _cookie(headers.get("cookie", "")), self._token):
            return 403, "open the address that `podzero play --web` printed: it has the token of this server"
        try:
            size = int(headers.get("content-length", "0"))
        except ValueError:
            return 400, "the length of the body is no number"
        return (413, f"the body has more than {MAX_BODY_BYTES:,} bytes") if size > MAX_BODY_BYTES else None


async def _refuse(scope: Scope, receive: Receive, send: Send, refusal: tuple[int, str]) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    await PlainTextResponse(f"podzero: {refusal[1]}\n", status_code=refusal[0])(scope, receive, send)


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())
