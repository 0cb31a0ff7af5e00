"""Tests of ZooKeeper's semantics for every coordination store, a real ZooKeeper included.

An event may arrive a little after the call that caused it. So tests wait for expected events. They check for unwanted
events after a later event has arrived.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from millrace.config.zookeeper import ZooKeeperConfig
from millrace.coordination import (
    BadVersionError,
    Check,
    Coordination,
    Create,
    Delete,
    EmbeddedStore,
    EventType,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OnLoop,
    SessionExpiredError,
    SessionState,
    WatchEvent,
    Write,
    ensure_path,
)
from millrace.coordination.zookeeper import ZooKeeperCoordination, ZooKeeperStore
from millrace.errors import InvalidRequestError

from .waiting import STALL_S, eventually
from .zookeeper_server import CONNECTION_MS, SESSION_MS, ZooKeeperServer, expire


class Store(Protocol):
    """A store under test."""

    def connect(self) -> Coordination: ...
    def expire(self, session: Coordination) -> None: ...


class _Embedded:
    def __init__(self, path: Path | None) -> None:
        self.store = EmbeddedStore(path)
        self.connect = self.store.connect
        self.close = self.store.close

    def expire(self, session: Coordination) -> None:
        self.store.expire(session.session_id)


class _ZooKeeper:
    def __init__(self, server: ZooKeeperServer) -> None:
        self.store = ZooKeeperStore(
            ZooKeeperConfig.load(
                {
                    "zookeeper.connect": f"{server.address}/tests-{uuid.uuid4().hex}",
                    "zookeeper.session.timeout.ms": SESSION_MS,
                    "zookeeper.connection.timeout.ms": CONNECTION_MS,
                }
            )
        )
        self.connect = self.store.connect
        self.close = self.store.close

    def expire(self, session: Coordination) -> None:
        assert isinstance(session, ZooKeeperCoordination)
        expire(session)


@pytest.fixture(params=["memory", "file", "zookeeper"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store: _Embedded | _ZooKeeper
    if request.param == "zookeeper":
        store = _ZooKeeper(request.getfixturevalue("zookeeper_server"))
    else:
        store = _Embedded(tmp_path / "nodes" if request.param == "file" else None)
    yield store
    store.close()


def settle_events(session: Coordination) -> None:
    """Wait until all events of this session's changes so far have arrived."""
    told: list[WatchEvent] = []
    path = f"/settled-{uuid.uuid4().hex}"
    session.exists(path, told.append)
    session.create(path)
    eventually(lambda: told)
    session.delete(path)


def test_a_created_node_can_be_read_with_its_bookkeeping(store: Store) -> None:
    session = store.connect()
    assert session.create("/a", b"one") == "/a"
    data, stat = session.get("/a")
    assert data == b"one"
    assert (stat.version, stat.children, stat.children_version, stat.ephemeral_owner) == (0, 0, 0, 0)
    assert abs(stat.created_ms - time.time() * 1000) < 60_000
    assert (stat.modified_id, stat.modified_ms) == (stat.created_id, stat.created_ms)


def test_each_write_raises_the_version_and_the_transaction_number(store: Store) -> None:
    session = store.connect()
    session.create("/a")
    first = session.set("/a", b"1")
    second = session.set("/a", b"2", version=1)
    assert (first.version, second.version) == (1, 2)
    assert second.modified_id > first.modified_id > first.created_id


@pytest.mark.parametrize("version", [0, 2, 7])
def test_a_write_or_deletion_with_a_stale_version_is_refused(store: Store, version: int) -> None:
    session = store.connect()
    session.create("/a")
    session.set("/a", b"1")
    with pytest.raises(BadVersionError, match=r"^/a has "):
        session.set("/a", b"2", version=version)
    with pytest.raises(BadVersionError, match=r"^/a has "):
        session.delete("/a", version=version)
    assert session.get("/a")[0] == b"1"


def test_one_creator_wins(store: Store) -> None:
    first, second = store.connect(), store.connect()
    first.create("/leader", b"first")
    with pytest.raises(NodeExistsError, match="/leader"):
        second.create("/leader", b"second")
    assert second.get("/leader")[0] == b"first"


