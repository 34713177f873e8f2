"""A game of one's own in plain Python: what search asks of it, and the contract that it must keep."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from podzero.errors import ConfigError


@runtime_checkable
class Simulator(Protocol):
    """One game for one or two players, and the position that it is in.

    The seed of `reset` and the actions since then determine everything that can be seen. Chance, where a game has any,
    is drawn from the seed, which `clone` takes along: search foresees it.
    """

    @property
    def num_actions(self) -> int:
        """Actions are the numbers from 0 to `num_actions - 1`; an attribute of the class will do."""
        ...

    @property
    def players(self) -> int:
        """1 or 2; an attribute of the class will do."""
        ...

    def reset(self, seed: int) -> None:
        """Starts a game; `seed` (uint32) decides on whatever is left to chance."""
        ...

    def step(self, action: int) -> None:
        """Plays a legal action. Never called once the game is over."""
        ...

    def legal_actions(self) -> Sequence[int] | np.ndarray[Any, Any]:
        """The actions (their numbers, not a mask) open to the player to move; at least one until the game is over."""
        ...

    def observation(self) -> np.ndarray[Any, Any]:
        """What the player to move sees: an array of the same shape and dtype at all times, also once all is over.

        Boards are `[rows, columns, planes]`. Networks read bool and uint8 as they are, everything else as float32.
        """
        ...

    def player(self) -> int:
        """Who is to move: 0 or 1; anything once the game is over."""
        ...

    def rewards(self) -> Sequence[float]:
        """What each player received for the last step, zeros after `reset`: one number, or two that sum to zero."""
        ...

    def done(self) -> bool:
        """Whether the game is over."""
        ...

    def clone(self) -> Self:
        """An independent copy: whatever happens to one of the two, the other stays as it is.

        `copy.deepcopy(self)` always is one; copying by hand what a step changes is many times faster.
        """
        ...


def check_simulator(
    simulator: Simulator,
    name: str,
    games: int = 3,
    max_plies: int = 24,
    seed: int = 0,
    *,
    discount: float = 1.0,
    reward_scale: float | None = None,
) -> None:
    """Plays random games, up to `max_plies` moves of each, and makes sure that the contract is kept.

    It looks at each position through all methods: their results must have the right form, stay the same while a clone
    plays on, be the clone's as well, and come again when a game is played again from its seed.

    Args:
      simulator: is reset and played.
      name: of the game, for messages.
      games: games to play.
      max_plies: moves of each game.
      seed: of the games and of the random moves.
      discount: what a reward one move later is worth.
      reward_scale: what rewards are multiplied by; if given, no sum of rewards may then leave [-1, 1].

    Raises:
      ConfigError: the contract is broken; says how, and after which moves.
    """
    choose = random.Random(seed)
    form: np.ndarray[Any, Any] | None = None
    for game in range(seed, seed + games):
        moves: list[int] = []
        try:
            _check_attributes(simulator)
            simulator.reset(game)
            form = _Sight.of(simulator).observation if form is None else form
            seen = _check_game(simulator, game, max_plies, choose, moves, form)
            if seen[0].done:
                raise _BrokenContract("done() says that the game is over before its first move")
            if reward_scale is not None:
                _check_range(seen, discount, reward_scale)
        except _BrokenContract as fault:
            raise ConfigError(f"{name} breaks the contract of simulators: {_where(fault, game, moves)}") from None
        except Exception as error:
            what = f"it raised {type(error).__name__}: {error}"
            raise ConfigError(f"{name} cannot be played: {_where(what, game, moves)}") from error


class _BrokenContract(Exception):
    pass


class _Sight(NamedTuple):
    """All that can be seen of a simulator."""

    observation: np.ndarray[Any, Any]
    legal: tuple[int, ...]
    player: int
    rewards: tuple[float, ...]
    done: bool

    @staticmethod
    def of(simulator: Simulator) -> _Sight:
        done = bool(simulator.done())
        return _Sight(
            observation=np.array(simulator.observation()),
            legal=() if done else tuple(map(int, simulator.legal_actions())),
            player=0 if done else int(simulator.player()),
            rewards=tuple(map(float, simulator.rewards())),
            done=done,
        )

    def difference(self, other: _Sight) -> str | None:
        """The first thing that is not the same, if any."""
        if not np.array_equal(self.observation, other.observation):
            return "observation"
        return next((field for field in self._fields[1:] if getattr(self, field) != getattr(other, field)), None)


def _check_attributes(simulator: Simulator) -> None:
    if not isinstance(simulator.num_actions, int | np.integer) or simulator.num_actions < 1:
        raise _BrokenContract(f"num_actions = {simulator.num_actions!r}: expected a positive number")
    if simulator.players not in (1, 2):
        raise _BrokenContract(f"players = {simulator.players!r}: expected 1 or 2")


def _check_range(seen: list[_Sight], discount: float, scale: float) -> None:
    """What a game paid from each of its positions on must be a value. Of a game that goes on only the difference of two
    values is known.
    """
    most, returns = (1.0 if seen[-1].done else 2.0), np.zeros(len(seen[-1].rewards))
    for sight in reversed(seen[1:]):
        returns = scale * np.array(sight.rewards) + discount * returns
        if (worst := float(np.abs(returns).max())) > most + 1e-6:
            raise _BrokenContract(
                f"a random game's rewards add up to {worst:.6g}, and values lie in [-1, 1]; set env.reward_scale to "
                f"{scale * most / worst:.2g} or less, so that no game's can add up to more"
            )


def _check_game(
    simulator: Simulator, seed: int, max_plies: int, choose: random.Random, moves: list[int], form: Any
) -> list[_Sight]:
    """One random game and what was seen of it; `moves` is filled while it is played."""
    simulator.reset(seed)
    seen = [_checked(simulator, form)]
    while not seen[-1].done and len(moves) < max_plies:
        action = choose.choice(seen[-1].legal)
        ahead, behind = simulator.clone(), simulator.clone()
        _must_match(seen[-1], ahead, "a clone differs from its original")
        ahead.step(action)
        _must_match(seen[-1], simulator, "clones are not independent: a step of the clone changed the original")
        simulator.step(action)
        _must_match(seen[-1], behind, "clones are not independent: a step of the original changed the clone")
        moves.append(action)
        seen.append(_checked(simulator, form))
        _must_match(seen[-1], ahead, "the same action led the clone and the original to different positions")
        _play_on(ahead, choose)
        _must_match(seen[-1], simulator, "clones are not independent: what the clone played changed the original")
    again = simulator.clone()
    again.reset(seed)
    for ply, sight in enumerate(seen):
        _must_match(
            sight, again, f"the game is not determined by its seed and moves: move {ply} was not the same again"
        )
        if ply < len(moves):
            again.step(moves[ply])
    return seen


def _play_on(simulator: Simulator, choose: random.Random, plies: int = 4) -> None:
    for _ in range(plies):
        if simulator.done():
            return
        simulator.step(choose.choice(tuple(map(int, simulator.legal_actions()))))


def _checked(simulator: Simulator, form: np.ndarray[Any, Any]) -> _Sight:
    """What can be seen, with everything in the form that was promised."""
    sight = _Sight.of(simulator)
    if (sight.observation.shape, sight.observation.dtype) != (form.shape, form.dtype):
        raise _BrokenContract(
            f"the observation was {form.dtype} of shape {list(form.shape)} at the start, and is now "
            f"{sight.observation.dtype} of shape {list(sight.observation.shape)}"
        )
    if sight.observation.dtype.kind not in "biuf" or not np.isfinite(sight.observation).all():
        raise _BrokenContract(f"the observation ({form.dtype}) holds something else than finite numbers")
    if len(sight.rewards) != simulator.players or not np.isfinite(sight.rewards).all():
        raise _BrokenContract(f"rewards() = {sight.rewards}: expected {simulator.players} finite numbers")
    if simulator.players == 2 and abs(sum(sight.rewards)) > 1e-6:
        raise _BrokenContract(f"rewards() = {sight.rewards}: what one of two players wins the other must lose")
    if sight.done:
        return sight
    if not sight.legal:
        raise _BrokenContract("legal_actions() is empty, but done() says that the game is not over")
    known = set(range(simulator.num_actions))
    if len(set(sight.legal)) < len(sight.legal) or not known.issuperset(sight.legal):
        raise _BrokenContract(
            f"legal_actions() = {list(sight.legal)}: expected numbers of actions below {simulator.num_actions}, each "
            "once (not a mask)"
        )
    if sight.player not in range(simulator.players):
        raise _BrokenContract(f"player() = {sight.player}: expected a number below {simulator.players}")
    return sight


def _must_match(expected: _Sight, simulator: Simulator, otherwise: str) -> None:
    if field := expected.difference(_Sight.of(simulator)):
        method = "legal_actions" if field == "legal" else field
        raise _BrokenContract(f"{otherwise}, which shows in {method}()")


def _where(what: object, seed: int, moves: list[int]) -> str:
    return f"{what} (seed {seed}, moves so far {moves})"
