"""What every store must do (ZooKeeper's semantics), run against each that there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.coordination import (
    BadVersionError,
    Check,
    Create,
    Delete,
    EmbeddedStore,
    EventType,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    WatchEvent,
    Write,
    ensure_path,
)
from millrace.errors import InvalidRequestError


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(tmp_path / "nodes" if request.param == "file" else None, now_ms=lambda: 1234)
    yield store
    store.close()


def test_a_created_node_can_be_read_with_its_bookkeeping(store: EmbeddedStore) -> None:
    session = store.connect()
    assert session.create("/a", b"one") == "/a"
    data, stat = session.get("/a")
    assert data == b"one"
    assert (stat.version, stat.children, stat.ephemeral_owner, stat.created_ms) == (0, 0, 0, 1234)


def test_each_write_raises_the_version_and_the_transaction_number(store: EmbeddedStore) -> None:
    session = store.connect()
    session.create("/a")
    first = session.set("/a", b"1")
    second = session.set("/a", b"2", version=1)
    assert (first.version, second.version) == (1, 2)
    assert second.modified_id > first.modified_id > first.created_id


@pytest.mark.parametrize("version", [0, 2, 7])
def test_a_write_or_deletion_with_a_stale_version_is_refused(store: EmbeddedStore, version: int) -> None:
    session = store.connect()
    session.create("/a")
    session.set("/a", b"1")
    with pytest.raises(BadVersionError, match="version 1"):
        session.set("/a", b"2", version=version)
    with pytest.raises(BadVersionError):
        session.delete("/a", version=version)
    assert session.get("/a")[0] == b"1"


def test_one_creator_wins(store: EmbeddedStore) -> None:
    first, second = store.connect(), store.connect()
    first.create("/leader", b"first")
    with pytest.raises(NodeExistsError, match="/leader"):
        second.create("/leader", b"second")
    assert second.get("/leader")[0] == b"first"


def test_a_node_needs_its_parent_and_goes_before_it(store: EmbeddedStore) -> None:
    session = store.connect()
    with pytest.raises(NoNodeError, match="/a"):
        session.create("/a/b")
    session.create("/a")
    session.create("/a/b")
    with pytest.raises(NotEmptyError, match="1 child"):
        session.delete("/a")
    session.delete("/a/b")
    session.delete("/a")
    assert session.exists("/a") is None


def test_reading_what_is_not_there(store: EmbeddedStore) -> None:
    session = store.connect()
    for read in (session.get, session.children):
        with pytest.raises(NoNodeError):
            read("/missing")
    assert session.exists("/missing") is None


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/a/../b", "/a/.", "/a\0b"])
def test_paths_are_absolute_and_normalised(store: EmbeddedStore, path: str) -> None:
    session = store.connect()
    with pytest.raises(InvalidRequestError):
        session.create(path)
    with pytest.raises(InvalidRequestError):
        session.exists(path)


def test_children_are_sorted_names(store: EmbeddedStore) -> None:
    session = store.connect()
    for name in ("b", "c", "a"):
        session.create(f"/{name}")
    assert session.children("/") == ["a", "b", "c"]


def test_sequential_nodes_are_numbered_upwards_also_after_deletions(store: EmbeddedStore) -> None:
    session = store.connect()
    session.create("/queue")
    paths = []
    for _ in range(3):
        paths.append(session.create("/queue/n-", sequential=True))
        session.delete(paths[-1])
    paths.append(session.create("/queue/", sequential=True))
    numbers = [int(path[-10:]) for path in paths]
    assert numbers == sorted(set(numbers))
    assert all(len(path.rsplit("/", 1)[1]) in (10, 12) for path in paths)


def test_ephemeral_nodes_end_with_their_session(store: EmbeddedStore) -> None:
    first, second = store.connect(), store.connect()
    first.create("/mine", ephemeral=True)
    second.create("/other", ephemeral=True)
    first.create("/kept")
    stat = second.exists("/mine")
    assert stat is not None
    assert stat.ephemeral_owner == first.session_id
    first.close()
    assert second.children("/") == ["kept", "other"]


def test_an_ephemeral_node_has_no_children(store: EmbeddedStore) -> None:
    session = store.connect()
    session.create("/mine", ephemeral=True)
    with pytest.raises(NoChildrenForEphemeralsError):
        session.create("/mine/child")


def test_an_expired_session_is_told_and_can_do_nothing_more(store: EmbeddedStore) -> None:
    session, other = store.connect(), store.connect()
    ended: list[str] = []
    events: list[WatchEvent] = []
    session.on_session_end(lambda: ended.append("ended"))
    session.create("/mine", ephemeral=True)
    session.get("/mine", events.append)
    other.get("/mine", events.append)
    store.expire(session.session_id)
    assert ended == ["ended"]
    assert events == [WatchEvent(EventType.DELETED, "/mine")]  # the watch of the other session only
    for call in (lambda: session.get("/"), lambda: session.create("/x"), lambda: session.children("/")):
        with pytest.raises(SessionExpiredError):
            call()
    store.expire(session.session_id)
    assert ended == ["ended"]


def test_a_closed_session_is_not_told_of_its_end(store: EmbeddedStore) -> None:
    session = store.connect()
    session.on_session_end(lambda: pytest.fail("closed, not expired"))
    session.close()
    session.close()


def test_a_data_watch_fires_once_for_the_first_change(store: EmbeddedStore) -> None:
    session = store.connect()
    events: list[WatchEvent] = []
    session.create("/a")
    session.get("/a", events.append)
    session.set("/a", b"1")
    session.set("/a", b"2")
    assert events == [WatchEvent(EventType.CHANGED, "/a")]


def test_an_exists_watch_waits_for_the_creation(store: EmbeddedStore) -> None:
    session = store.connect()
    events: list[WatchEvent] = []
    session.exists("/a", events.append)
    session.create("/b")
    assert events == []
    session.create("/a")
    session.delete("/a")
    assert events == [WatchEvent(EventType.CREATED, "/a")]


def test_a_watch_of_children_fires_for_members_and_not_for_data(store: EmbeddedStore) -> None:
    session = store.connect()
    events: list[WatchEvent] = []
    session.create("/a")
    session.children("/a", events.append)
    session.set("/a", b"1")
    assert events == []
    session.create("/a/b")
    session.create("/a/c")
    session.children("/a", events.append)
    session.set("/a/b", b"1")
    session.delete("/a/b")
    assert events == [WatchEvent(EventType.CHILDREN, "/a")] * 2


def test_a_deleted_node_fires_its_watches_once_for_each_watcher(store: EmbeddedStore) -> None:
    session = store.connect()
    events: list[WatchEvent] = []
    session.create("/a")
    watch = events.append
    session.get("/a", watch)
    session.get("/a", watch)
    session.children("/a", watch)
    session.delete("/a")
    assert events == [WatchEvent(EventType.DELETED, "/a")]


def test_a_failed_read_leaves_no_watch(store: EmbeddedStore) -> None:
    session = store.connect()
    events: list[WatchEvent] = []
    with pytest.raises(NoNodeError):
        session.get("/a", events.append)
    with pytest.raises(NoNodeError):
        session.children("/a", events.append)
    session.create("/a")
    assert events == []


def test_watches_fire_in_the_order_of_changes_also_when_they_change_something(store: EmbeddedStore) -> None:
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
    assert seen == ["/a", "end of a", "/b", "/c"]


def test_a_failing_watch_does_not_keep_others_from_hearing(
    store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    session = store.connect()
    events: list[WatchEvent] = []

    def fail(event: WatchEvent) -> None:
        raise ValueError("no")

    session.get("/", fail)
    session.children("/", fail)
    session.children("/", events.append)
    session.create("/a")
    assert events == [WatchEvent(EventType.CHILDREN, "/")]
    assert "a watch failed" in caplog.text


def test_multi_applies_all_operations(store: EmbeddedStore) -> None:
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
    store: EmbeddedStore, failing: Create | Write | Check | Delete, error: type[Exception]
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
    session.create("/new")  # also the counters are as before


def test_ensure_path_makes_what_is_missing(store: EmbeddedStore) -> None:
    session = store.connect()
    session.create("/a", b"kept")
    ensure_path(session, "/a/b/c")
    ensure_path(session, "/a/b/c")
    assert session.get("/a")[0] == b"kept"
    assert session.children("/a/b") == ["c"]
