"""The protocols of games written in plain Python, and a check that a game satisfies them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from podzero.core.errors import ConfigError
from podzero.envs.faults import Violation


@runtime_checkable
class Simulator(Protocol):
    """One game for one or two players, in its current position.

    The seed of `reset` and the actions since then determine everything that the methods return. The seed may decide how
    a game starts, but not what follows a move: tree search plays clones, so it would foresee that.
    """

    @property
    def num_actions(self) -> int:
        """Number of actions: an action is an integer from 0 to `num_actions - 1`. A class attribute suffices."""
        ...

    @property
    def players(self) -> int:
        """Number of players, 1 or 2. A class attribute suffices."""
        ...

    def reset(self, seed: int) -> None:
        """Starts a game; `seed` (uint32) determines all chance events."""
        ...

    def step(self, action: int) -> None:
        """Plays a legal action. Not called once the game is over."""
        ...

    def legal_actions(self) -> Sequence[int] | np.ndarray[Any, Any]:
        """The legal actions (their numbers, not a mask) of the player to move; at least one until the game is over."""
        ...

    def observation(self) -> np.ndarray[Any, Any]:
        """What the player to move sees; its shape and dtype never change, even once the game is over.

        Boards are `[rows, columns, planes]`. Networks receive bool and uint8 unchanged, all other dtypes as float32.
        """
        ...

    def player(self) -> int:
        """The player to move, 0 or 1; any value once the game is over."""
        ...

    def rewards(self) -> Sequence[float]:
        """Each player's reward for the last step, zero after `reset`: one number, or two that sum to zero."""
        ...

    def done(self) -> bool:
        """Whether the game is over; a method `truncated` may tell that a limit on its length has ended it."""
        ...

    def clone(self) -> Self:
        """An independent copy: changing one of the two does not change the other.

        `copy.deepcopy(self)` is always correct; copying only what a step changes is many times faster.
        """
        ...


@runtime_checkable
class NamedSimulator(Simulator, Protocol):
    """A `Simulator` that names its actions."""

    def action_name(self, action: int) -> str:
        """The name of a legal action, unique among the legal actions of the position; white space is removed."""
        ...


@runtime_checkable
class RenderedSimulator(Simulator, Protocol):
    """A `Simulator` that renders its positions for `podzero play`: videos of one player, the page of a game of two."""

    def render(self) -> np.ndarray[Any, Any]:
        """The position as pixels `[height, width, 3]` uint8; the size never changes."""
        ...


CHANCE_ADVICE = "only games whose chance is decided at the start can be searched"
"""The end of messages about chance events."""


def check_simulator(
    simulator: Simulator,
    name: str,
    games: int = 3,
    max_plies: int = 24,
    discount: float = 1.0,
    reward_scale: float | None = None,
) -> None:
    """Plays random games and checks the contract of `Simulator` in every position.

    In each position it calls all methods. Their results must be valid, must be the same for a clone, must not change
    while a clone is played, and must be the same when the game is played again with the same seed and moves. If games
    with different seeds start in the same position, the same moves must lead to the same positions.

    If `reward_scale` is given, every discounted sum of scaled rewards must lie in [-1, 1].

    Raises:
      ConfigError: the contract is violated; the message says how, and after which moves.
    """
    choose = random.Random(0)
    form: np.ndarray[Any, Any] | None = None
    for game in range(games):
        moves: list[int] = []
        try:
            if not isinstance(simulator.num_actions, int | np.integer) or simulator.num_actions < 1:
                raise Violation(f"num_actions = {simulator.num_actions!r}: expected a positive number")
            if simulator.players not in (1, 2):
                raise Violation(f"players = {simulator.players!r}: expected 1 or 2")
            simulator.reset(game)
            form = _Snapshot.of(simulator).observation if form is None else form
            snapshots = _check_game(simulator, game, max_plies, choose, moves, form)
            _check_chance(simulator, snapshots, game, moves)
            if snapshots[0].done:
                raise Violation("done() is true before the first move")
            if reward_scale is not None:
                _check_range(snapshots, discount, reward_scale)
        except Violation as violation:
            raise ConfigError(
                f"{name} violates the contract of podzero.envs.Simulator: {violation} "
                f"(seed {game}, moves so far {moves})"
            ) from None
        except Exception as error:
            raised = f"it raised {type(error).__name__}: {error}"
            raise ConfigError(f"{name} cannot be played: {raised} (seed {game}, moves so far {moves})") from error


class _Snapshot(NamedTuple):
    """What all methods of a simulator return in one position."""

    observation: np.ndarray[Any, Any]
    legal: tuple[int, ...]
    player: int
    rewards: tuple[float, ...]
    done: bool

    @staticmethod
    def of(simulator: Simulator) -> _Snapshot:
        done = bool(simulator.done())
        return _Snapshot(
            observation=np.array(simulator.observation()),
            legal=() if done else tuple(map(_number, simulator.legal_actions())),
            player=0 if done else int(simulator.player()),
            rewards=tuple(map(float, simulator.rewards())),
            done=done,
        )

    def difference(self, other: _Snapshot) -> str | None:
        """The first field that differs, or None."""
        if not np.array_equal(self.observation, other.observation):
            return "observation"
        return next((field for field in self._fields[1:] if getattr(self, field) != getattr(other, field)), None)


def _number(action: Any) -> int:
    """One of the legal actions; `True` is none, though Python counts it as 1."""
    if isinstance(action, bool | np.bool_) or not isinstance(action, int | np.integer):
        raise Violation(f"legal_actions() contains {action!r}: expected the numbers of actions, not a mask")
    return int(action)


