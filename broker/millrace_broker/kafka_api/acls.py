"""Filters of ACLs in Kafka's calls."""

from __future__ import annotations

from typing import Final

from millrace.kafka_protocol.calls.delete_acls import DeleteAclsFilter
from millrace.kafka_protocol.calls.describe_acls import DescribeAclsRequest
from millrace.protocol import millrace_pb2 as pb

_UNKNOWN: Final = -1
"""Kafka's 0, an unknown kind, which the handlers refuse. In the broker's own messages 0 matches all."""


def filter_of(wanted: DescribeAclsRequest | DeleteAclsFilter) -> pb.AclFilter:
    """Return the filter of a request."""
    return pb.AclFilter(
        resource_type=wanted.resource_type_filter or _UNKNOWN,
        name=wanted.resource_name_filter,
        pattern_type=wanted.pattern_type_filter or _UNKNOWN,
        principal=wanted.principal_filter,
        host=wanted.host_filter,
        operation=wanted.operation or _UNKNOWN,
        permission=wanted.permission_type or _UNKNOWN,
    )
