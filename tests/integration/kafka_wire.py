"""Kafka's protocol written by hand, for requests that no client would send."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, Final, Self

from millrace.kafka_protocol.calls.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millrace.kafka_protocol.calls.describe_acls import DescribeAclsRequest
from millrace.kafka_protocol.calls.find_coordinator import FindCoordinatorRequest
from millrace.kafka_protocol.data.request_header import RequestHeader
from millrace.kafka_protocol.lookup import (
    request_header_version,
    response_class,
    response_header_version,
)
from millrace.kafka_protocol.message import Message
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, Stall

EVERY_ACL: Final = DescribeAclsRequest(
    resource_type_filter=1,
    resource_name_filter=None,
    pattern_type_filter=1,
    principal_filter=None,
    host_filter=None,
    operation=1,
    permission_type=1,
)
"""A request for all ACLs, with the number ANY in each filter."""


def written(request: Message, version: int, correlation_id: int = 0, client_id: str | None = "wire") -> bytes:
    """Encode a request with its length and header."""
    key = request.API_KEY
    header = RequestHeader(
        request_api_key=key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    data = header.encode(request_header_version(key, version)) + request.encode(version)
    return struct.pack(">i", len(data)) + data


class KafkaWire:
    """One connection. It sends no request before the test's first one."""

    def __init__(self, broker: EmbeddedBroker | int, timeout_s: float = STALL_S) -> None:
        """``broker`` is a broker, or a port of one."""
        port = broker if isinstance(broker, int) else broker.port
        self.sock = socket.create_connection(("127.0.0.1", port), timeout_s)
        self.port = self.sock.getsockname()[1]
        """The client's port, which names the connection in the broker's log."""

    def send(self, request: Message, version: int, correlation_id: int = 0) -> None:
        self.sock.sendall(written(request, version, correlation_id))

    def receive(self, api_key: int, version: int) -> tuple[int, Any]:
        """Return the correlation id and the message of the next response."""
        data = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        start = 4 + response_header_version(api_key, version)  # there are no tagged fields
        return struct.unpack_from(">i", data)[0], response_class(api_key).decode_from(data, version, start)[0]

    def call(self, request: Message, version: int) -> Any:
        self.send(request, version, 7)
        correlation_id, response = self.receive(request.API_KEY, version)
        assert correlation_id == 7
        return response

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.sock.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    @property
    def received(self) -> bytes:
        """Return everything that the broker sends until it closes the connection."""
        data = b""
        while part := self.sock.recv(65536):
            data += part
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()


def find_coordinator(wire: KafkaWire, key_type: int, key: str) -> None:
    """Wait until a group (0) or a transactional id (1) has its coordinator."""
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))
    stall = Stall("the coordinator")
    while wire.call(request, 6).coordinators[0].error_code:
        stall.check()


def join_consumer_group(wire: KafkaWire, topic: str) -> Any:
    """Make ``m`` the member of a consumer group that has the name of its topic, and return the heartbeat's answer."""
    find_coordinator(wire, 0, topic)
    request = ConsumerGroupHeartbeatRequest(
        group_id=topic,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=(topic,),
        topic_partitions=(),
    )
    stall = Stall("the group")
    while (joined := wire.call(request, 1)).error_code:
        stall.check()
    return joined
