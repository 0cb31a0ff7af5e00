"""The way from this broker to the others: their addresses, and calls over gRPC as any client makes them.

Invariants: one channel to an address, made when first needed; it connects by itself, and again after it broke. A broker
that comes back under another address gets another channel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message_factory import GetMessageClass

from millrace.config.broker import Listener
from millrace.errors import BrokerUnavailableError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.status import error_from_rpc

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Broker"]
_RECONNECT_MS: Final = 100
_OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", _RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # Otherwise all channels of a process to one broker share a connection, and its flow control.
    ("grpc.use_local_subchannel_pool", 1),
]

T = TypeVar("T")


class Peers:
    """Calls to other brokers by their ids. For the event loop's thread."""

    def __init__(self) -> None:
        self._addresses: Final[dict[int, str]] = {}
        self._channels: Final[dict[str, grpc.aio.Channel]] = {}
        self._methods: Final[dict[tuple[str, str, Any], Any]] = {}

    def know(self, broker_id: int, host: str, port: int) -> None:
        """A broker is reached there from now on."""
        self._addresses[broker_id] = str(Listener(host, port))

    def forget(self, broker_id: int) -> None:
        """A broker is gone; its channel is kept, for it may come back there."""
        self._addresses.pop(broker_id, None)

    async def call(
        self,
        broker_id: int,
        name: str,
        request: Any,
        *,
        timeout_s: float,
        decode: Callable[[bytes], T] | None = None,
    ) -> T:
        """Call ``name`` of the ``Broker`` service at a broker; ``decode`` makes something of the answer's bytes.

        Raises the broker's error, ``RequestTimedOutError``, and ``BrokerUnavailableError`` when it cannot be reached.
        """
        address = self._addresses.get(broker_id)
        if address is None:
            raise BrokerUnavailableError(f"broker {broker_id} is not alive, as far as is known here")
        try:
            answer: T = await self._method(address, name, decode)(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return answer

    def _method(self, address: str, name: str, decode: Callable[[bytes], Any] | None) -> Any:
        key = (address, name, decode)
        method = self._methods.get(key)
        if method is None:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = grpc.aio.insecure_channel(address, options=_OPTIONS)
            method = self._methods[key] = channel.unary_unary(
                f"/{_SERVICE.full_name}/{name}",
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=decode or GetMessageClass(_SERVICE.methods_by_name[name].output_type).FromString,
            )
        return method

    async def close(self) -> None:
        """End the connections; calls under way fail."""
        self._methods.clear()
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close(None)