def _check_range(snapshots: list[_Snapshot], discount: float, scale: float) -> None:
    """Checks that the return from each position of a game lies in [-1, 1], as values do."""
    # The rewards of an unfinished game are a difference of two values, so their sum may reach 2.
    most, returns = (1.0 if snapshots[-1].done else 2.0), np.zeros(len(snapshots[-1].rewards))
    for snapshot in reversed(snapshots[1:]):
        returns = scale * np.array(snapshot.rewards) + discount * returns
        if (worst := float(np.abs(returns).max())) > most + 1e-6:
            raise Violation(
                f"the rewards of a random game sum to {worst:.6g}, but values must lie in [-1, 1]; set "
                f"env.reward_scale to {scale * most / worst:.2g} or less, so that this holds for every game"
            )


def _check_game(
    simulator: Simulator, seed: int, max_plies: int, choose: random.Random, moves: list[int], form: Any
) -> list[_Snapshot]:
    """Plays one random game and returns the snapshot of each position; appends each move to `moves`."""
    simulator.reset(seed)
    snapshots = [_valid_snapshot(simulator, form)]
    while not snapshots[-1].done and len(moves) < max_plies:
        action = choose.choice(snapshots[-1].legal)
        stepped, untouched = simulator.clone(), simulator.clone()
        _require_equal(snapshots[-1], stepped, "a clone differs from its original")
        stepped.step(action)
        _require_equal(snapshots[-1], simulator, "clones are not independent: a step of the clone changed the original")
        simulator.step(action)
        _require_equal(snapshots[-1], untouched, "clones are not independent: a step of the original changed the clone")
        moves.append(action)
        snapshots.append(_valid_snapshot(simulator, form))
        _require_equal(snapshots[-1], stepped, "the same action led the clone and the original to different positions")
        _play_randomly(stepped, choose)
        _require_equal(snapshots[-1], simulator, "clones are not independent: moves of the clone changed the original")
    # Seed and moves must determine the game.
    replayed = simulator.clone()
    replayed.reset(seed)
    for ply, snapshot in enumerate(snapshots):
        _require_equal(snapshot, replayed, f"seed and moves do not determine the game after {ply} moves")
        if ply < len(moves):
            replayed.step(moves[ply])
    return snapshots


def _check_chance(simulator: Simulator, snapshots: list[_Snapshot], seed: int, moves: list[int]) -> None:
    """Checks that games with other seeds but the same start do not differ after the same moves."""
    for other in range(seed + 1, seed + 5):
        replayed = simulator.clone()
        replayed.reset(other)
        if snapshots[0].difference(_Snapshot.of(replayed)):
            continue
        for move, snapshot in zip(moves, snapshots[1:], strict=True):
            replayed.step(move)
            if field := snapshot.difference(_Snapshot.of(replayed)):
                raise Violation(
                    f"it has chance events: after the same moves, {field}() differs between seeds {seed} and {other}. "
                    f"Tree search plays clones, so it would foresee them; {CHANCE_ADVICE}"
                )


def _play_randomly(simulator: Simulator, choose: random.Random) -> None:
    for _ in range(4):
        if simulator.done():
            return
        simulator.step(choose.choice(tuple(map(int, simulator.legal_actions()))))


def _check_names(simulator: NamedSimulator, legal: Sequence[int]) -> None:
    names = ["".join(simulator.action_name(action).split()) for action in legal]
    if not all(names) or len(set(names)) < len(names):
        raise Violation(f"action_name() of the legal actions gives {names}: expected distinct names")


def _valid_snapshot(simulator: Simulator, form: np.ndarray[Any, Any]) -> _Snapshot:
    """The snapshot of the current position, after checking that every part of it is valid."""
    snapshot = _Snapshot.of(simulator)
    if (snapshot.observation.shape, snapshot.observation.dtype) != (form.shape, form.dtype):
        raise Violation(
            f"the observation was {form.dtype} of shape {list(form.shape)} at the start, and is now "
            f"{snapshot.observation.dtype} of shape {list(snapshot.observation.shape)}"
        )
    if snapshot.observation.dtype.kind not in "biuf" or not np.isfinite(snapshot.observation).all():
        raise Violation(f"the observation ({form.dtype}) must contain only finite numbers")
    if len(snapshot.rewards) != simulator.players or not np.isfinite(snapshot.rewards).all():
        raise Violation(f"rewards() = {snapshot.rewards}: expected {simulator.players} finite numbers")
    if simulator.players == 2 and abs(sum(snapshot.rewards)) > 1e-6:
        raise Violation(f"rewards() = {snapshot.rewards}: the rewards of two players must sum to zero")
    if snapshot.done:
        return snapshot
    if not snapshot.legal:
        raise Violation("legal_actions() is empty, but done() is false")
    known = set(range(simulator.num_actions))
    if len(set(snapshot.legal)) < len(snapshot.legal) or not known.issuperset(snapshot.legal):
        raise Violation(
            f"legal_actions() = {list(snapshot.legal)}: expected distinct numbers below {simulator.num_actions}, "
            "not a mask"
        )
    if snapshot.player not in range(simulator.players):
        raise Violation(f"player() = {snapshot.player}: expected a number below {simulator.players}")
    if isinstance(simulator, NamedSimulator):
        _check_names(simulator, snapshot.legal)
    return snapshot


def _require_equal(expected: _Snapshot, simulator: Simulator, violation: str) -> None:
    if field := expected.difference(_Snapshot.of(simulator)):
        method = "legal_actions" if field == "legal" else field
        raise Violation(f"{violation}; {method}() differs")
