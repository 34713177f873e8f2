"""The server of the page, with a random token in its address."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

from nicegui import app, ui

from podzero.config import GymnasiumConfig, SimulatorConfig
from podzero.evaluation.kept_games import KeptGame
from podzero.listen_address import ListenAddress
from podzero.protocols import Env
from podzero.tools.play.episode_page import EpisodePage, Recordings
from podzero.tools.play.game import Game
from podzero.tools.play.guard import MAX_BODY_BYTES, Guard
from podzero.tools.play.page import GamePage
from podzero.tools.play.searching import PositionSearch
from podzero.tools.play.watching import watcher_of


def serve_game(
    env: Env,
    players: Mapping[str, PositionSearch],
    simulations: int,
    where: ListenAddress,
    kept: Sequence[KeptGame] = (),
    own_picture: Callable[[Game], str] | None = None,
) -> None:
    """Serves the page of a game; the arguments are those of `GamePage` and `serve`."""
    title = f"{env.spec.name} against {next(iter(players))}"
    serve(env.spec.name, title, lambda: GamePage(env, players, simulations, kept, own_picture), where)


def watch(
    who: str, env: GymnasiumConfig | SimulatorConfig, simulations: int | None, seed: int, where: ListenAddress
) -> None:
    """Serves the page of a player in an environment for one.

    Args:
      who: see `podzero.player_names`.
      env: the environment.
      simulations: per step; None takes as many as in training.
      seed: of the first episode.
      where: the server listens.

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
      name: of the page, in the browser.
      title: what is printed before the address.
      build: builds the page of one browser.
      where: the server listens.
    """
    token = secrets.token_urlsafe(16)
    app.add_middleware(Guard, token=token, hosts=where.accepted_hosts)

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
