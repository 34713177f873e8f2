"""A connection to one Reverb server: its questions and answers, and its two kinds of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Self

import grpc
from google.protobuf.message import Message

from podzero.replay.errors import MalformedAnswer, ReplayUnavailable, RequestRefused
from podzero.replay.wire import reverb_pb2 as pb

_SERVICE = "/deepmind.reverb.ReverbService/"
_LARGEST_MESSAGE = 300 * 2**20
"""Bytes of one message; what Reverb's own client and server allow."""
_OPTIONS = (
    ("grpc.max_send_message_length", _LARGEST_MESSAGE),
    ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
    # gRPC waits up to two minutes before it looks for a lost server again; a restarted shard is back much sooner.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),  # what one attempt may take; a busy server needs more than the pauses
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # shards are machines of this cluster
    ("grpc.use_local_subchannel_pool", 1),  # connections to one server do not share a socket
)
_GONE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
"""What gRPC says when a server is away, hangs, or goes; which of them depends on when and how it does."""
_UNREADABLE = "deserializ"
"""Part of what gRPC says, with the status INTERNAL, of an answer that is no message of the protocol."""


class Connection:
    """A connection to one Reverb server, made when it is first needed and again when it was lost. Thread-safe."""

    def __init__(self, endpoint: str) -> None:
        """Takes the server's `host:port`."""
        self.endpoint = endpoint
        self._channel = grpc.insecure_channel(endpoint, options=_OPTIONS)
        self._server_info = self._question("ServerInfo", pb.ServerInfoResponse)
        self._mutate_priorities = self._question("MutatePriorities", pb.MutatePrioritiesResponse)
        self._checkpoint = self._question("Checkpoint", pb.CheckpointResponse)
        self._reset = self._question("Reset", pb.ResetResponse)

    def tables(self, timeout_s: float) -> dict[str, pb.TableInfo]:
        """The server's tables by name.

        Raises:
          ReplayUnavailable: the server does not answer within `timeout_s`.
          MalformedAnswer: what answers does not speak Reverb's protocol.
        """
        with self.errors("its tables"):
            answer = self._server_info(pb.ServerInfoRequest(), timeout=timeout_s)
        return {info.name: info for info in answer.table_info}

    def set_priorities(self, table: str, priorities: Sequence[tuple[int, float]], timeout_s: float) -> None:
        """Sets the priorities of items, given by their keys; keys that the table no longer holds are ignored.

        Raises:
          ReplayUnavailable: the server does not answer within `timeout_s`.
          RequestRefused: it has no such table, or refuses a priority.
        """
        updates = [pb.KeyWithPriority(key=key, priority=priority) for key, priority in priorities]
        with self.errors("an update of priorities"):
            self._mutate_priorities(pb.MutatePrioritiesRequest(table=table, updates=updates), timeout=timeout_s)

    def checkpoint(self, timeout_s: float | None = None) -> str:
        """Lets the server write all tables into a new folder below its own; returns that folder.

        Raises:
          ReplayUnavailable: it goes meanwhile, or needs longer than `timeout_s`.
          RequestRefused: it could not write.
        """
        with self.errors("a checkpoint"):
            path: str = self._checkpoint(pb.CheckpointRequest(), timeout=timeout_s).checkpoint_path
        return path

    def reset(self, table: str, timeout_s: float) -> None:
        """Empties a table and sets its limiter to its beginning.

        Raises:
          ReplayUnavailable: the server does not answer within `timeout_s`.
          RequestRefused: it has no such table.
        """
        with self.errors("a reset"):
            self._reset(pb.ResetRequest(table=table), timeout=timeout_s)

    def insert(self, requests: Iterator[bytes]) -> Any:
        """Opens a stream of insertions, each a serialized `InsertStreamRequest`.

        The call is an iterator of `InsertStreamResponse`, to be read in `errors`.
        """
        return self._stream("InsertStream", None, pb.InsertStreamResponse)(requests)

    def sample(self, requests: Iterator[pb.SampleStreamRequest]) -> Any:
        """Opens a stream of samples; the call is an iterator of `SampleStreamResponse`, to be read in `errors`."""
        return self._stream("SampleStream", _serialized, pb.SampleStreamResponse)(requests)

    @contextmanager
    def errors(self, asked_for: str) -> Iterator[None]:
        """Turns errors of gRPC in the block into those of replay; `asked_for` names what the server was asked for.

        Raises:
          ReplayUnavailable, RequestRefused, MalformedAnswer: see their docstrings.
        """
        try:
            yield
        except grpc.RpcError as error:
            self._raise(error, asked_for)
        except ValueError as error:  # the channel was closed by another thread
            raise ReplayUnavailable(f"the connection to replay at {self.endpoint} is closed ({error})") from None

    def close(self) -> None:
        """Ends the connection and its streams; may be called twice."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _question[Answer: Message](self, name: str, answer: type[Answer]) -> Callable[..., Answer]:
        call: Callable[..., Answer] = self._channel.unary_unary(
            _SERVICE + name, request_serializer=_serialized, response_deserializer=answer.FromString
        )
        return call

    def _stream(
        self, name: str, serializer: Callable[[Message], bytes] | None, answer: type[Message]
    ) -> Callable[..., Any]:
        call: Callable[..., Any] = self._channel.stream_stream(
            _SERVICE + name, request_serializer=serializer, response_deserializer=answer.FromString
        )
        return call

    def _raise(self, error: Any, asked_for: str) -> NoReturn:
        status, details = error.code(), error.details() or ""
        if status in _GONE:
            raise ReplayUnavailable(
                f"replay at {self.endpoint} was asked for {asked_for} and does not answer ({status.name}: {details})"
            ) from None
        if status is grpc.StatusCode.UNIMPLEMENTED or _UNREADABLE in details:
            raise MalformedAnswer(
                f"what answers at {self.endpoint} does not speak Reverb's protocol, as that of 0.14 and 0.15 is "
                f"({status.name}: {details}): another program, or another version of Reverb, has the port"
            ) from None
        raise RequestRefused(f"replay at {self.endpoint} refuses {asked_for}: {status.name}: {details}") from None


def _serialized(request: Message) -> bytes:
    content: bytes = request.SerializeToString()
    return content