def test_a_node_needs_its_parent_and_goes_before_it(store: Store) -> None:
    session = store.connect()
    with pytest.raises(NoNodeError, match="/a"):
        session.create("/a/b")
    session.create("/a")
    session.create("/a/b")
    with pytest.raises(NotEmptyError, match=r"^/a has .*children"):
        session.delete("/a")
    session.delete("/a/b")
    session.delete("/a")
    assert session.exists("/a") is None


def test_reading_a_missing_node_raises_no_node_with_its_path(store: Store) -> None:
    session = store.connect()
    for read in (session.get, session.children):
        with pytest.raises(NoNodeError, match=r"^/missing "):
            read("/missing")
    assert session.exists("/missing") is None


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/a/../b", "/a/.", "/a\0b"])
def test_paths_are_absolute_and_normalised(store: Store, path: str) -> None:
    session = store.connect()
    with pytest.raises(InvalidRequestError):
        session.create(path)
    with pytest.raises(InvalidRequestError):
        session.exists(path)


def test_many_nodes_are_read_at_once(store: Store) -> None:
    session = store.connect()
    session.multi([Create(f"/{number}", b"%d" % number) for number in range(600)])
    found = session.get_many([f"/{number}" for number in range(599, -2, -1)])
    assert [each[0] for each in found if each] == [b"%d" % number for number in range(599, -1, -1)]
    assert found[-1] is None
    assert found[0] == session.get("/599")
    assert session.get_many([]) == []
    with pytest.raises(InvalidRequestError):
        session.get_many(["/0", "0"])


def test_children_are_sorted_names(store: Store) -> None:
    session = store.connect()
    for name in ("b", "c", "a"):
        session.create(f"/{name}")
    assert session.children("/") == ["a", "b", "c"]


def test_sequential_nodes_are_numbered_upwards_also_after_deletions(store: Store) -> None:
    session = store.connect()
    session.create("/queue")
    paths = []
    for _ in range(3):
        paths.append(session.create("/queue/n-", sequential=True))
        session.delete(paths[-1])
    paths.append(session.create("/queue/", sequential=True))
    session.create("/queue/counts-as-well")
    paths.append(session.create("/queue/other-", ephemeral=True, sequential=True))
    assert paths == [
        "/queue/n-0000000000",
        "/queue/n-0000000001",
        "/queue/n-0000000002",
        "/queue/0000000003",
        "/queue/other-0000000005",
    ]


def test_ephemeral_nodes_end_with_their_session(store: Store) -> None:
    first, second = store.connect(), store.connect()
    first.create("/mine", ephemeral=True)
    second.create("/other", ephemeral=True)
    first.create("/kept")
    stat = second.exists("/mine")
    assert stat is not None
    assert stat.ephemeral_owner == first.session_id
    first.close()
    assert second.children("/") == ["kept", "other"]


def test_an_ephemeral_node_has_no_children(store: Store) -> None:
    session = store.connect()
    session.create("/mine", ephemeral=True)
    with pytest.raises(NoChildrenForEphemeralsError):
        session.create("/mine/child")


def test_an_expired_session_is_notified_and_refuses_all_calls(store: Store) -> None:
    session, other = store.connect(), store.connect()
    ended: list[str] = []
    events: list[WatchEvent] = []
    session.on_session_end(lambda: ended.append("ended"))
    session.create("/mine", ephemeral=True)
    session.get("/mine", events.append)
    other.get("/mine", events.append)
    store.expire(session)
    eventually(lambda: ended)
    assert session.state is SessionState.EXPIRED
    eventually(lambda: events)
    assert other.exists("/mine") is None
    assert events == [WatchEvent(EventType.DELETED, "/mine")]  # only the other session's watch
    for call in (lambda: session.get("/"), lambda: session.create("/x"), lambda: session.children("/")):
        with pytest.raises(SessionExpiredError):
            call()
    session.on_session_end(lambda: ended.append("told late"))
    eventually(lambda: len(ended) == 2)
    session.close()
    assert (ended, session.state) == (["ended", "told late"], SessionState.EXPIRED)


def test_a_closed_session_gets_no_notice_of_its_end(store: Store) -> None:
    session = store.connect()
    session.on_session_end(lambda: pytest.fail("closed, not expired"))
    session.close()
    session.close()


