"""One call of Kafka, with its versions, its handler, and its bytes.

Kafka's classes are ``RequestContext`` and ``AbstractResponse``. A request that cannot be read closes its connection, as
in Kafka, because the protocol has no answer to it. Any other error of a request becomes the call's own response.
A request that wants no response, which is Produce with ``acks=0``, closes its connection if it fails, as in Kafka. Its
client then looks for the leaders again.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

from millrace.errors import InvalidRequestError, MillraceError, UnsupportedVersionError
from millrace.kafka_protocol.calls.table import NAMES, ApiKey
from millrace.kafka_protocol.lookup import (
    request_class,
    request_header_version,
    response_header_version,
)
from millrace.kafka_protocol.message import Message
from millrace.kafka_protocol.wire import Buffer, WireError, read_varint
from millrace.protocol.frames import Head
from millrace_broker.api import RequestContext, known_error
from millrace_broker.api.common.throttling import settle
from millrace_broker.broker import Broker
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.kafka_api.state import KafkaState

_logger = logging.getLogger(__name__)

_RESPONSE: Final = struct.Struct(">ii")
_CORRELATION_BYTES: Final = 4
_NO_TAGGED_FIELDS: Final = b"\0"
_THROTTLE: Final = "throttle_time_ms"
ELEMENTS_MAX: Final = 100_000
"""Array elements of a request, such as partitions. A request of that many takes the event loop 0.1 to 0.3 s to read."""


class KafkaRequest(NamedTuple):
    """The broker and the context of a call, beside its message."""

    broker: Broker
    state: KafkaState
    version: int
    context: RequestContext

    def refuse_mutations(self, version_min: int) -> None:
        """Refuse mutations beyond the client's quota, if its version knows the error for it."""
        if self.context.usage is not None:
            self.context.usage.is_strict = self.version >= version_min


Handler = Callable[[Any, KafkaRequest], Awaitable[Message | None]]
"""Handler of a call. It returns no response to a request that wants none."""
Refusal = Callable[[Any, int, int], Message | None]
"""Maker of the response to a request that failed as a whole, from the request, its version and an error code."""


@dataclass(frozen=True, slots=True)
class KafkaCall:
    """One call of Kafka, with the versions that this broker answers.

    The module of the call's name in this package handles the call, and is imported at the call's first use. All these
    modules and their messages would take 0.1 s of a broker's start and 3 MB, and a broker uses few of them.
    """

    key: ApiKey
    state: KafkaState
    versions: range
    """Versions of requests that are answered."""
    waits_for_place: bool = True

    @property
    def name(self) -> str:
        """Kafka's name of the call."""
        return NAMES[self.key]

    @property
    def handle(self) -> Handler:
        """Handler of the call."""
        return _handler(self.key)[0]

    @property
    def refuse(self) -> Refusal:
        """Maker of the response to a request that failed as a whole."""
        return _handler(self.key)[1]

    def begin(
        self, broker: Broker, head: Head, content: Buffer, position: int, context: RequestContext
    ) -> tuple[Coroutine[Any, Any, Sequence[Buffer]], int]:
        """Read a request. Return the work that answers it; Kafka's requests have no deadline.

        Raises ``UnsupportedVersionError``, ``InvalidRequestError``, ``MalformedMessageError``.
        """
        version = head.api_version
        if version not in self.versions:
            if self.key is not ApiKey.API_VERSIONS:
                raise UnsupportedVersionError(
                    f"{self.name} of version {version}: this broker has {self.versions[0]} to {self.versions[-1]}"
                )
            return self._refused(head), 0
        if not isinstance(content, bytearray):
            content = bytes(content)  # a part of the listener's buffer; records are views of it
        if request_header_version(self.key, version) >= 2:
            position = _skip_tagged_fields(content, position)
        message, _ = request_class(self.key).decode_from(memoryview(content), version, position, ELEMENTS_MAX)
        return self._answer(message, KafkaRequest(broker, self.state, version, context), head), 0

    async def _answer(self, message: Message, request: KafkaRequest, head: Head) -> Sequence[Buffer]:
        """Answer a request. Raises the error of one that wants no response, which closes its connection."""
        failure: MillraceError | None = None
        try:
            response = await self.handle(message, request)
        except Exception as error:  # noqa: BLE001 - every error becomes the call's response; unexpected ones are logged
            failure = known_error(error)
            _logger.debug("%s: %s", request.context, failure.message)
            response = _explained(self.refuse(message, request.version, code_of(failure)), failure.message)
        if request.context.usage is not None:
            response = _throttled(response, request.context)
        if failure is not None and response is None:
            raise failure from None
        return () if response is None else self._written(head, response, request.version)

    async def _refused(self, head: Head) -> Sequence[Buffer]:
        """Answer ApiVersions of an unknown version: version 0 with the known versions (KIP-511)."""
        response = self.refuse(None, 0, UnsupportedVersionError.code)
        assert response is not None
        return self._written(head, response, 0)

    def _written(self, head: Head, response: Message, version: int) -> Sequence[Buffer]:
        parts = response.encode_parts(version)
        tagged = _NO_TAGGED_FIELDS if response_header_version(self.key, version) else b""
        size = _CORRELATION_BYTES + len(tagged) + sum(map(len, parts))
        return [_RESPONSE.pack(size, head.correlation_id) + tagged, *parts]

    def refusal(self, head: Head, error: MillraceError) -> None:
        """Return no response to a request that cannot be read, so that its connection is closed."""
        return


@cache
def _handler(key: ApiKey) -> tuple[Handler, Refusal]:
    module = import_module(f"{__package__}.{key.name.lower()}")
    return module.handle, module.refuse


def _explained(response: Message | None, text: str) -> Message | None:
    """Return a response with the text of its error, if it has one error for the whole request."""
    present: object = getattr(response, "error_message", text)
    if response is None or present:
        return response
    changed: Any = replace(response)  # the class of each call declares the field
    changed.error_message = text
    return changed  # type: ignore[no-any-return]


def _throttled(response: Message | None, context: RequestContext) -> Message | None:
    """Count a call, and return its response with ``throttle_time_ms``, if it has this field."""
    throttle_ms = settle(response, context)
    if throttle_ms and response is not None and any(each.name == _THROTTLE for each in response.FIELDS):
        changed: Any = replace(response)  # the class of each call declares the field
        changed.throttle_time_ms = throttle_ms
        return changed  # type: ignore[no-any-return]
    return response


def _skip_tagged_fields(content: Buffer, position: int) -> int:
    """Return the position after the tagged fields at the end of a request header. Raises ``InvalidRequestError``."""
    try:
        count, position = read_varint(content, position)
        for _ in range(count):
            _, position = read_varint(content, position)
            size, position = read_varint(content, position)
            position += size
    except (IndexError, WireError) as error:
        raise InvalidRequestError(f"a request header cannot be read: {error}") from None
    if position > len(content):
        raise InvalidRequestError(f"a request header ends at {position}, its request at {len(content)}")
    return position
