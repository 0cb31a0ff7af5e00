"""What a call is, whichever way it travels, and what one under way can be asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from millrace.errors import BrokerUnavailableError, MillraceError, RequestTimedOutError, UnknownServerError
from millrace.protocol import millrace_pb2 as pb

if TYPE_CHECKING:
    import grpc

    from millrace.protocol.millrace_pb2_grpc import BrokerStub

Request = TypeVar("Request")
Response = TypeVar("Response")

Received = bytes | memoryview
"""A message as it came; one that was large lies in memory of its own, which it keeps alive."""

Method = Callable[["BrokerStub"], "grpc.UnaryUnaryMultiCallable[Request, Response]"]
"""Names a call of the service so that the types of its messages are known: ``lambda stub: stub.Heartbeat``."""


@dataclass(frozen=True, slots=True)
class UnaryCall(Generic[Request, Response]):
    """A call with one request and one response, and how these become bytes and are made of them."""

    name: str
    encode: Callable[[Request], Any]
    decode: Callable[[Received], Response]
    wire_name: bytes = b""

    @classmethod
    def of(
        cls, name: str, *, encode: Callable[[Request], Any], decode: Callable[[Received], Response]
    ) -> UnaryCall[Request, Response]:
        """A call that is encoded or decoded in a way of its own."""
        return UnaryCall(name, encode, decode, name.encode())


class _Names:
    """Stands in for a stub: its attributes are calls, by their names."""

    def __getattr__(self, name: str) -> UnaryCall[Any, Any]:
        return _call_of(name)


_NAMES: Final = _Names()


@cache
def _call_of(name: str) -> UnaryCall[Any, Any]:
    method = pb.DESCRIPTOR.services_by_name["Broker"].methods_by_name[name]
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return UnaryCall.of(name, encode=request.SerializeToString, decode=cast("Any", response.FromString))


def unary(method: Method[Request, Response]) -> UnaryCall[Request, Response]:
    """The call that a ``Method`` names."""
    return cast("UnaryCall[Request, Response]", method(cast("BrokerStub", _NAMES)))


def decoded(call: UnaryCall[Any, Response], data: Received) -> Response:
    """The response that was received. Raises ``UnknownServerError`` for what is none."""
    try:
        return call.decode(data)
    except DecodeError as error:
        raise UnknownServerError(f"the answer to {call.name} is not what it should be: {error}") from error


PRODUCE: Final[UnaryCall[Received, pb.ProduceResponse]] = UnaryCall.of(
    "Produce", encode=lambda request: request, decode=cast("Any", pb.ProduceResponse.FromString)
)
"""The call Produce with a request that was written already: see ``millrace.clients.producing.wire``."""

FETCH: Final[UnaryCall[pb.FetchRequest, Received]] = UnaryCall.of(
    "Fetch", encode=pb.FetchRequest.SerializeToString, decode=lambda data: data
)
"""The call Fetch whose response is left as it came: see ``millrace.protocol.fetch_response``."""


class Helper(Protocol):
    """Does, in a thread that has to wait for something, what else another one had to be woken for."""

    def help(self, is_over: Callable[[], bool], timeout_s: float) -> bool:
        """Do so until ``is_over``, at most for ``timeout_s``; false, at once, if there is nothing to do."""

    def wake(self) -> None:
        """Have whoever helps look whether it is over."""


OnDone = Callable[[Response | None, MillraceError | None], None]
"""Told a call's response or its error: in a thread of the client's, or in one that cancels it or closes the client."""


class PendingCall(Generic[Response]):
    """A call under way. Thread safe.

    It is completed exactly once, by an answer, an error, ``cancel`` or the client's closing, whichever comes first.
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
        """Whether ``result`` would not wait."""
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
        """End the call with ``BrokerUnavailableError``, unless it is done; what it does at the broker may go on."""
        self.complete(None, BrokerUnavailableError("the call was cancelled"))
        if self._abort is not None:
            self._abort()

    # --- for transports -------------------------------------------------------------------------------------------

    def aborts_by(self, abort: Callable[[], object]) -> bool:
        """Have ``cancel`` call this; false if the call is over already."""
        self._abort = abort
        return not self._is_done

    def complete(self, response: Response | None, error: MillraceError | None) -> bool:
        """Tell the outcome; false, and nothing is told, if it was told before."""
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
    """The error of a call that no broker got."""
    error = BrokerUnavailableError(
        f"no broker answers at {address}: start one with 'millrace broker', or correct bootstrap.servers ({reason})"
    )
    error.was_sent = False
    return error


def broken_off(address: str, reason: str) -> BrokerUnavailableError:
    """The error of a call that a broker may have got."""
    return BrokerUnavailableError(
        f"no broker answers at {address}: start one with 'millrace broker', or correct bootstrap.servers ({reason})"
    )
