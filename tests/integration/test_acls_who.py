"""Tests of ``millrace acls who`` against brokers with options beside the ACLs.

No listener of these brokers authenticates, so every client is ``User:ANONYMOUS``.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.acls import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclBinding,
    AclOperation,
    AclPermission,
    ResourcePattern,
    ResourceType,
)
from millrace.clients import Admin, Producer
from millrace.config.broker import BrokerConfig
from millrace.errors import TopicAuthorizationError
from millrace_broker.security import AclAuthorizer, AclStore
from millrace_broker.testing import EmbeddedBroker

from .commands import run_millrace
from .waiting import STALL_S

AUTHORIZER = "authorizer.class.name"
ACL_AUTHORIZER = "millrace_broker.security.AclAuthorizer"
OPEN = "allow.everyone.if.no.acl.found"
ALL_OF_TOPIC = ["Read", "Write", "Create", "Delete", "Alter", "Describe", "DescribeConfigs", "AlterConfigs"]

Start = Callable[..., EmbeddedBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a broker with these options."""
    started: list[EmbeddedBroker] = []

    def start(**options: str) -> EmbeddedBroker:
        given = {AUTHORIZER: ACL_AUTHORIZER, **{name.replace("_", "."): value for name, value in options.items()}}
        broker = EmbeddedBroker(tmp_path / "data", options=given)
        broker.__enter__()
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.__exit__(None, None, None)


def acl(operation: AclOperation, resource_type: ResourceType, name: str, principal: str) -> AclBinding:
    return AclBinding(
        ResourcePattern(resource_type, name), AccessControlEntry(principal, "*", operation, AclPermission.ALLOW)
    )


def let(broker: EmbeddedBroker, *bindings: AclBinding) -> None:
    """Add ACLs with no client, whom the broker might refuse."""
    authorizer = broker.server.broker.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    assert not any(authorizer.create_acls(bindings))


def who(broker: EmbeddedBroker, *arguments: str) -> tuple[list[tuple[str, str, str]], str]:
    """Return each principal with its operations and their origin, and the remark."""
    environment = {"MILLRACE_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    done = run_millrace("acls", "who", *arguments, "--json", environment=environment)
    rows = [(each["principal"], ",".join(each["operations"]), each["by"]) for each in json.loads(done.stdout)]
    return rows, done.stderr


def test_everyone_and_super_users_are_shown_if_no_acl_is_for_the_resource(start: Start) -> None:
    broker = start(super_users="User:admin; User:broker", allow_everyone_if_no_acl_found="true")
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topic("orders")
        producer.send("orders", b"a pen").result(STALL_S)
        everything = ",".join(ALL_OF_TOPIC)
        supers = [(each, everything, "super.users") for each in ("User:admin", "User:broker")]
        assert who(broker, "--topic", "orders") == ([*supers, ("User:*", everything, OPEN)], "")
        # An ACL for the resource ends the rights of everyone, and does not limit super users.
        admin.create_acls(
            [
                acl(AclOperation.READ, ResourceType.TOPIC, "orders", "User:alice"),
                acl(AclOperation.READ, ResourceType.TOPIC, "orders", "User:admin"),
            ]
        )
        assert who(broker, "--topic", "orders") == ([*supers, ("User:alice", "Read,Describe", "ACLs")], "")
        with pytest.raises(TopicAuthorizationError):
            producer.send("orders", b"a book").result(STALL_S)
    # The audit always needs an ACL.
    assert [row[2] for row in who(broker, "--topic", "__audit")[0]] == ["super.users"] * 2
    assert (who(broker, "--group", "workers")[0][-1][0], who(broker, "--cluster")[0][-1][2]) == ("User:*", OPEN)
    environment = {"MILLRACE_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    shown = run_millrace("acls", "who", "--group", "workers", environment=environment).stdout
    assert "BY" in shown
    assert OPEN in shown


def test_only_super_users_are_shown_without_the_option(start: Start) -> None:
    broker = start(super_users="User:ANONYMOUS")
    assert who(broker, "--topic", "orders") == ([("User:ANONYMOUS", ",".join(ALL_OF_TOPIC), "super.users")], "")


def test_a_client_that_may_not_describe_options_is_told_so(start: Start) -> None:
    broker = start(super_users="User:admin")
    let(broker, acl(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME, "User:ANONYMOUS"))
    rows, remark = who(broker, "--cluster")
    assert rows == [("User:ANONYMOUS", "Describe", "ACLs")]
    assert f"super users and {OPEN} are not shown" in remark
    let(broker, acl(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME, "User:ANONYMOUS"))
    rows, remark = who(broker, "--cluster")
    assert [row[0] for row in rows] == ["User:admin", "User:ANONYMOUS"]
    assert remark == ""


class OfACompany(AclAuthorizer):
    """An authorizer that lets everybody do everything."""

    def __init__(self, config: BrokerConfig, store: AclStore) -> None:
        super().__init__(store)

    def authorize(self, *arguments: Any, **options: Any) -> bool:
        return True


def test_the_class_that_decides_is_named(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("authorizers_of_a_company")
    module.OfACompany = OfACompany  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    class_name = f"{module.__name__}.OfACompany"
    broker = start(authorizer_class_name=class_name, super_users="User:admin", allow_everyone_if_no_acl_found="true")
    let(broker, acl(AclOperation.READ, ResourceType.TOPIC, "orders", "User:alice"))
    rows, remark = who(broker, "--topic", "orders")
    assert rows == [("User:alice", "Read,Describe", "ACLs")]
    assert f"{AUTHORIZER}={class_name} decides, and not only by ACLs" in remark


def test_one_of_kafkas_names_is_the_authorizer_by_acls(start: Start) -> None:
    broker = start(
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer", super_users="User:ANONYMOUS"
    )
    assert who(broker, "--group", "workers")[0][0][2] == "super.users"
