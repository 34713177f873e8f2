"""The server of the page: on this machine only, with a random token in its address."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence

from nicegui import app, ui

from podzero.errors import ConfigError
from podzero.evaluation.kept_games import KeptGame
from podzero.play.guard import MAX_BODY_BYTES, Guard
from podzero.play.page import GamePage
from podzero.play.searching import PositionSearch
from podzero.protocols import Env

HOST = "127.0.0.1"


def serve(
    env: Env, players: Mapping[str, PositionSearch], simulations: int, port: int | None, kept: Sequence[KeptGame] = ()
) -> None:
    """Serves the page until the process ends (Ctrl-C); prints its address.

    Args:
      env: the game.
      players: as for `GamePage`.
      simulations: of the first search.
      port: of the server; None takes a free one.
      kept: as for `GamePage`.

    Raises:
      ConfigError: the port is taken.
    """
    chosen = _free_port(port)
    token = secrets.token_urlsafe(16)
    app.add_middleware(Guard, token=token, hosts=(f"{HOST}:{chosen}", f"localhost:{chosen}"))

    @ui.page("/", title=f"podzero: {env.spec.name}")
    def page() -> None:
        GamePage(env, players, simulations, kept)

    def announce() -> None:
        print("Only browsers of this machine reach the page. Ctrl-C ends it.", flush=True)
        print(f"{env.spec.name} against {next(iter(players))}: http://{HOST}:{chosen}/?token={token}", flush=True)

    app.on_startup(announce)
    ui.run(
        host=HOST, port=chosen, show=False, reload=False, dark=None, show_welcome_message=False,
        ws_max_size=MAX_BODY_BYTES, timeout_graceful_shutdown=2,
    )  # fmt: skip


def _free_port(port: int | None) -> int:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port or 0))
        except OSError as error:
            raise ConfigError(
                f"port {port} cannot be used ({error.strerror}); choose another one with --port"
            ) from None
        found: int = probe.getsockname()[1]
        return found
