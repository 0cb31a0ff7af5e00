"""Tests of delegation tokens in the metadata store.

The tests cover Kafka's nodes, lifetimes, owners, renewers, and changes by several brokers.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.config.broker import BrokerConfig
from millrace.coordination import Coordination, EmbeddedStore
from millrace.errors import (
    DelegationTokenDisabledError,
    DelegationTokenExpiredError,
    DelegationTokenNotFoundError,
    DelegationTokenOwnerMismatchError,
)
from millrace.security.scram import ScramCredential
from millrace_broker.cluster.notifications import token_notifications
from millrace_broker.security import DelegationTokens

from ....planted_secrets import planted

pytestmark = pytest.mark.usefixtures("finest_log")

KEY = planted("swordfish")
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 1_700_000_000_000


@pytest.fixture
def coordination(tmp_path: Path) -> Iterator[Coordination]:
    store = EmbeddedStore(tmp_path / "metadata", now_ms=lambda: 0)
    yield store.connect()
    store.close()


class Clock:
    ms = START_MS

    def __call__(self) -> int:
        return self.ms


def opened(coordination: Coordination, clock: Clock, key: str = KEY) -> DelegationTokens:
    return DelegationTokens.of(BrokerConfig.load({"delegation.token.secret.key": key}), coordination, clock)


def test_nodes_and_notices_are_those_of_kafka(coordination: Coordination) -> None:
    tokens = opened(coordination, Clock())
    token = tokens.create("User:böb, =", "User:admin", ["User:etl"], HOUR_MS)
    assert json.loads(coordination.get(f"/delegation_token/tokens/{token.token_id}")[0]) == {
        "version": 3,
        "owner": "User%3Ab%C3%B6b%2C%20%3D",
        "tokenRequester": "User%3Aadmin",
        "renewers": ["User%3Aetl"],
        "issueTimestamp": START_MS,
        "maxTimestamp": START_MS + HOUR_MS,
        "expiryTimestamp": START_MS + HOUR_MS,
        "tokenId": token.token_id,
    }
    (notice,) = coordination.children("/delegation_token/token_changes")
    assert notice == "token_change_0000000000"
    assert coordination.get(f"/delegation_token/token_changes/{notice}")[0] == token.token_id.encode()
    assert tokens.hmac_of(token.token_id) == hmac.digest(KEY.encode(), token.token_id.encode(), hashlib.sha512)


def test_a_token_of_an_older_kafka_belongs_to_who_asked_for_it(coordination: Coordination) -> None:
    opened(coordination, Clock())
    node = {
        "version": 1,
        "owner": "User%3Abob",
        "renewers": [],
        "issueTimestamp": START_MS,
        "maxTimestamp": START_MS + DAY_MS,
        "expiryTimestamp": START_MS + DAY_MS,
        "tokenId": "old",
    }
    coordination.create("/delegation_token/tokens/old", json.dumps(node).encode())
    coordination.create("/delegation_token/tokens/bad", b"{")
    (token,) = opened(coordination, Clock()).all()
    assert (token.owner, token.requester) == ("User:bob", "User:bob")


@pytest.mark.parametrize(
    ("lifetime_ms", "max_ms", "expires_ms"),
    [
        (-1, 7 * DAY_MS, DAY_MS),
        (0, 7 * DAY_MS, DAY_MS),
        (HOUR_MS, HOUR_MS, HOUR_MS),
        (3 * DAY_MS, 3 * DAY_MS, DAY_MS),
        (2**62, 7 * DAY_MS, DAY_MS),
    ],
)
def test_lifetimes_are_bounded(coordination: Coordination, lifetime_ms: int, max_ms: int, expires_ms: int) -> None:
    token = opened(coordination, Clock()).create("User:bob", "User:bob", [], lifetime_ms)
    assert (token.max_ms - START_MS, token.expires_ms - START_MS) == (max_ms, expires_ms)


def test_owners_and_renewers_prolong_a_token_up_to_its_longest_lifetime(coordination: Coordination) -> None:
    clock = Clock()
    tokens = opened(coordination, clock)
    token = tokens.create("User:bob", "User:admin", ["User:etl"], 2 * DAY_MS)
    key = tokens.hmac_of(token.token_id)
    clock.ms += HOUR_MS
    assert tokens.renew("User:bob", key, -1) == clock.ms + DAY_MS
    assert tokens.renew("User:etl", key, HOUR_MS) == clock.ms + HOUR_MS
    assert tokens.renew("User:etl", key, 2**63 - 1) == START_MS + 2 * DAY_MS
    assert opened(coordination, clock).all()[0].expires_ms == START_MS + 2 * DAY_MS
    for principal in ("User:admin", "User:eve"):
        with pytest.raises(DelegationTokenOwnerMismatchError):
            tokens.renew(principal, key, -1)
        with pytest.raises(DelegationTokenOwnerMismatchError):
            tokens.expire(principal, key, -1)
    with pytest.raises(DelegationTokenNotFoundError):
        tokens.renew("User:bob", b"other", -1)


def test_an_expired_token_is_of_no_use_and_is_removed(coordination: Coordination) -> None:
    clock = Clock()
    tokens = opened(coordination, clock)
    token = tokens.create("User:bob", "User:bob", [], HOUR_MS)
    key = tokens.hmac_of(token.token_id)
    login = tokens.login(token.token_id, "SCRAM-SHA-256")
    assert login is not None
    assert (login.owner, login.expires_s) == ("bob", (START_MS + HOUR_MS) / 1000)
    found = login.credential
    salted = hashlib.pbkdf2_hmac("sha256", base64.b64encode(key), found.salt, found.iterations)
    assert found == ScramCredential.of_salted_password("SCRAM-SHA-256", salted, found.salt, found.iterations)
    clock.ms += HOUR_MS + 1
    assert tokens.login(token.token_id, "SCRAM-SHA-256") is None
    assert tokens.all() == []
    with pytest.raises(DelegationTokenExpiredError):
        tokens.renew("User:bob", key, -1)
    with pytest.raises(DelegationTokenExpiredError):
        tokens.expire("User:bob", key, 0)
    other = tokens.create("User:bob", "User:bob", [], HOUR_MS)
    assert tokens.remove_expired() == 1
    assert tokens.remove_expired() == 0
    assert coordination.children("/delegation_token/tokens") == [other.token_id]
    assert token.token_id not in coordination.children("/delegation_token/tokens")


def test_a_token_expires_at_the_requested_time_or_at_once(coordination: Coordination) -> None:
    clock = Clock()
    tokens = opened(coordination, clock)
    token = tokens.create("User:bob", "User:bob", [], -1)
    key = tokens.hmac_of(token.token_id)
    assert tokens.expire("User:bob", key, 1000) == clock.ms + 1000
    assert tokens.expire("User:bob", key, -1) == clock.ms
    assert tokens.login(token.token_id, "SCRAM-SHA-512") is None
    assert coordination.children("/delegation_token/tokens") == []


def test_other_brokers_follow_the_notices_and_no_change_is_lost(coordination: Coordination) -> None:
    clock = Clock()
    first, second = opened(coordination, clock), opened(coordination, clock)
    notices = token_notifications()

    def follow() -> None:
        notices.take(coordination, lambda event: None, second.reload)

    token = first.create("User:bob", "User:bob", [], -1)
    follow()
    key = second.hmac_of(token.token_id)
    assert second.login(token.token_id, "SCRAM-SHA-512") is not None
    ended_ms = second.renew("User:bob", key, HOUR_MS)
    assert first.renew("User:bob", key, 2 * HOUR_MS) == ended_ms + HOUR_MS, "after the change of the other broker"
    first.expire("User:bob", key, -1)
    with pytest.raises(DelegationTokenNotFoundError):
        second.renew("User:bob", key, -1)
    follow()
    assert second.all() == []


def test_without_the_secret_there_are_no_tokens(coordination: Coordination) -> None:
    tokens = opened(coordination, Clock(), key="")
    assert tokens.login("a", "SCRAM-SHA-512") is None
    with pytest.raises(DelegationTokenDisabledError, match=r"set delegation\.token\.secret\.key"):
        tokens.create("User:bob", "User:bob", [], -1)
    with pytest.raises(DelegationTokenDisabledError):
        tokens.all()


def test_the_earlier_name_of_the_secret_is_read_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match=r"delegation\.token\.master\.key is now called delegation\.token\.secret"):
        config = BrokerConfig.load({"delegation.token.master.key": KEY})
    assert config.delegation_token_secret_key == KEY
    assert KEY not in repr(config)
