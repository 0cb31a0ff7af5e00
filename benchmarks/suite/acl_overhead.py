"""One authorization with 10,000 ACLs, beside one with ten.

Half of the ACLs are literal, half are prefixed with ten lengths. They are for a hundred principals. The times of
decisions are measured in an authorizer alone, as it runs in a broker's event loop. A principal with an ACL and one
without any ask for topics chosen at random.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from millrace.acls import (
    AccessControlEntry,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from millrace_broker.security import AclAuthorizer, AclIndex, KafkaPrincipal

_DECISIONS: Final = 50_000
_PRINCIPALS: Final = 100
_LENGTHS: Final = 10


class _Store:
    """The part of ``AclStore`` that decisions use."""

    def __init__(self, index: AclIndex) -> None:
        self.index = index


class _Request:
    """A request of a principal, as an authorizer sees it."""

    api_name = "Produce"
    listener_name = "SSL"
    client_id = ""
    host = "10.0.0.1"

    def __init__(self, number: int) -> None:
        self.principal = KafkaPrincipal("User", f"client-{number % _PRINCIPALS}")
        self.client_address = self


def _index(acls: int) -> AclIndex:
    changes = {}
    for number in range(acls):
        entry = AccessControlEntry(f"User:client-{number % _PRINCIPALS}", "*", AclOperation.WRITE, AclPermission.ALLOW)
        pattern = ResourcePattern(ResourceType.TOPIC, f"topic-{number}")
        if number % 2:
            name = f"team-{number:06}-".ljust(12 + number % _LENGTHS, "x")
            pattern = ResourcePattern(ResourceType.TOPIC, name, PatternType.PREFIXED)
        changes[pattern] = frozenset((entry,))
    return AclIndex().updated(changes)


def _opened(acls: int) -> Callable[[Context], Any]:
    @contextlib.contextmanager
    def open_side(context: Context) -> Iterator[Measure]:
        store: Any = _Store(_index(acls))
        authorizer = AclAuthorizer(store, super_users=("User:admin",))
        numbers = random.Random(1)
        requests = [_Request(numbers.randrange(_PRINCIPALS)) for _ in range(_DECISIONS)]
        topics = [f"topic-{numbers.randrange(acls)}" for _ in range(_DECISIONS)]

        def measure() -> Sample:
            took_s, allowed = [], 0
            for request, topic in zip(requests, topics, strict=True):
                started = time.perf_counter()
                is_allowed = authorizer.authorize(request, AclOperation.WRITE, ResourceType.TOPIC, topic)
                took_s.append(time.perf_counter() - started)
                allowed += is_allowed
            assert 0 < allowed < _DECISIONS
            return Sample(figure=statistics.median(took_s) * 1e6)

        measure()
        yield measure

    return open_side


_SETTINGS = "one thread, in memory: nothing to fsync; 50,000 decisions for 100 principals"

BENCHMARK = Benchmark(
    name="acl_overhead",
    title="One authorization with 10,000 ACLs, against one with ten (median)",
    unit="µs",
    higher_is_better=False,
    limit=5,
    durability=Durability.NOTHING_WRITTEN,
    ours=Side(what="AclAuthorizer with 10,000 ACLs", settings=_SETTINGS, open=_opened(10_000)),
    peer=Side(what="AclAuthorizer with ten ACLs", settings=_SETTINGS, open=_opened(10)),
)
