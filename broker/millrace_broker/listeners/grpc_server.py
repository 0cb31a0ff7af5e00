"""The listener that speaks gRPC: a thin adapter between grpc.aio and the handlers of ``millrace_broker.api``.

Every call is registered as one with a streamed request, so that its body is received only when the adapter reads it:
admission comes first, and HTTP/2's flow control keeps what waits in the sender's memory instead of ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message_factory import GetMessageClass

from millrace.config.broker import BrokerConfig, Listener
from millrace.errors import EnvironmentProblemError, InvalidRequestError, MillraceError, RequestTimedOutError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.status import ERROR_CODE_KEY, status_of
from millrace_broker.api import STREAM_HANDLERS, Call, StreamHandler, UnaryHandler, in_progress, known_error
from millrace_broker.broker import Broker
from millrace_broker.listeners.shared import (
    FRAMING_BYTES,
    RECEPTION_TIMEOUT_S,
    UNARY_METHODS,
    binding_problem,
    is_local,
)
from millrace_broker.network.sockets import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S
from millrace_broker.quotas import (
    BROKER_SOFTWARE_NAME,
    PARKED_CALL_BYTES,
    class_of,
    current_call,
    parked,
)

_logger = logging.getLogger(__name__)

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Broker"]
_DETAILS_MAX: Final = 2000
"""Characters of an error message that go into the status: all headers of a call share 8 KiB."""

_Context = Any  # grpc.aio.ServicerContext is generic in what this adapter does not care about


def make_server(config: BrokerConfig) -> grpc.aio.Server:
    """Make a server with the configured limits, to be bound. It answers nothing before ``add_handlers``."""
    return grpc.aio.server(options=_options(config))


def add_handlers(server: grpc.aio.Server, broker: Broker) -> None:
    """Have a server answer the ``Broker`` service with the broker's handlers. To be called before it is started."""
    handlers = {
        method.name: grpc.stream_unary_rpc_method_handler(
            _unary(broker, method.name, method.handler),
            request_deserializer=method.request.FromString,
            response_serializer=_serialized,
        )
        for method in UNARY_METHODS.values()
    }
    for name, handler in STREAM_HANDLERS.items():
        handlers[name] = grpc.stream_stream_rpc_method_handler(
            _stream(broker, name, handler),
            request_deserializer=GetMessageClass(_SERVICE.methods_by_name[name].input_type).FromString,
            response_serializer=_serialized,
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers),))


def bind(server: grpc.aio.Server, listener: Listener) -> int:
    """Bind to an address; returns the port. Raises ``EnvironmentProblemError`` when it cannot be had."""
    try:
        port = server.add_insecure_port(str(listener))
    except RuntimeError as error:
        raise EnvironmentProblemError(_problem(listener)) from error
    if port == 0:
        raise EnvironmentProblemError(_problem(listener))
    return port


def _problem(listener: Listener) -> str:
    return binding_problem(str(listener), "listeners (--listen HOST:PORT)")


def _options(config: BrokerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.socket_request_max_bytes + FRAMING_BYTES),
        ("grpc.max_send_message_length", -1),  # responses have their own limits; a first batch is always sent
        # Calls that wait are streams, too: a client with many of them is to have its other calls answered.
        ("grpc.max_concurrent_streams", _streams_max(config)),
        ("grpc.max_connection_idle_ms", config.connections_max_idle_ms),
        ("grpc.so_reuseport", 0),  # two brokers on one port must be an error, not a lottery
        # A peer that vanished without closing is noticed, and idle clients may ping.
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def _streams_max(config: BrokerConfig) -> int:
    return config.queued_max_requests + config.purgatory_max_request_bytes // PARKED_CALL_BYTES


def _serialized(response: Any) -> bytes:
    """A response on the wire; some write themselves with fewer copies than their generated class would."""
    data: bytes = response.SerializeToString()
    return data


def _unary(broker: Broker, name: str, handler: UnaryHandler) -> Any:
    async def behaviour(_requests: AsyncIterator[Any], context: _Context) -> Any:
        in_progress.set(f"{name} from {context.peer()}")
        with ExitStack() as stack:
            try:
                call, request = await _admit(broker, name, context, stack)
                return await handler(broker, request, call)
            except Exception as error:  # noqa: BLE001 - every error ends the call with its status
                failure = known_error(error)
        return await _abort(context, failure)

    return behaviour


def _stream(broker: Broker, name: str, handler: StreamHandler) -> Any:
    async def behaviour(_requests: AsyncIterator[Any], context: _Context) -> AsyncIterator[Any]:
        in_progress.set(f"{name} from {context.peer()}")
        with ExitStack() as stack:
            try:
                call, request = await _admit(broker, name, context, stack)
                async for response in handler(broker, request, call):
                    with parked():  # until the caller takes it
                        yield response
                return
            except Exception as error:  # noqa: BLE001 - every error ends the call with its status
                failure = known_error(error)
        await _abort(context, failure)

    return behaviour


async def _admit(broker: Broker, name: str, context: _Context, stack: ExitStack) -> tuple[Call, Any]:
    """Count the call, wait until its body may take memory, and receive it."""
    peer = context.peer()
    admitted = broker.admission.begin(peer, class_of(name, is_broker=_is_broker(context)))
    stack.callback(admitted.end)
    # The response is in memory until it has been sent, which is when the call is done.
    context.add_done_callback(lambda _: admitted.response_lease.release())
    await admitted.take_request_memory(admitted.body_estimate.bytes)
    try:
        async with asyncio.timeout(RECEPTION_TIMEOUT_S):
            # Not through the iterator: that keeps the message until cyclic garbage is collected.
            request = await context.read()
    except TimeoutError:
        raise RequestTimedOutError(f"the request's body did not come within {RECEPTION_TIMEOUT_S:.0f} s") from None
    if request is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
        raise InvalidRequestError("the call ended without a request")
    size_bytes = request.ByteSize()
    admitted.request_lease.settle(size_bytes)
    admitted.body_estimate.saw(size_bytes)
    current_call.set(admitted)
    return Call(peer=peer, is_local=is_local(peer), response_lease=admitted.response_lease), request


def _is_broker(context: _Context) -> bool:
    """Whether a broker calls: its user agent says so."""
    agent = next((value for key, value in context.invocation_metadata() if key == "user-agent"), "")
    return str(agent).startswith(BROKER_SOFTWARE_NAME)


async def _abort(context: _Context, error: MillraceError) -> None:
    details = error.message
    if len(details) > _DETAILS_MAX:
        details = details[: _DETAILS_MAX - 3] + "..."
    await context.abort(status_of(error), details, trailing_metadata=((ERROR_CODE_KEY, str(error.code)),))
