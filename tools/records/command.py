"""`podzero import`: reads files of games or episodes and writes their positions into a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import jax
import numpy as np

from podzero.config import KOMI, EnvConfig, GymnasiumConfig
from podzero.core.errors import ConfigError, described, os_errors
from podzero.core.types import EnvSpec, Sample
from podzero.envs import Interface, gymnasium_interface, is_truth, make_env, spec_to
from podzero.envs.boards.go import Go
from podzero.evaluation.players import SearchPlayer
from podzero.evaluation.resolve import search_player
from podzero.replay import Episode, EpisodeLayout, PositionLayout, RecordsWriter
from podzero.tools.records.files import SUFFIXES, check_files, read_games
from podzero.tools.records.games import Fault, FaultKind
from podzero.tools.records.positions import GameReplay, PolicyOf, ReplayedGame

EPISODE_SUFFIXES = (".npz", ".jsonl")
"""The kinds of files of episodes."""
LARGEST_EPISODE = 2**32
"""The most bytes of an episode's arrays."""
MOST_NAMED = 3
"""Games left out that are named for each reason."""


@dataclass
class Imported:
    """What was imported so far, and what was not."""

    games: int = 0
    positions: int = 0
    left_out: dict[FaultKind, int] = field(default_factory=dict)
    """The number of games left out, by reason."""
    named: list[str] = field(default_factory=list)
    """Some of them: where each is, and what is wrong with it."""
    other_komi: int = 0
    """The number of games imported that were played with another komi than `KOMI`, where the network observes none."""

    def without_faults[Found](self, found: Iterable[Found | Fault]) -> Iterator[Found]:
        """Gives what was found, and counts and names faults instead of giving them."""
        for one in found:
            if not isinstance(one, Fault):
                yield one
                continue
            self.left_out[one.kind] = self.left_out.get(one.kind, 0) + 1
            if self.left_out[one.kind] <= MOST_NAMED:
                self.named.append(f"{one.kind}: {one}")

    def samples(self, replayed: Iterable[ReplayedGame | Fault], any_komi: bool) -> Iterator[Sample]:
        """The positions of each game; without `any_komi`, games with another komi than `KOMI` are counted."""
        for one in self.without_faults(replayed):
            self.other_komi += not any_komi and one.game.komi not in (None, KOMI)
            yield one.samples


def import_games(
    files: Sequence[Path],
    game: EnvConfig,
    to: Path,
    search: str | None = None,
    simulations: int | None = None,
    report: Callable[[int, int], None] = lambda games, positions: None,
) -> Imported:
    """Imports the games of files, or the episodes of an environment of gymnasium.

    The files end in one of `SUFFIXES`, or `EPISODE_SUFFIXES`; the folder `to` must not exist. The policy targets are
    the moves played, or the policy of the player `search`, with `simulations` per position or those of training.
    `report` is told after each game how many games and positions have been imported.
    """
    found = Imported()
    spec, layout, contents, searched = _recorded(files, game, search, simulations, found)
    refusal = os_errors(ConfigError, f"{to} cannot be written", "give another folder with --to")
    with refusal, RecordsWriter(to, layout) as writer:
        for content in contents:
            writer.add(content)
            found.games, found.positions = found.games + 1, writer.positions
            report(found.games, found.positions)
        if not found.games:
            read, named = sum(found.left_out.values()), "".join(f"\n  {one}" for one in found.named)
            raise ConfigError(f"no game of {spec.name} can be used, {read} were read{named}")
        writer.finish({"files": [str(file) for file in files], **searched, **asdict(found)})
    return found


