"""Tests of the view of coordination that lasts over several sessions."""

from __future__ import annotations

import threading

import pytest

from millrace.coordination import EmbeddedStore, SessionExpiredError
from millrace_broker.cluster.session import RenewedCoordination


def test_reads_wait_for_the_next_session_and_writes_do_not() -> None:
    store = EmbeddedStore()
    coordination = RenewedCoordination(store.connect(), patience_s=20)
    coordination.create("/a", b"1")
    store.expire(coordination.session_id)
    with pytest.raises(SessionExpiredError):
        coordination.set("/a", b"2")
    renewal = threading.Timer(0.05, lambda: coordination.renew(store.connect()))
    renewal.start()
    assert coordination.get("/a")[0] == b"1"
    assert coordination.children("/") == ["a"]
    renewal.join()
    coordination.set("/a", b"2")
    assert coordination.get_many(["/a", "/b"])[0] is not None


def test_a_call_without_a_session_ends_after_its_patience_or_at_the_release() -> None:
    store = EmbeddedStore()
    short = RenewedCoordination(store.connect(), patience_s=0.01)
    store.expire(short.session_id)
    with pytest.raises(SessionExpiredError):
        short.get("/a")
    closing = RenewedCoordination(store.connect(), patience_s=20)
    store.expire(closing.session_id)
    release = threading.Timer(0.05, closing.release)
    release.start()
    with pytest.raises(SessionExpiredError):
        closing.exists("/a")
    release.join()
