"""Lookup and calls of the coordinator of a group or transactional id."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from millrace.clients.backoff import backoff_s
from millrace.clients.connections import Connections
from millrace.clients.metadata import broker_address
from millrace.errors import (
    BrokerUnavailableError,
    CoordinatorNotAvailableError,
    InvalidGroupIdError,
    MillraceError,
    NotCoordinatorError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item

if TYPE_CHECKING:
    import grpc

    from millrace.protocol.millrace_pb2_grpc import BrokerStub

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

_MOVED = (NotCoordinatorError, CoordinatorNotAvailableError, BrokerUnavailableError, RequestTimedOutError)


class Coordinator:
    """Coordinator of one group. Thread safe."""

    def __init__(
        self, connections: Connections, group_id: str, key_type: pb.CoordinatorType.ValueType = pb.GROUP
    ) -> None:
        self._connections = connections
        self.group_id = group_id
        self._key_type = key_type
        self._lock = threading.Lock()
        self._address: str | None = None

    def address(self, timeout_ms: int | None = None) -> str:
        """Return the coordinator's address, looked up if unknown; raises the broker's error."""
        with self._lock:
            if self._address is not None:
                return self._address
        request = pb.FindCoordinatorRequest(key_type=self._key_type, keys=[self.group_id])
        response = self._connections.call(lambda stub: stub.FindCoordinator, request, timeout_ms=timeout_ms)
        found = response.coordinators[0]
        check_item(found.error)
        with self._lock:
            self._address = broker_address(found.node.host, found.node.port)
            return self._address

    @property
    def is_known(self) -> bool:
        """True if the coordinator's address is known, so that the next call needs no lookup."""
        return self._address is not None

    def forget(self) -> None:
        """Forget the coordinator, so that the next call looks it up again."""
        with self._lock:
            self._address = None

    def notice(self, error: MillraceError) -> None:
        """Forget the coordinator after an error that shows that it has moved or is down."""
        if isinstance(error, _MOVED):
            self.forget()

    def call(
        self,
        method: Callable[[BrokerStub], grpc.UnaryUnaryMultiCallable[Asked, Answer]],
        request: Asked,
        *,
        check: Callable[[Answer], None] = lambda answer: None,
        timeout_ms: int | None = None,
    ) -> Answer:
        """Make an idempotent call to the current coordinator, with retries until it is answered or times out.

        ``check`` raises the errors in a response. Raises the broker's error, a retriable one after
        ``default.api.timeout.ms`` (or ``timeout_ms``), ``BrokerUnavailableError`` if no broker answers.
        """
        limit_ms = self._connections.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = time.monotonic() + limit_ms / 1000
        attempt = 0
        while True:
            left_ms = max(int((deadline - time.monotonic()) * 1000), 1)
            try:
                # One attempt, because a broker that does not answer may no longer be the coordinator.
                answer = self._connections.once(method, request, address=self.address(left_ms), timeout_ms=left_ms)
                check(answer)
                return answer
            except MillraceError as error:
                self.notice(error)
                wait_s = backoff_s(self._connections.config, attempt)
                # A missing topic is not retried.
                may_pass = error.retriable and not isinstance(error, UnknownTopicOrPartitionError)
                if not may_pass or time.monotonic() + wait_s > deadline:
                    raise
            attempt += 1
            self._connections.wait(wait_s)


def check_group_id(group_id: str) -> None:
    """Raise ``InvalidGroupIdError`` if the consumer has no group and needs one."""
    if not group_id:
        raise InvalidGroupIdError("this needs a group, and the consumer has none: set group.id")


def check_topic_errors(topics: Iterable[pb.TopicErrors]) -> None:
    """Raise the first error of an answer's ``TopicErrors``, naming the partition."""
    for topic in topics:
        for partition in topic.partitions:
            check_item(partition.error, f"{topic.name}-{partition.partition}")