def _recorded(
    files: Sequence[Path], game: EnvConfig, search: str | None, simulations: int | None, found: Imported
) -> tuple[EnvSpec, PositionLayout | EpisodeLayout, Iterator[Any], dict[str, Any]]:
    """The game, the layout, each game or episode of the files as the layout packs it, and which player searches the
    positions; games that are left out are counted.
    """
    if isinstance(game, GymnasiumConfig):
        if search is not None:
            raise ConfigError(f"--search {search}: only positions of games are searched, not those of episodes")
        check_files(files, EPISODE_SUFFIXES)
        interface = gymnasium_interface(game)
        spec = spec_to(interface)
        episodes = found.without_faults(one for file in files for one in read_episodes(file, interface))
        return spec, EpisodeLayout(spec, game.discount), episodes, {}
    check_files(files, SUFFIXES)
    env = make_env(game)
    if env.spec.values > 1:
        raise ConfigError(f"{env.spec.name}: records are read only of games for one player and zero-sum games for two")
    policy_of, searched = None, {}
    if search is not None:
        player = search_player(search, env, simulations, game.discount)
        policy_of, searched = _policy_of(player), {"search": player.name, "simulations": simulations}
    games = found.without_faults(one for file in files for one in read_games(file, env.spec))
    replayed = GameReplay(env, game.discount, policy_of=policy_of)(games)
    samples = found.samples(replayed, any_komi=not isinstance(env, Go) or env.shows_komi)
    return env.spec, PositionLayout(env.spec, game.discount, searched=policy_of is not None), samples, searched


def _policy_of(player: SearchPlayer) -> PolicyOf:
    """Searches positions by a player, each time with another key."""
    keys = (jax.random.key(number) for number in count())
    return lambda states: np.asarray(player.search(next(keys), states).policy)


_KEYS = ("observations", "actions", "rewards", "terminated")


def read_episodes(file: Path, interface: Interface) -> Iterator[Episode | Fault]:
    """The episodes of a file whose name ends in one of `EPISODE_SUFFIXES`.

    An episode of T steps is an object with the arrays `observations` (`[T + 1, *observation_shape]`, before each action
    and at the end), `actions` (`[T, ...]`, as the environment's `step` took them) and `rewards` (`[T]`), and with
    `terminated` (false if a limit truncated it). What would be a failure in a run is left out.
    """
    for where, content in _contents(file):
        try:
            yield _episode(where, content(), interface)
        # NumPy, zlib and json raise many kinds of errors on damaged files.
        except Exception as error:
            what = f"expected the arrays {', '.join(_KEYS)} ({described(error)})"
            yield Fault(where, "unreadable", what)


def _contents(file: Path) -> Iterator[tuple[str, Any]]:
    """Where each episode of a file is, and a function that reads it."""
    if file.suffix.lower() == ".npz":
        yield str(file), lambda: _arrays(file)
        return
    with os_errors(ConfigError, f"{file} cannot be read"), file.open(encoding="utf-8-sig", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{file}, line {number}", lambda line=line: json.loads(line)


def _arrays(file: Path) -> Any:
    """The arrays of an archive; a small one could unpack to more than memory holds."""
    with ZipFile(file) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > LARGEST_EPISODE:
        raise ValueError(f"it unpacks to {size:,} bytes; expected at most {LARGEST_EPISODE:,}")
    return np.load(file, allow_pickle=False)


def _episode(where: str, tree: Mapping[str, Any], interface: Interface) -> Episode | Fault:
    """The episode of an object; raises anything if the object is not that of an episode."""
    observations, actions, rewards, terminated = (np.asarray(tree[key]) for key in _KEYS)
    steps = len(actions)
    if rewards.shape != (steps,) or rewards.dtype.kind not in "biuf":
        raise ValueError(f"rewards are {rewards.dtype} of shape {list(rewards.shape)}; expected [{steps}] numbers")
    if terminated.size != 1 or not is_truth(terminated):
        raise ValueError(f"terminated is {tree['terminated']!r:.80}; expected true or false")
    if not steps:
        return Fault(where, "unfinished", "it has no step to learn from")
    expected = (steps + 1, *interface.observations.shape)
    if observations.shape != expected:
        return Fault(where, "foreign", f"observations have shape {list(observations.shape)}; expected {list(expected)}")
    with np.errstate(over="ignore"):
        rewards = rewards.astype(np.float32)
    if not np.isfinite(rewards).all():
        return Fault(where, "illegal", "a reward is not finite")
    try:
        seen, taken = interface.observations.recorded(observations), interface.actions.encode(actions)
    except ValueError as error:
        return Fault(where, "illegal", str(error))
    return Episode(seen, taken, rewards, bool(terminated.item()))
