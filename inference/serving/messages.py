"""The messages between actors and inference servers (ZeroMQ frames), and the encoding of positions.

A client sends `hello`, receives `welcome`, and then sends requests, at most `CREDITS` of them unanswered. The server
answers what it cannot serve with `refused` and the reason.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import Experiment
from podzero.core.errors import PodzeroError
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState
from podzero.envs import pack_states, packed_bytes, unpack_states

HELLO, WELCOME, REQUEST, ANSWER, REFUSED = b"hello", b"welcome", b"request", b"answer", b"refused"
"""Kinds of messages, in the first frame."""
CREDITS = 2
"""Most unanswered requests of a client."""
HELLO_BYTES = 2**16
"""Largest `hello`."""
LARGE = 2**17
"""Bytes from which sending without a copy is faster; small messages are sent several times as fast with one."""
_NUMBERS = struct.Struct("<QqQ")


class MessageError(PodzeroError, ValueError):
    """A message that cannot be read, for example one of another version of podzero."""


class Identity(NamedTuple):
    """Properties in which client and server must agree."""

    run: str
    """Id of the run; addresses of an earlier run may still be in use."""
    game: str
    network: str
    """Kind and size of the network, in words."""
    row_bytes: int
    """Bytes per position."""
    outputs: int
    """Numbers per evaluation, `EnvSpec.outputs`."""

    def differences(self, other: Identity) -> list[str]:
        """Differing fields, for example `game 'hex' instead of 'othello'`."""
        pairs = zip(self._fields, self, other, strict=True)
        return [f"{name} {theirs!r} instead of {mine!r}" for name, mine, theirs in pairs if mine != theirs]


class Hello(NamedTuple):
    """A client's introduction."""

    name: str
    """Name of the actor."""
    positions: int
    """Most positions in one request."""
    identity: Identity


class Welcome(NamedTuple):
    """The answer to `Hello`."""

    name: str
    """Name of the server."""
    version: int
    """Learner step of its parameters; -1 before the first ones."""
    known: np.ndarray[Any, Any]
    """`[outputs]` float32: the evaluation of the initial position by these parameters; empty before the first ones."""


class Answer(NamedTuple):
    """The answer to a request."""

    number: int
    version: int
    """Learner step of the oldest parameters that evaluated any of its positions."""
    evaluations: np.ndarray[Any, Any]
    """`[B, outputs]` float32: logits, then the values."""
    lag: int = 0
    """How many publications the server's parameters are behind."""


def identity_of(experiment: Experiment, run: str, row_bytes: int, outputs: int) -> Identity:
    """The identity of the actors and servers of an experiment."""
    network = experiment.network.model_dump(mode="json")
    digest = hashlib.sha256(json.dumps(network, sort_keys=True).encode()).hexdigest()[:8]
    return Identity(run, experiment.env.title, f"{experiment.network.name} {digest}", row_bytes, outputs)


def hello_frames(hello: Hello) -> list[bytes]:
    """`Hello` as frames."""
    return [HELLO, json.dumps([hello.name, hello.positions, list(hello.identity)]).encode()]


def read_hello(frames: Sequence[bytes]) -> Hello:
    """The inverse of `hello_frames`."""
    try:
        _, content = frames
        if len(content) > HELLO_BYTES:
            raise ValueError(f"{len(content)} bytes; expected at most {HELLO_BYTES}")
        name, positions, identity = json.loads(content)
        hello = Hello(name, positions, Identity(*identity))
        _check_kinds(hello, Hello("", 1, Identity("", "", "", 1, 1)))
    except (ValueError, TypeError, RecursionError) as error:
        raise MessageError(f"hello cannot be read ({error}); does the actor run another version?") from None
    return hello


def _check_kinds(given: tuple[Any, ...], example: tuple[Any, ...]) -> None:
    """Raises `ValueError` unless each value has the type of the example's, and numbers are positive and below 2^63."""
    for value, like in zip(given, example, strict=True):
        if isinstance(like, tuple):
            _check_kinds(value, like)
        elif type(value) is not type(like):
            raise ValueError(f"{type(value).__name__} instead of {type(like).__name__}")
        elif isinstance(value, int) and not 0 < value < 2**63:
            raise ValueError(f"{value} is not in (0, 2^63)")


def welcome_frames(welcome: Welcome) -> list[bytes]:
    """`Welcome` as frames."""
    return [WELCOME, json.dumps([welcome.name, welcome.version]).encode(), welcome.known.tobytes()]