def test_a_data_watch_fires_once_for_the_first_change(store: Store) -> None:
    session = store.connect()
    events: list[WatchEvent] = []
    session.create("/a")
    session.get("/a", events.append)
    session.set("/a", b"1")
    session.set("/a", b"2")
    settle_events(session)
    assert events == [WatchEvent(EventType.CHANGED, "/a")]


def test_an_exists_watch_waits_for_the_creation(store: Store) -> None:
    session = store.connect()
    events: list[WatchEvent] = []
    session.exists("/a", events.append)
    session.create("/b")
    settle_events(session)
    assert events == []
    session.create("/a")
    session.delete("/a")
    settle_events(session)
    assert events == [WatchEvent(EventType.CREATED, "/a")]


def test_a_watch_of_children_fires_for_members_and_not_for_data(store: Store) -> None:
    session = store.connect()
    events: list[WatchEvent] = []
    session.create("/a")
    session.children("/a", events.append)
    session.set("/a", b"1")
    settle_events(session)
    assert events == []
    session.create("/a/b")
    session.create("/a/c")
    session.children("/a", events.append)
    session.set("/a/b", b"1")
    session.delete("/a/b")
    settle_events(session)
    assert events == [WatchEvent(EventType.CHILDREN, "/a")] * 2


def test_a_deleted_node_fires_its_watches_once_for_each_watcher(store: Store) -> None:
    session = store.connect()
    events: list[WatchEvent] = []
    session.create("/a")
    watch = events.append
    session.get("/a", watch)
    session.get("/a", watch)
    session.children("/a", watch)
    session.delete("/a")
    settle_events(session)
    assert events == [WatchEvent(EventType.DELETED, "/a")]


def test_a_failed_read_leaves_no_watch(store: Store) -> None:
    session = store.connect()
    events: list[WatchEvent] = []
    with pytest.raises(NoNodeError):
        session.get("/a", events.append)
    with pytest.raises(NoNodeError):
        session.children("/a", events.append)
    session.create("/a")
    settle_events(session)
    assert events == []


def test_watches_fire_in_the_order_of_changes_also_when_they_change_something(store: Store) -> None:
    session = store.connect()
    seen: list[str] = []
    for name in ("a", "b", "c"):
        session.create(f"/{name}")

    def react(event: WatchEvent) -> None:
        seen.append(event.path)
        if event.path == "/a":
            session.set("/c", b"because of a")
            seen.append("end of a")

    for name in ("a", "b", "c"):
        session.get(f"/{name}", react)
    session.multi([Write("/a", b"1"), Write("/b", b"1")])
    eventually(lambda: len(seen) == 4)
    assert seen == ["/a", "end of a", "/b", "/c"]


def test_a_failing_watch_does_not_keep_others_from_hearing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    session = store.connect()
    events: list[WatchEvent] = []

    def fail(event: WatchEvent) -> None:
        raise ValueError("no")

    session.get("/", fail)
    session.children("/", fail)
    session.children("/", events.append)
    session.create("/a")
    settle_events(session)
    assert events == [WatchEvent(EventType.CHILDREN, "/")]
    assert "a watch failed" in caplog.text


def test_multi_applies_all_operations(store: Store) -> None:
    session = store.connect()
    session.create("/gone")
    results = session.multi(
        [Create("/a", b"1"), Create("/a/n-", sequential=True), Write("/a", b"2"), Check("/a", 1), Delete("/gone")]
    )
    assert results[:2] == ["/a", "/a/n-0000000000"]
    assert results[3:] == [None, None]
    assert session.get("/a")[0] == b"2"
    assert session.children("/") == ["a"]


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (Create("/kept"), NodeExistsError),
        (Create("/x/y"), NoNodeError),
        (Write("/missing", b""), NoNodeError),
        (Write("/kept", b"", 9), BadVersionError),
        (Check("/kept", 9), BadVersionError),
        (Delete("/full"), NotEmptyError),
    ],
)
def test_multi_applies_nothing_when_one_operation_fails(
    store: Store, failing: Create | Write | Check | Delete, error: type[Exception]
) -> None:
    session = store.connect()
    for path in ("/kept", "/full", "/full/child", "/gone"):
        session.create(path, b"before")
    events: list[WatchEvent] = []
    before = session.children("/", events.append), session.get("/kept"), session.get("/")
    with pytest.raises(error):
        session.multi([Create("/new"), Create("/new/child"), Write("/kept", b"after"), Delete("/gone"), failing])
    assert (session.children("/"), session.get("/kept"), session.get("/")) == before
    assert events == []
    session.create("/new")  # the counters are unchanged too


