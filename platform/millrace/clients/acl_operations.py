"""Operations of ``Admin`` on access control lists."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.acls import AclBinding, AclBindingFilter
from millrace.clients.connections import Connections
from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.acls import filter_message, message_of, read_acl
from millrace.protocol.item_errors import check_item, error_in

_ALL = AclBindingFilter()


class AclOperations:
    """Operations of ``Admin`` on ACLs. A broker without an authorizer refuses them with ``SecurityDisabledError``."""

    _connections: Connections

    def describe_acls(self, wanted: AclBindingFilter = _ALL) -> list[AclBinding]:
        """Return the ACLs that match a filter, sorted."""
        request = pb.DescribeAclsRequest(filter=filter_message(wanted))
        response = self._connections.call(lambda stub: stub.DescribeAcls, request)
        return [read_acl(each) for each in response.acls]

    def create_acls(self, bindings: Iterable[AclBinding]) -> dict[AclBinding, MillraceError | None]:
        """Add ACLs. Return the error of each, or None. The call is idempotent."""
        wanted = list(bindings)
        request = pb.CreateAclsRequest(acls=map(message_of, wanted))
        response = self._connections.call(lambda stub: stub.CreateAcls, request)
        return {each: error_in(result.error) for each, result in zip(wanted, response.results, strict=True)}

    def delete_acls(self, filters: Iterable[AclBindingFilter]) -> list[AclBinding]:
        """Delete the ACLs that match any of the filters, and return them. Raises the first error."""
        request = pb.DeleteAclsRequest(filters=map(filter_message, filters))
        response = self._connections.call(lambda stub: stub.DeleteAcls, request)
        for result in response.results:
            check_item(result.error)
        return [read_acl(each) for result in response.results for each in result.acls]
