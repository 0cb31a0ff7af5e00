"""Tests of notices of changed configurations.

Every broker handles each notice once and in order, also across sessions.
"""

from __future__ import annotations

import pytest

from millrace.coordination import ConnectionLossError, EmbeddedStore, WatchEvent, ensure_path, paths
from millrace.errors import StorageError
from millrace_broker.cluster.notifications import config_notifications
from millrace_broker.metadata.config_notices import notice

MINUTE_MS = 60_000


class Broker:
    def __init__(self, store: EmbeddedStore) -> None:
        self.session = store.connect()
        ensure_path(self.session, paths.CONFIG_CHANGES)
        self.heard: list[str] = []
        self.events: list[WatchEvent] = []
        self.notifications = config_notifications()
        self.notifications.skip(self.session)

    def hear(self, entity: str) -> None:
        self.heard.append(entity)
        if entity == "topics/bad":
            raise StorageError("unreadable")
        if self.heard == ["topics/lost"]:
            raise ConnectionLossError("ZooKeeper is out of reach", maybe_applied=False)

    def take(self) -> None:
        self.notifications.take(self.session, self.events.append, self.hear)


def test_every_broker_hears_what_comes_after_its_start_once_and_in_order() -> None:
    store = EmbeddedStore(now_ms=lambda: 0)
    first = Broker(store)
    first.session.multi([notice("topics/before")])
    second = Broker(store)
    first.session.multi([notice("topics/bad")])
    second.session.multi([notice("groups/61")])
    for _ in range(2):
        first.take()
        second.take()
    assert first.heard == ["topics/before", "topics/bad", "groups/61"]
    assert second.heard == ["topics/bad", "groups/61"]


def test_a_watch_reports_the_next_notice_and_a_new_session_the_missed_ones() -> None:
    store = EmbeddedStore(now_ms=lambda: 0)
    broker, other = Broker(store), Broker(store)
    broker.take()
    other.session.multi([notice("topics/a")])
    assert len(broker.events) == 1
    store.expire(broker.session.session_id)
    other.session.multi([notice("topics/b")])
    broker.session = store.connect()
    broker.take()
    assert broker.heard == ["topics/a", "topics/b"]


def test_a_notice_is_new_until_its_change_could_be_read() -> None:
    # Otherwise an ACL that denies would not reach a broker that loses its connection at this moment.
    store = EmbeddedStore(now_ms=lambda: 0)
    broker = Broker(store)
    broker.session.multi([notice("topics/lost"), notice("topics/next")])
    with pytest.raises(ConnectionLossError):
        broker.take()
    assert broker.heard == ["topics/lost"]
    broker.take()
    assert broker.heard == ["topics/lost", "topics/lost", "topics/next"]


def test_notices_much_older_than_the_newest_are_removed_by_the_clock_of_zookeeper() -> None:
    now = [0]
    store = EmbeddedStore(now_ms=lambda: now[0])
    broker, late = Broker(store), Broker(store)
    for minute in (0, 14, 16):
        now[0] = minute * MINUTE_MS
        broker.session.multi([notice(f"topics/{minute}")])
        broker.take()
    assert broker.heard == ["topics/0", "topics/14", "topics/16"]
    late.take()
    assert late.heard == ["topics/14", "topics/16"]
