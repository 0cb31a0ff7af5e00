"""A broker with an authorizer and the ACLs of the access matrix.

The tests call its handlers with principals of their choice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from millrace.acls import (
    EVERYONE,
    AccessControlEntry,
    AclBinding,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import FetchAnswer
from millrace_broker.api import HANDLERS, STREAM_HANDLERS, ClientAddress, RequestContext
from millrace_broker.quotas import class_of
from millrace_broker.security import AclAuthorizer, AclIndex, KafkaPrincipal
from millrace_broker.security.acl_index import Entries
from millrace_broker.testing import EmbeddedBroker

from .access_cases import ADMIN, ALICE, ANONYMOUS, ANY, MALLORY, Need
from .consumer_groups import QUICK_GROUPS
from .waiting import AN_HOUR_MS, STALL_S

OPTIONS = {
    **QUICK_GROUPS,
    "authorizer.class.name": "millrace_broker.security.AclAuthorizer",
    "super.users": "User:admin; User:broker",
    "auto.create.topics.enable": "true",
}


HOST = "10.0.0.1"
"""Host of all clients."""


class Secured:
    """A broker with an authorizer for direct calls of its handlers.

    The handlers are called as a listener calls them.
    """

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker.server.broker
        self._loop = broker._loop
        authorizer = self.broker.authorizer
        assert isinstance(authorizer, AclAuthorizer)
        self._store = authorizer._store

    def allow(self, *bindings: AclBinding) -> None:
        """Let these be all ACLs."""
        changes: dict[ResourcePattern, Entries] = {}
        for pattern, entry in bindings:
            changes[pattern] = changes.get(pattern, frozenset()) | {entry}
        self._store.index = AclIndex().updated(changes)

    def outcome(self, call: str, request: Any, principal: KafkaPrincipal) -> Any:
        """Return the response of a handler, or the error of the whole request."""

        async def handle(context: RequestContext) -> Any:
            if call in STREAM_HANDLERS:
                return [each async for each in STREAM_HANDLERS[call](self.broker, request, context)]
            return await HANDLERS[call](self.broker, request, context)

        return self.run(call, principal, handle)

    def by_admin(self, call: str, request: Any) -> Any:
        """Return the outcome for a super user."""
        return self.outcome(call, request, ADMIN)

    def create_orders(self) -> None:
        """Create the topic that most calls ask for."""
        orders = pb.NewTopic(name="orders", num_partitions=1, replication_factor=1)
        request = pb.CreateTopicsRequest(topics=[orders], timeout_ms=AN_HOUR_MS)
        assert not codes(self.by_admin("CreateTopics", request))

    def run(self, call: str, principal: KafkaPrincipal, handle: Callable[[RequestContext], Awaitable[Any]]) -> Any:
        """Return the result of a handler with the context of a principal, or its error."""

        async def run() -> Any:
            admitted = self.broker.admission.begin("peer", class_of(call))
            address = ClientAddress(HOST, 1)
            context = RequestContext(call, "PLAINTEXT", principal, "", address, admitted.response_lease)
            try:
                return await handle(context)
            except MillraceError as error:
                return error
            finally:
                admitted.end()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(STALL_S)


def codes(outcome: Any) -> set[int]:
    """Return all error codes in an outcome."""
    if isinstance(outcome, MillraceError):
        return {outcome.code}
    if isinstance(outcome, list):
        return {code for each in outcome for code in codes(each)}
    if isinstance(outcome, FetchAnswer):
        return {code for each in outcome.topics for part in each.partitions for code in codes(part.result)}
    if isinstance(outcome, pb.Error):
        return {outcome.code}
    found: set[int] = set()
    for descriptor, value in outcome.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for each in value if hasattr(value, "__len__") else [value]:
            found |= codes(each)
    return found


def acl(
    need: Need,
    *,
    principal: str = "User:alice",
    host: str = "*",
    permission: AclPermission = AclPermission.ALLOW,
    pattern_type: PatternType = PatternType.LITERAL,
    name: str | None = None,
) -> AclBinding:
    operation, kind, own = need
    pattern = ResourcePattern(kind, own if name is None else name, pattern_type)
    return AclBinding(pattern, AccessControlEntry(principal, host, operation, permission))


def sufficient(way: Sequence[Need]) -> Iterator[list[AclBinding]]:
    """Yield lists of ACLs, each of which is enough for the needs of ``User:alice`` at ``HOST``."""
    yield [acl(need) for need in way]
    yield [acl(need, host=HOST) for need in way]
    yield [acl(need, name=need[2][:3], pattern_type=PatternType.PREFIXED) for need in way]
    yield [acl(need, name="*" if need[1] is not ResourceType.CLUSTER else None) for need in way]
    yield [acl(need, principal=EVERYONE) for need in way]
    yield [acl((AclOperation.ALL, *need[1:])) for need in way]


def insufficient(way: Sequence[Need]) -> Iterator[tuple[str, KafkaPrincipal, list[AclBinding]]]:
    """Yield principals with ACLs that are not enough, each with a name."""
    own = [acl(need) for need in way]
    yield "no identity", ANONYMOUS, own
    yield "wrong identity", MALLORY, own
    yield "right identity without ACLs", ALICE, []
    yield "another host", ALICE, [acl(need, host="10.0.0.2") for need in way]
    yield "another resource", ALICE, [acl(need, name=f"{need[2]}-other") for need in way if need[2] != ANY]
    longer = [acl(need, name=f"{need[2]}-", pattern_type=PatternType.PREFIXED) for need in way if need[2] != ANY]
    yield "a longer prefix", ALICE, longer
    for need in way:
        yield f"all but {need}", ALICE, [acl(each) for each in way if each != need]
        for denial in (
            acl(need, permission=AclPermission.DENY),
            acl(need, permission=AclPermission.DENY, host=HOST),
            acl(need, permission=AclPermission.DENY, principal=EVERYONE),
            acl(need, permission=AclPermission.DENY, name=need[2][:2], pattern_type=PatternType.PREFIXED),
        ):
            yield f"denied by {denial}", ALICE, [*own, denial]
