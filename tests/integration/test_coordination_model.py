"""Model test of the embedded store against a real ZooKeeper.

Both give equal results for any operations, watches included.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from millrace.config.zookeeper import ZooKeeperConfig
from millrace.coordination import (
    ANY_VERSION,
    Check,
    Coordination,
    Create,
    Delete,
    EmbeddedStore,
    NodeStat,
    Operation,
    WatchEvent,
    Write,
)
from millrace.coordination.interface import CoordinationError
from millrace.coordination.zookeeper import ZooKeeperStore
from millrace.errors import InvalidRequestError

from .waiting import eventually
from .zookeeper_server import ZooKeeperServer

_PATHS = st.sampled_from(["/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/"])
_VERSIONS = st.sampled_from([ANY_VERSION, 0, 1, 2])
_DATA = st.binary(max_size=2)
_OPERATIONS = st.one_of(
    st.builds(Create, _PATHS, _DATA, st.booleans(), st.booleans()),
    st.builds(Write, _PATHS, _DATA, _VERSIONS),
    st.builds(Delete, _PATHS, _VERSIONS),
    st.builds(Check, _PATHS, _VERSIONS),
)
_WHO = st.integers(0, 1)


class _Side:
    """One store with two sessions and the events of their watches.

    The sessions have names for the comparison.
    """

    def __init__(self, store: EmbeddedStore | ZooKeeperStore) -> None:
        self.store = store
        self.sessions: list[Coordination] = [store.connect(), store.connect()]
        self.observer = store.connect()
        self.events: list[list[WatchEvent]] = [[], []]
        self._marks = 0

    def outcome(self, who: int, call: Callable[[Coordination], Any]) -> Any:
        try:
            result = call(self.sessions[who])
        except (CoordinationError, InvalidRequestError) as error:
            return type(error).__name__
        return (
            [self._comparable(each) for each in result]
            if isinstance(result, list | tuple)
            else self._comparable(result)
        )

    def watch(self, who: int, kind: str, path: str) -> Any:
        return self.outcome(who, lambda session: getattr(session, kind)(path, self.events[who].append))

    def reopen(self, who: int) -> None:
        self.sessions[who].close()
        self.sessions[who] = self.store.connect()

    def settle(self) -> None:
        """Wait until the events of all fired watches have arrived, by waiting for a later event of the same session."""
        for session in self.sessions:
            self._marks += 1
            told: list[WatchEvent] = []
            path = f"/mark-{self._marks}"
            session.exists(path, told.append)
            self.observer.create(path)
            eventually(lambda told=told: told)  # type: ignore[misc]
            self.observer.delete(path)

    def tree(self, path: str = "/") -> dict[str, Any]:
        data, stat = self.observer.get(path)
        found = {} if path == "/" else {path: (data, self._comparable(stat))}
        for name in self.observer.children(path):
            found |= self.tree(f"{path.rstrip('/')}/{name}")
        return found

    def _comparable(self, value: Any) -> Any:
        if not isinstance(value, NodeStat):
            return value
        owners = [session.session_id for session in self.sessions]
        owner = owners.index(value.ephemeral_owner) if value.ephemeral_owner else None
        return value.version, value.children_version, value.children, owner, value.created_id == value.modified_id


class _EmbeddedIsZooKeeper(RuleBasedStateMachine):
    server: ZooKeeperServer

    @initialize()
    def connect(self) -> None:
        address = f"{self.server.address}/models-{uuid.uuid4().hex}"
        real = ZooKeeperStore(ZooKeeperConfig.load({"zookeeper.connect": address}))
        self.sides = [_Side(EmbeddedStore()), _Side(real)]

    def both(self, do: Callable[[_Side], Any]) -> None:
        ours, real = map(do, self.sides)
        assert ours == real

    @rule(who=_WHO, operations=st.lists(_OPERATIONS, min_size=1, max_size=4))
    def change(self, who: int, operations: list[Operation]) -> None:
        self.both(lambda side: side.outcome(who, lambda session: session.multi(operations)))

    @rule(who=_WHO, kind=st.sampled_from(["get", "exists", "children"]), path=_PATHS)
    def watch(self, who: int, kind: str, path: str) -> None:
        self.both(lambda side: side.watch(who, kind, path))

    @rule(who=_WHO)
    def reopen(self, who: int) -> None:
        for side in self.sides:
            side.settle()
            side.reopen(who)
            side.settle()
        # ZooKeeper does not define the order in which a session's ephemeral nodes are deleted.
        self.both(lambda side: [sorted(map(repr, events)) for events in side.events])
        for side in self.sides:
            for events in side.events:
                events.clear()

    @invariant()
    def same(self) -> None:
        if hasattr(self, "sides"):
            for side in self.sides:
                side.settle()
            self.both(lambda side: side.events)
            self.both(lambda side: side.tree())

    def teardown(self) -> None:
        for side in getattr(self, "sides", ()):
            side.store.close()


def test_the_embedded_store_does_what_zookeeper_does(zookeeper_server: ZooKeeperServer) -> None:
    _EmbeddedIsZooKeeper.server = zookeeper_server
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        _EmbeddedIsZooKeeper, settings=settings(max_examples=15, stateful_step_count=15, deadline=None)
    )
