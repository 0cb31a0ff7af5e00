"""Operations that a client may do, as bits (KIP-430). Without an authorizer, these are all."""

from __future__ import annotations

from typing import Final

from millrace.acls import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclOperation, ResourceType
from millrace_broker.api.common.access import Need, access_for
from millrace_broker.kafka_api.call import KafkaRequest

NOT_ASKED: Final = -(2**31)
_DESCRIBE_CLUSTER: Final = Need(AclOperation.DESCRIBE, ResourceType.CLUSTER)


def bits(request: KafkaRequest, resource_type: ResourceType, name: str = CLUSTER_NAME, *, is_wanted: bool) -> int:
    """Return the bits of the operations, or Kafka's value for an answer that was not asked for.

    As in Kafka, a client that may not describe the cluster learns nothing of its other rights there.
    """
    if not is_wanted:
        return NOT_ASKED
    access = access_for(request.broker, request.context)
    if resource_type is ResourceType.CLUSTER and access is not None and not access.would_allow(_DESCRIBE_CLUSTER):
        return 0
    return sum(
        1 << operation
        for operation in SUPPORTED_OPERATIONS[resource_type]
        if access is None or access.would_allow(Need(operation, resource_type, name))
    )