def test_ensure_path_makes_what_is_missing(store: Store) -> None:
    session = store.connect()
    session.create("/a", b"kept")
    ensure_path(session, "/a/b/c")
    ensure_path(session, "/a/b/c")
    assert session.get("/a")[0] == b"kept"
    assert session.children("/a/b") == ["c"]


@pytest.mark.parametrize(
    "operation", [Write("/other/x", b"", 3), Check("/other/x", 0), Delete("/other/x"), Create("/other/x")]
)
def test_an_error_of_a_transaction_names_the_node_at_fault(
    store: Store, operation: Create | Write | Check | Delete
) -> None:
    session = store.connect()
    session.create("/first")
    with pytest.raises(NoNodeError, match="/other"):
        session.multi([Write("/first", b"1"), operation, Create("/last")])


def test_a_controller_is_elected_only_under_the_epoch_that_was_read(store: Store) -> None:
    # Kafka's controller does it in this way: another broker that became controller meanwhile has raised the epoch.
    first, second = store.connect(), store.connect()
    first.create("/controller_epoch", b"1")
    read = second.get("/controller_epoch")[1].version
    first.multi([Create("/controller", b"first", ephemeral=True), Write("/controller_epoch", b"2", read)])
    first.close()
    with pytest.raises(BadVersionError, match=r"^/controller_epoch has "):
        second.multi([Create("/controller", b"second", ephemeral=True), Write("/controller_epoch", b"2", read)])
    assert second.exists("/controller") is None
    fenced = [Check("/controller_epoch", read), Create("/topic")]
    with pytest.raises(BadVersionError, match=r"^/controller_epoch has "):
        second.multi(fenced)
    assert second.exists("/topic") is None


def test_the_root_node_cannot_be_deleted(store: Store) -> None:
    session = store.connect()
    with pytest.raises(InvalidRequestError, match="root"):
        session.delete("/")
    assert session.multi([]) == []


def test_a_new_session_takes_nothing_over_from_an_expired_one(store: Store) -> None:
    first = store.connect()
    ended: list[str] = []
    first.on_session_end(lambda: ended.append("ended"))
    first.create("/mine", b"first", ephemeral=True)
    store.expire(first)
    eventually(lambda: ended)
    second = store.connect()
    assert second.session_id != first.session_id
    second.create("/mine", b"second", ephemeral=True)
    with pytest.raises(SessionExpiredError):
        first.set("/mine", b"by the old one")
    with pytest.raises(SessionExpiredError):
        first.multi([Delete("/mine")])
    first.close()
    data, stat = second.get("/mine")
    assert (data, stat.ephemeral_owner) == (b"second", second.session_id)


def test_listeners_get_session_states(store: Store) -> None:
    session = store.connect()
    told: list[SessionState] = []
    session.on_state(told.append)
    assert session.state is SessionState.CONNECTED
    session.close()
    eventually(lambda: told)
    assert (told, session.state) == ([SessionState.CLOSED], SessionState.CLOSED)


def test_watches_can_be_called_on_an_event_loop_in_order(store: Store) -> None:
    session = store.connect()
    for name in "abc":
        session.create(f"/{name}")

    async def watch() -> list[str]:
        loop = asyncio.get_running_loop()
        seen: asyncio.Queue[str] = asyncio.Queue()
        on_loop = [OnLoop(loop, lambda event: seen.put_nowait(event.path)) for _ in range(2)]

        def work() -> None:
            for name in "abc":
                session.get(f"/{name}", on_loop[0])
            session.get("/a", OnLoop(loop, on_loop[0].call))  # the same watch
            session.multi([Write(f"/{name}", b"1") for name in "bac"])

        await loop.run_in_executor(None, work)
        return [await asyncio.wait_for(seen.get(), STALL_S) for _ in range(3)]

    assert asyncio.run(watch()) == ["/b", "/a", "/c"]


def test_a_session_reads_what_another_wrote_after_it_caught_up(store: Store) -> None:
    first, second = store.connect(), store.connect()
    first.create("/a", b"1")
    second.sync()
    assert second.get("/a")[0] == b"1"
