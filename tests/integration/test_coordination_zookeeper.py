"""Tests of lost connections, answers and sessions of a remote coordination store."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificate

from millrace.config.zookeeper import ZooKeeperConfig
from millrace.coordination import (
    AccessDeniedError,
    ConnectionLossError,
    Create,
    EventType,
    NodeExistsError,
    SessionExpiredError,
    SessionState,
    WatchEvent,
    Write,
)
from millrace.coordination.outcomes import Outcome, find_out, settle
from millrace.coordination.zookeeper import ZooKeeperCoordination, ZooKeeperStore
from millrace.errors import EnvironmentProblemError

from ..certificates import Authority
from ..planted_secrets import planted
from ..ports import free_port
from .waiting import STALL_S, eventually
from .zookeeper_server import CONNECTION_MS, PASSWORD, USER, Proxy, ZooKeeperServer, expiry_of, proxy_to

LONG_SESSION_MS = 30_000
Connect = Callable[..., ZooKeeperCoordination]


@pytest.fixture
def chroot() -> str:
    return f"/tests-{uuid.uuid4().hex}"


@pytest.fixture
def connect(zookeeper_server: ZooKeeperServer, chroot: str) -> Iterator[Connect]:
    """Return ``connect(address, **options)``, which opens sessions under one chroot."""
    stores = []

    def open_session(address: str = zookeeper_server.address, **options: object) -> ZooKeeperCoordination:
        values: dict[str, Any] = {
            "zookeeper_connect": address + chroot,
            "zookeeper_session_timeout_ms": LONG_SESSION_MS,
            "zookeeper_connection_timeout_ms": CONNECTION_MS,
        }
        store = ZooKeeperStore(ZooKeeperConfig.load(values | options))
        stores.append(store)
        return store.connect()

    yield open_session
    for store in stores:
        store.close()


@pytest.fixture
def proxy(zookeeper_server: ZooKeeperServer, connect: Connect) -> Iterator[Proxy]:
    with proxy_to(zookeeper_server) as proxy:
        yield proxy


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def cut(proxy: Proxy, session: ZooKeeperCoordination) -> None:
    proxy.cut()
    eventually(lambda: session.state is SessionState.SUSPENDED)


def test_a_session_outlives_its_connection_and_reads_wait_for_it(
    connect: Connect, proxy: Proxy, background: ThreadPoolExecutor
) -> None:
    session, other = connect(proxy.address), connect()
    states: list[SessionState] = []
    session.on_state(states.append)
    session.create("/mine", b"1", ephemeral=True)
    session_id = session.session_id
    cut(proxy, session)
    reads: list[Future[Any]] = [
        background.submit(session.get, "/mine"),
        background.submit(session.children, "/"),
        background.submit(session.exists, "/none"),
    ]
    proxy.heal()
    results = [read.result(STALL_S) for read in reads]
    assert (results[0][0], results[1], results[2]) == (b"1", ["mine"], None)
    eventually(lambda: len(states) == 2)
    assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert session.session_id == session_id == other.get("/mine")[1].ephemeral_owner


def test_an_unsent_write_is_known_not_to_be_applied(
    connect: Connect, proxy: Proxy, background: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = connect(proxy.address)
    session.create("/a", b"before")
    cut(proxy, session)
    impatient = session._link._config.model_copy(update={"zookeeper_connection_timeout_ms": 100})
    with monkeypatch.context() as patch:
        patch.setattr(session._link, "_config", impatient)
        calls = [background.submit(session.set, "/a", b"after"), background.submit(session.get, "/a")]
        for call in calls:
            with pytest.raises(ConnectionLossError, match="/a was not requested") as raised:
                call.result(STALL_S)
            assert not raised.value.maybe_applied
    proxy.heal()
    eventually(lambda: session.state is SessionState.CONNECTED)
    assert session.get("/a")[0] == b"before"


def test_the_outcome_of_a_write_whose_answer_was_lost_can_be_found_out(
    connect: Connect, proxy: Proxy, background: ThreadPoolExecutor
) -> None:
    session, other = connect(proxy.address), connect()
    session.create("/epoch", b"4")
    take = [Create("/controller", b"me", ephemeral=True), Write("/epoch", b"5", 0)]
    proxy.swallow_answers = True
    with pytest.raises(ConnectionLossError, match="the write may have succeeded") as raised:
        session.multi(take)
    assert raised.value.maybe_applied
    assert other.get("/epoch")[0] == b"5"
    proxy.heal()
    assert find_out(session, take) is Outcome.APPLIED
    assert find_out(other, take) is Outcome.NOT_APPLIED  # the same data, but another session's node
    other.set("/epoch", b"6")
    assert find_out(session, take) is Outcome.UNKNOWN
    other.delete("/controller")
    assert find_out(session, take) is Outcome.NOT_APPLIED


def test_settled_writes_are_applied_once_also_when_the_answer_is_lost(
    connect: Connect, proxy: Proxy, background: ThreadPoolExecutor
) -> None:
    session, other = connect(proxy.address), connect()
    session.create("/counted", b"0")
    for round_number in range(3):
        proxy.swallowed.clear()
        proxy.swallow_answers = True
        write = Write("/counted", b"%d" % (round_number + 1), round_number)
        done = background.submit(settle, session, [write, Create(f"/n-{round_number}")])
        assert proxy.swallowed.wait(STALL_S)
        proxy.heal()
        done.result(STALL_S)
        assert other.get("/counted")[1].version == round_number + 1
    assert other.children("/") == ["counted", "n-0", "n-1", "n-2"]
    with pytest.raises(NodeExistsError, match="/n-0"):
        settle(session, [Create("/n-0")])


def test_watches_get_missed_events_once_and_continue(connect: Connect, proxy: Proxy) -> None:
    session, other = connect(proxy.address), connect()
    for path in ("/changed", "/deleted", "/full", "/same", "/same/child", "/again"):
        session.create(path)
    events: list[WatchEvent] = []
    for path in ("/changed", "/deleted", "/same", "/again"):
        session.get(path, events.append)
    session.get("/same", events.append)  # as at the first time
    session.exists("/created", events.append)
    session.exists("/none", events.append)
    for path in ("/full", "/deleted", "/same"):
        session.children(path, events.append)
    cut(proxy, session)
    other.set("/changed", b"1")
    other.delete("/deleted")
    other.create("/created")
    other.create("/full/child")
    other.delete("/again")
    other.create("/again")
    assert events == []
    proxy.heal()
    eventually(lambda: len(events) == 5)
    missed = {
        WatchEvent(EventType.CHANGED, "/changed"),
        WatchEvent(EventType.DELETED, "/deleted"),
        WatchEvent(EventType.CREATED, "/created"),
        WatchEvent(EventType.CHILDREN, "/full"),
        WatchEvent(EventType.CHANGED, "/again"),
    }
    assert set(events) == missed

    events.clear()
    for path in ("/changed", "/created", "/again", "/same"):
        other.set(path, b"2")
    other.create("/full/other")
    other.create("/none")
    other.create("/same/other")
    eventually(lambda: len(events) == 3)
    assert events == [
        WatchEvent(EventType.CHANGED, "/same"),
        WatchEvent(EventType.CREATED, "/none"),
        WatchEvent(EventType.CHILDREN, "/same"),
    ]


def test_a_watch_set_again_after_a_missed_event_reports_the_next_change(connect: Connect, proxy: Proxy) -> None:
    session, other = connect(proxy.address), connect()
    session.create("/a")
    events: list[WatchEvent] = []

    def watch(event: WatchEvent) -> None:
        session.get("/a", watch)  # before the change is counted, because a read during the next cut may find the change
        events.append(event)

    session.get("/a", watch)
    for number in range(1, 4):
        cut(proxy, session)
        other.set("/a", b"%d" % number)
        proxy.heal()
        eventually(lambda number=number: len(events) == number)  # type: ignore[misc]
    other.set("/a", b"while connected")
    eventually(lambda: len(events) == 4)


def test_calls_that_wait_for_an_expired_session_are_never_applied(
    connect: Connect, proxy: Proxy, background: ThreadPoolExecutor
) -> None:
    session, other = connect(proxy.address), connect()
    ended = threading.Event()
    events: list[WatchEvent] = []
    session.on_session_end(ended.set)
    session.create("/mine", ephemeral=True)
    session.get("/mine", events.append)
    end = expiry_of(session)
    cut(proxy, session)
    waiting: list[Future[Any]] = [
        background.submit(session.create, "/late"),
        background.submit(session.create, "/late-ephemeral", ephemeral=True),
        background.submit(session.get, "/mine"),
    ]
    end(other._config.address.hosts)  # type: ignore[call-arg]
    eventually(lambda: other.exists("/mine") is None)
    assert session.state is SessionState.SUSPENDED  # the session cannot know it
    proxy.heal()
    for call in waiting:
        with pytest.raises(SessionExpiredError, match="open a new one"):
            call.result(STALL_S)
    assert ended.wait(STALL_S)
    successor = connect(proxy.address)
    assert successor.session_id != session.session_id
    assert successor.children("/") == []
    with pytest.raises(SessionExpiredError):
        session.set("/mine", b"")
    session.close()
    assert (events, session.state) == ([], SessionState.EXPIRED)
    assert not session._link.client.connected


def test_expiry_is_survived_by_registering_again(connect: Connect, zookeeper_server: ZooKeeperServer) -> None:
    """Register as a broker does, which opens the next session and registers again when a session ends."""
    observer = connect()
    registered = threading.Semaphore(0)
    sessions: list[ZooKeeperCoordination] = []

    def register() -> None:
        session = connect()
        session.on_session_end(register)
        session.create("/1", ephemeral=True)
        sessions.append(session)
        registered.release()

    register()
    for _ in range(3):
        assert registered.acquire(timeout=STALL_S)
        assert observer.get("/1")[1].ephemeral_owner == sessions[-1].session_id
        expiry_of(sessions[-1])()
    assert registered.acquire(timeout=STALL_S)
    assert len({session.session_id for session in sessions}) == 4


def test_a_server_that_was_killed_continues_with_the_session(
    connect: Connect, zookeeper_server: ZooKeeperServer
) -> None:
    session = connect()
    session.create("/mine", b"1", ephemeral=True)
    session.create("/kept", b"2")
    zookeeper_server.stop()
    eventually(lambda: session.state is SessionState.SUSPENDED)
    assert zookeeper_server.start()
    assert (session.get("/mine")[0], session.get("/kept")[0]) == (b"1", b"2")
    assert session.get("/mine")[1].ephemeral_owner == session.session_id


def test_closing_releases_what_waits(connect: Connect, proxy: Proxy, background: ThreadPoolExecutor) -> None:
    session = connect(proxy.address)
    cut(proxy, session)
    waiting = background.submit(session.get, "/")
    session.close()
    with pytest.raises(SessionExpiredError):
        waiting.result(STALL_S)
    assert session.state is SessionState.CLOSED


def test_a_session_can_be_closed_by_one_of_its_watches(connect: Connect) -> None:
    session = connect()
    session.exists("/a", lambda _: session.close())
    session.create("/a")
    eventually(lambda: session.state is SessionState.CLOSED)


def test_many_threads_share_a_session(connect: Connect, background: ThreadPoolExecutor) -> None:
    session = connect()
    session.create("/queue")
    work = [background.submit(session.create, "/queue/", b"", sequential=True) for _ in range(200)]
    assert sorted(each.result(STALL_S) for each in work) == [f"/queue/{number:010d}" for number in range(200)]


def test_the_chroot_is_where_the_nodes_are(connect: Connect, chroot: str, zookeeper_server: ZooKeeperServer) -> None:
    session = connect()
    session.create("/a", b"1")
    config = ZooKeeperConfig.load({"zookeeper.connect": zookeeper_server.address})
    root = ZooKeeperStore(config)
    try:
        assert root.connect().get(f"{chroot}/a")[0] == b"1"
    finally:
        root.close()


def test_without_a_server_the_error_names_its_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    options = {"zookeeper.connect": address, "zookeeper.connection.timeout.ms": 200}
    with pytest.raises(EnvironmentProblemError, match=rf"{address} within 200 ms.*zookeeper\.connect"):
        ZooKeeperStore(ZooKeeperConfig.load(options)).connect()


SASL = {"zookeeper_sasl_mechanism": "DIGEST-MD5", "zookeeper_sasl_username": USER}


def test_nodes_belong_to_their_creator_if_configured(connect: Connect) -> None:
    owner = connect(zookeeper_set_acl=True, zookeeper_sasl_password=PASSWORD, **SASL)
    stranger = connect()
    for path in ("/config", "/config/topics", "/config/users"):
        owner.create(path, b"1")
    assert stranger.get("/config/topics")[0] == b"1"
    for denied in (
        lambda: stranger.set("/config/topics", b"2"),
        lambda: stranger.create("/config/topics/x"),
        lambda: stranger.get("/config/users"),
    ):
        with pytest.raises(AccessDeniedError, match=r"/config/\w+.*zookeeper\.sasl"):
            denied()
    owner.set("/config/users", b"2")


def test_a_wrong_password_is_a_clear_error(connect: Connect) -> None:
    with pytest.raises(AccessDeniedError, match=r"credentials: check zookeeper\.sasl"):
        connect(zookeeper_sasl_password="wrong", **SASL)


def test_connections_can_be_encrypted_and_both_ends_known(connect: Connect, zookeeper_server: ZooKeeperServer) -> None:
    options = {
        "zookeeper_ssl_client_enable": True,
        "zookeeper_ssl_keystore_location": str(zookeeper_server.certificate),
        "zookeeper_ssl_truststore_location": str(zookeeper_server.authority),
    }
    owner = connect(zookeeper_server.secure_address, zookeeper_set_acl=True, **options)
    owner.create("/a", b"x" * 100_000)
    assert len(owner.get("/a")[0]) == 100_000
    with pytest.raises(AccessDeniedError, match="/a"):
        connect().set("/a", b"")
    options["zookeeper_ssl_truststore_location"] = ""  # the system's certificate authorities do not include this one
    with pytest.raises(EnvironmentProblemError, match=r"zookeeper\.ssl"):
        connect(zookeeper_server.secure_address, zookeeper_connection_timeout_ms=1_000, **options)


def test_a_new_connection_uses_the_stores_as_they_are_then(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    """Another authority's files are replaced, the key store by one in PKCS12, and damaged files change nothing."""
    own, trusted = tmp_path / "own.p12", tmp_path / "trusted.pem"
    stranger = Authority.make("CN=stranger")
    password = planted("of a key store")
    stranger.issue("CN=x").write(own, password)
    stranger.write(trusted)
    options = {
        "zookeeper.connect": zookeeper_server.secure_address,
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.keystore.location": str(own),
        "zookeeper.ssl.keystore.password": password,
        "zookeeper.ssl.truststore.location": str(trusted),
    }
    store = ZooKeeperStore(ZooKeeperConfig.load(options))
    try:
        pem = zookeeper_server.certificate.read_bytes()
        key, certificate = load_pem_private_key(pem, None), load_pem_x509_certificate(pem)
        encryption = BestAvailableEncryption(password.encode())
        own.write_bytes(serialize_key_and_certificates(None, key, certificate, None, encryption))  # type: ignore[arg-type]
        trusted.write_bytes(zookeeper_server.authority.read_bytes())
        assert store.connect().exists("/") is not None
        own.write_bytes(b"nonsense")
        assert store.connect().exists("/") is not None
    finally:
        store.close()
