"""Calls and pending calls, independent of the transport."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from millrace.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    MillraceError,
    RequestTimedOutError,
    UnknownServerError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import read_throttle_time_ms
from millrace.protocol.frames import API_KEYS

if TYPE_CHECKING:
    import grpc

    from millrace.protocol.millrace_pb2_grpc import BrokerStub

_THROTTLE_S_MAX: Final = 30.0
"""Longest wait for a quota, because a quota may have been raised since. The broker then delays the call itself."""

Request = TypeVar("Request")
Response = TypeVar("Response")

Received = bytes | memoryview
"""A received message; a large one has its own memory, which it keeps alive."""

Method = Callable[["BrokerStub"], "grpc.UnaryUnaryMultiCallable[Request, Response]"]
"""Selector of a call of the service that types its messages: ``lambda stub: stub.Heartbeat``."""


@dataclass(frozen=True, slots=True)
class UnaryCall(Generic[Request, Response]):
    """A call with one request and one response, and their encoding."""

    name: str
    encode: Callable[[Request], Any]
    decode: Callable[[Received], Response]
    api_key: int = 0
    """API key over frames."""
    throttle_time_ms: Callable[[Response], int] | None = None
    """Reader of the time for which a response throttles the client; None if its kind never does."""

    @classmethod
    def of(
        cls,
        name: str,
        *,
        encode: Callable[[Request], Any],
        decode: Callable[[Received], Response],
        throttle_time_ms: Callable[[Response], int] | None = None,
    ) -> UnaryCall[Request, Response]:
        """Create a call with a custom encoding."""
        return UnaryCall(name, encode, decode, API_KEYS[name], throttle_time_ms)


class _Names:
    """Stand-in for a stub: its attributes are calls, by their names."""

    def __getattr__(self, name: str) -> UnaryCall[Any, Any]:
        return _call_of(name)


_NAMES: Final = _Names()


@cache
def _call_of(name: str) -> UnaryCall[Any, Any]:
    method = pb.DESCRIPTOR.services_by_name["Broker"].methods_by_name[name]
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    throttles = "throttle_time_ms" in response.DESCRIPTOR.fields_by_name
    return UnaryCall.of(
        name,
        encode=request.SerializeToString,
        decode=cast("Any", response.FromString),
        throttle_time_ms=attrgetter("throttle_time_ms") if throttles else None,
    )


def unary(method: Method[Request, Response]) -> UnaryCall[Request, Response]:
    """Return the call of a ``Method``."""
    return cast("UnaryCall[Request, Response]", method(cast("BrokerStub", _NAMES)))


class Throttle:
    """Throttle times of one broker's quotas, by call (KIP-219). Thread safe.

    Other calls to the broker are not throttled. The broker delays the calls of a client that does not wait.
    """

    def __init__(self) -> None:
        self._until: Final[dict[str, float]] = {}

    def decoded(self, call: UnaryCall[Any, Response], data: Received) -> Response:
        """Decode the received response, and note its throttle time. Raises ``UnknownServerError`` if it is invalid."""
        try:
            response = call.decode(data)
            throttle_ms = 0 if call.throttle_time_ms is None else call.throttle_time_ms(response)
        except (DecodeError, InvalidRequestError) as error:
            raise UnknownServerError(f"the answer to {call.name} cannot be parsed: {error}") from error
        if throttle_ms > 0:
            self._until[call.name] = time.monotonic() + min(throttle_ms / 1000, _THROTTLE_S_MAX)
        return response

    def wait_s(self, call: UnaryCall[Any, Any]) -> float:
        """Return the seconds until the next call of this kind."""
        if not self._until:
            return 0.0
        return max(0.0, self._until.get(call.name, 0.0) - time.monotonic())


PRODUCE: Final[UnaryCall[Received, pb.ProduceResponse]] = UnaryCall.of(
    "Produce",
    encode=lambda request: request,
    decode=cast("Any", pb.ProduceResponse.FromString),
    throttle_time_ms=attrgetter("throttle_time_ms"),
)
"""The call Produce with an encoded request: see ``millrace.clients.producing.wire``."""

FETCH: Final[UnaryCall[pb.FetchRequest, Received]] = UnaryCall.of(
    "Fetch",
    encode=pb.FetchRequest.SerializeToString,
    decode=lambda data: data,
    throttle_time_ms=read_throttle_time_ms,
)
"""The call Fetch with an undecoded response: see ``millrace.protocol.fetch_response``."""


class Helper(Protocol):
    """Receiver of responses in a thread that has to wait anyway.

    This saves the wake-up of another thread.
    """

    def help(self, is_over: Callable[[], bool], timeout_s: float) -> bool:
        """Receive until ``is_over``, at most for ``timeout_s``; returns false, at once, if there is nothing to
        receive.
        """

    def wake(self) -> None:
        """Let the receiving thread check whether it is over."""


OnDone = Callable[[Response | None, MillraceError | None], None]
"""Callback with a call's response or error, in a thread of the client, or in one that cancels or closes."""


class PendingCall(Generic[Response]):
    """A call in flight. Thread safe.

    It is completed exactly once, by a response, an error, ``cancel`` or the client's close, whichever comes first.
    """

    __slots__ = ("_abort", "_event", "_is_done", "_lock", "_on_done", "_outcome")

    def __init__(self, on_done: OnDone[Response] | None = None) -> None:
        self._on_done = on_done
        self._lock = threading.Lock()
        self._is_done = False
        self._outcome: tuple[Response | None, MillraceError | None] = (None, None)
        self._event: threading.Event | None = None
        self._abort: Callable[[], object] | None = None

    @property
    def is_done(self) -> bool:
        """True if the call has ended, so that ``result`` does not wait."""
        return self._is_done

    def result(self, timeout_s: float | None = None) -> Response:
        """Wait for the response, or raise the call's error; ``RequestTimedOutError`` after ``timeout_s``."""
        with self._lock:
            if not self._is_done and self._event is None:
                self._event = threading.Event()
            event = self._event
        if not self._is_done and event is not None and not event.wait(timeout_s):
            raise RequestTimedOutError(f"the call has not ended within {timeout_s} s")
        response, error = self._outcome
        if error is not None:
            raise error
        return cast("Response", response)

    def cancel(self) -> None:
        """End the call with ``BrokerUnavailableError``, unless it is done; the broker may continue to process it."""
        self.complete(None, BrokerUnavailableError("the call was cancelled"))
        if self._abort is not None:
            self._abort()

    # --- for transports -------------------------------------------------------------------------------------------

    def aborts_by(self, abort: Callable[[], object]) -> bool:
        """Set the function that ``cancel`` calls; returns false if the call is over already."""
        self._abort = abort
        return not self._is_done

    def complete(self, response: Response | None, error: MillraceError | None) -> bool:
        """Set the outcome; returns false without effect if it was set before."""
        with self._lock:
            if self._is_done:
                return False
            self._outcome = (response, error)
            self._is_done = True
            if self._event is not None:
                self._event.set()
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(response, error)
        return True


def not_reached(address: str, reason: str) -> BrokerUnavailableError:
    """Build the error of a call that no broker received."""
    error = BrokerUnavailableError(
        f"no broker answers at {address}: start one with 'millrace broker', or correct bootstrap.servers ({reason})"
    )
    error.was_sent = False
    return error


def broken_off(address: str, reason: str) -> BrokerUnavailableError:
    """Build the error of a call that a broker may have received."""
    return BrokerUnavailableError(
        f"no broker answers at {address}: start one with 'millrace broker', or correct bootstrap.servers ({reason})"
    )
