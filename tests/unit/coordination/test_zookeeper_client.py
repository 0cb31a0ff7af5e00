from __future__ import annotations

import socket

import pytest
from kazoo import exceptions as kazoo

from millrace.coordination import (
    AccessDeniedError,
    BadVersionError,
    ConnectionLossError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from millrace.coordination.interface import CoordinationError
from millrace.coordination.zookeeper_client import SessionHandler, acls, error_of
from millrace.errors import InvalidRequestError, MillraceError

from ...integration.waiting import STALL_S


def test_secrets_may_be_read_by_their_owner_only() -> None:
    secured = {
        path: len(acls(path, secure=True)) for path in ("/config/topics/t", "/config/users/u", "/config/brokers")
    }
    assert secured == {"/config/topics/t": 2, "/config/users/u": 1, "/config/brokers": 1}
    assert len(acls("/config/users", secure=False)) == 1
    assert acls("/x", secure=False) != acls("/config/users", secure=True)


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (kazoo.NoNodeError(), NoNodeError),
        (kazoo.NodeExistsError(), NodeExistsError),
        (kazoo.BadVersionError(), BadVersionError),
        (kazoo.NotEmptyError(), NotEmptyError),
        (kazoo.NoChildrenForEphemeralsError(), NoChildrenForEphemeralsError),
        (kazoo.BadArgumentsError(), InvalidRequestError),
        (kazoo.NoAuthError(), AccessDeniedError),
        (kazoo.SessionExpiredError(), SessionExpiredError),
        (kazoo.SessionMovedError(), ConnectionLossError),
        (kazoo.MarshallingError(), CoordinationError),
        (ValueError("odd"), CoordinationError),
    ],
)
def test_every_error_names_the_node(error: Exception, ours: type[MillraceError]) -> None:
    made = error_of(error, "/brokers/ids/1", 3)
    assert type(made) is ours
    assert "/brokers/ids/1" in made.message


def test_an_expired_session_does_not_reconnect() -> None:
    handler = SessionHandler(None, lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        handler.create_connection(address, timeout=STALL_S).close()
        handler.refuse_connections()
        with pytest.raises(OSError, match="the session has expired"):
            handler.create_connection(address, timeout=STALL_S)
