"""Tests of the settings that ``millrace acls who`` reads from brokers."""

from __future__ import annotations

from typing import Any, cast

from millrace.clients import Admin, BrokerInfo, ClusterDescription, ConfigValue
from millrace_broker.cli.authorizer_settings import AuthorizerSettings, authorizer_settings
from millrace_broker.security import ACL_AUTHORIZER


class _Admin:
    """Brokers that have these super users."""

    def __init__(self, **super_users: str) -> None:
        self._super_users = {name.removeprefix("broker_"): value for name, value in super_users.items()}

    def describe_cluster(self) -> Any:
        brokers = [BrokerInfo(node_id=int(each), host="h", port=1, rack="") for each in self._super_users]
        return ClusterDescription(cluster_id="c", controller_id=1, brokers=tuple(brokers))

    def describe_configs(self, name: str, *, resource: str) -> dict[str, ConfigValue]:
        assert resource == "broker"
        values = {
            "super.users": self._super_users[name],
            "authorizer.class.name": ACL_AUTHORIZER,
            "allow.everyone.if.no.acl.found": "true",
            "broker.id": name,
        }
        return {option: ConfigValue(value=value, source="") for option, value in values.items()}


def settings(**super_users: str) -> AuthorizerSettings:
    return authorizer_settings(cast("Admin", _Admin(**super_users)))


def test_super_users_are_read_once_each() -> None:
    found = settings(broker_2="User:CN=a,O=b; User:c;User:c", broker_1="User:CN=a,O=b; User:c;User:c")
    assert found == AuthorizerSettings(("User:CN=a,O=b", "User:c"), allows_if_no_acl=True)


def test_brokers_that_differ_are_named() -> None:
    found = settings(broker_2="User:b", broker_1="User:a")
    assert found.super_users == ("User:a",)
    assert found.remark == "the brokers differ in super.users: the table is of broker 1"
