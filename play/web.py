"""The server of the page: on this machine only, with a random token in its address."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping, Sequence

from nicegui import app, ui

from podzero.config import GymnasiumConfig, SimulatorConfig
from podzero.errors import ConfigError
from podzero.evaluation.kept_games import KeptGame
from podzero.play.episode_page import EpisodePage, Recordings
from podzero.play.game import Game
from podzero.play.guard import MAX_BODY_BYTES, Guard
from podzero.play.page import GamePage
from podzero.play.searching import PositionSearch
from podzero.play.watching import watcher_of
from podzero.protocols import Env

HOST = "127.0.0.1"


def serve_game(
    env: Env,
    players: Mapping[str, PositionSearch],
    simulations: int,
    port: int | None,
    kept: Sequence[KeptGame] = (),
    own_picture: Callable[[Game], str] | None = None,
) -> None:
    """Serves the page of a game; the arguments are those of `GamePage` and `serve`."""
    title = f"{env.spec.name} against {next(iter(players))}"
    serve(env.spec.name, title, lambda: GamePage(env, players, simulations, kept, own_picture), port)


def watch(
    who: str, where: GymnasiumConfig | SimulatorConfig, simulations: int | None, seed: int, port: int | None
) -> None:
    """Serves the page of a player in an environment for one.

    Args:
      who: see `podzero.player_names`.
      where: the environment.
      simulations: per step; None takes as many as in training.
      seed: of the first episode.
      port: of the server; None takes a free one.

    Raises:
      ConfigError, WorkdirError, SnapshotError: as `watcher_of`.
      ConfigError: the port is taken.
    """
    recordings = Recordings(watcher_of(who, where, simulations))
    app.on_shutdown(recordings.stop)
    name = where.title
    serve(name, f"{name} with {recordings.subject.player}", lambda: EpisodePage(recordings, seed), port)


def serve(name: str, title: str, build: Callable[[], object], port: int | None) -> None:
    """Serves a page until the process ends (Ctrl-C); prints its address.

    Args:
      name: of the page, in the browser.
      title: what is printed before the address.
      build: builds the page of one browser.
      port: of the server; None takes a free one.

    Raises:
      ConfigError: the port is taken.
    """
    chosen = _free_port(port)
    token = secrets.token_urlsafe(16)
    app.add_middleware(Guard, token=token, hosts=(f"{HOST}:{chosen}", f"localhost:{chosen}"))

    @ui.page("/", title=f"podzero: {name}")
    def page() -> None:
        build()

    def announce() -> None:
        print("Only browsers of this machine reach the page. Ctrl-C ends it.", flush=True)
        print(f"{title}: http://{HOST}:{chosen}/?token={token}", flush=True)

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