def read_welcome(frames: Sequence[bytes], outputs: int) -> Welcome:
    """The inverse of `welcome_frames`."""
    try:
        _, content, known = frames
        name, version = json.loads(content)
        _check_kinds((name, version + 2), ("", 1))
    except (ValueError, TypeError, RecursionError) as error:
        raise MessageError(f"welcome cannot be read ({error})") from None
    return Welcome(name, version, _numbers(known, outputs)[0] if version >= 0 else np.zeros(0, np.float32))


def request_frames(number: int, rows: np.ndarray[Any, Any]) -> list[Any]:
    """Positions `[B, S]` uint8 as frames, without a copy if they are contiguous."""
    return [REQUEST, struct.pack("<Q", number), np.ascontiguousarray(rows)]


def read_request(frames: Sequence[Any], row_bytes: int) -> tuple[int, np.ndarray[Any, Any]]:
    """A request's number and positions `[B, S]` uint8."""
    try:
        _, head, data = frames
        (number,) = struct.unpack("<Q", head)
    except (ValueError, struct.error) as error:
        raise MessageError(f"the request cannot be read ({error}); does the actor run another version?") from None
    size = memoryview(data).nbytes
    if not size or size % row_bytes:
        raise MessageError(f"{size} bytes: expected a positive multiple of the {row_bytes} bytes of a position")
    return number, np.frombuffer(data, np.uint8).reshape(-1, row_bytes)


def answer_frames(answer: Answer) -> list[Any]:
    """`Answer` as frames."""
    return [ANSWER, _NUMBERS.pack(answer.number, answer.version, answer.lag), np.ascontiguousarray(answer.evaluations)]


def read_answer(frames: Sequence[Any], outputs: int) -> Answer:
    """The inverse of `answer_frames`."""
    try:
        _, head, data = frames
        number, version, lag = _NUMBERS.unpack(head)
    except (ValueError, struct.error) as error:
        raise MessageError(f"answer cannot be read ({error})") from None
    return Answer(number, version, _numbers(data, outputs), lag)


def _numbers(data: Any, outputs: int) -> np.ndarray[Any, Any]:
    """Evaluations `[B, outputs]` float32."""
    size = memoryview(data).nbytes
    if not size or size % (4 * outputs):
        raise MessageError(f"{size} bytes: expected a positive multiple of the {4 * outputs} bytes of an evaluation")
    evaluations = np.frombuffer(data, np.float32).reshape(-1, outputs)
    if not np.isfinite(evaluations).all():
        raise MessageError("an evaluation is not finite")
    return evaluations


def refused_frames(sentence: str, elsewhere: bool) -> list[bytes]:
    """A refusal as frames; `elsewhere`: another server, or this one after a new `Hello`, could serve the client."""
    return [REFUSED, bytes([elsewhere]), sentence.encode(errors="backslashreplace")]


def read_refused(frames: Sequence[bytes]) -> tuple[str, bool]:
    """The inverse of `refused_frames`."""
    try:
        _, elsewhere, sentence = frames
        return sentence.decode(), elsewhere != b"\0"
    except ValueError as error:
        raise MessageError(f"refusal cannot be read ({error})") from None


class Encoding(NamedTuple):
    """The encoding of positions by the packed observation, or by the packed state of the game if that is smaller."""

    row_bytes: int
    """Bytes per position, S."""
    encode: Callable[[EnvState], jax.Array]
    """States `[B, ...]` to rows `[B, S]` uint8; traceable."""
    decode: Callable[[Array], jax.Array]
    """Rows `[B, S]` uint8 to observations `[B, *observation_shape]`; traceable."""
    legal: Callable[[Array], jax.Array] | None = None
    """Rows `[B, S]` uint8 to legal actions `[B, A]` bool; traceable. None if rows lack them."""


def encoding_of(env: Env, with_legal: bool = False) -> Encoding:
    """The encoding of a game's positions; `with_legal` adds the legal actions, for comparisons of policies."""
    spec, view = env.spec, jax.vmap(env.view)
    observed = np.zeros(spec.observation_shape, spec.observation_dtype)
    like = [observed, np.zeros(spec.num_actions, np.bool_)] if with_legal else [observed]
    if spec.state_bytes and spec.state_bytes < packed_bytes(observed):
        state = jax.eval_shape(env.init, jax.random.key(0))
        return Encoding(
            spec.state_bytes,
            pack_states,
            lambda rows: jnp.asarray(view(unpack_states(rows, state)).observation),
            lambda rows: jnp.asarray(view(unpack_states(rows, state)).legal),
        )

    def encode(states: EnvState) -> jax.Array:
        seen = view(states)
        return pack_states([jnp.asarray(seen.observation, observed.dtype), seen.legal][: len(like)])

    return Encoding(
        packed_bytes(like),
        encode,
        lambda rows: unpack_states(rows, like)[0],
        (lambda rows: unpack_states(rows, like)[1]) if with_legal else None,
    )
