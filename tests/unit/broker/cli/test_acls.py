"""Tests of the decisions that ``millrace acls who`` shows."""

from __future__ import annotations

from millrace.acls import AccessControlEntry, AclBinding, AclOperation, AclPermission, ResourcePattern, ResourceType
from millrace_broker.cli.acls import _decisions

TOPIC = ResourceType.TOPIC


def test_hosts_are_shown_and_looked_up_in_the_spelling_of_connections() -> None:
    def acl(permission: AclPermission, host: str) -> AclBinding:
        entry = AccessControlEntry("User:alice", host, AclOperation.ALTER_CONFIGS, permission)
        return AclBinding(ResourcePattern(TOPIC, "t"), entry)

    both = ["DescribeConfigs", "AlterConfigs"]
    allowed = [acl(AclPermission.ALLOW, "2001:DB8:0::1"), acl(AclPermission.ALLOW, "2001:db8::1")]
    assert list(_decisions(TOPIC, "t", allowed)) == [("User:alice", "2001:db8::1", both)]
    denied = [acl(AclPermission.ALLOW, "*"), acl(AclPermission.DENY, "::ffff:10.0.0.5")]
    assert list(_decisions(TOPIC, "t", denied)) == [
        ("User:alice", "*", both),
        ("User:alice", "10.0.0.5", ["DescribeConfigs"]),
    ]
