"""Calls to the coordinators of share groups.

Kafka's clients send the calls of a share group to the coordinator of consumer groups, and to the leaders of partitions.
Here ``__share_group_state`` has all state of share groups. The broker that leads a group's partition of that topic is
asked, which is often another broker than the one that was called.
"""

from __future__ import annotations

from typing import Any, Final

from millrace.errors import (
    BrokerUnavailableError,
    CoordinatorNotAvailableError,
    MillraceError,
    RequestTimedOutError,
)
from millrace_broker.api import HANDLERS, RequestContext
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.broker import Broker
from millrace_broker.coordinators import SHARE_STATE_TOPIC, partition_of
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.metadata import TopicInfo

_CALL_S: Final = 30.0


async def ask(request: KafkaRequest, group_id: str, name: str, message: Any, *, wait_ms: int = 0) -> Any:
    """Return the answer of a group's coordinator to a call of millrace, which may wait ``wait_ms`` for records.

    This broker checks the client's rights, because the other broker knows only this one. Raises the errors of the
    call's handler, ``AuthorizationError``, and ``CoordinatorNotAvailableError``. The latter stands for the errors of
    ``Peers.call`` too, because Java's share consumers fail at those.
    """
    broker = request.broker
    leader = _leader(await broker.internal_topics.ensure(SHARE_STATE_TOPIC), group_id)
    if leader == broker.config.broker_id:
        return await HANDLERS[name](broker, message, request.context)
    if leader < 0:
        raise CoordinatorNotAvailableError(f"the coordinator of share group {group_id} is not known now: try again")

    async def forward(broker: Broker, message: Any, context: RequestContext) -> Any:
        try:
            return await broker.peers.call(leader, name, message, timeout_s=_CALL_S + wait_ms / 1000)
        except (BrokerUnavailableError, RequestTimedOutError) as error:
            raise CoordinatorNotAvailableError(error.message) from None

    return await authorized(name)(forward)(broker, message, request.context)


def coordinator_refusal(broker: Broker, group_id: str) -> MillraceError | None:
    """Return the error of a broker that is not the coordinator of consumer groups for this id; None if it is.

    Kafka's clients ask the coordinator of consumer groups about groups of every kind. Only this coordinator may answer
    that a group does not exist.
    """
    try:
        broker.groups.find(group_id)
    except MillraceError as error:
        return error
    return None


def is_elsewhere(broker: Broker, group_id: str) -> bool:
    """Return whether another broker coordinates the share group with this id, if there is one."""
    topic = broker.catalog.topics.get(SHARE_STATE_TOPIC)
    return topic is not None and _leader(topic, group_id) not in (-1, broker.config.broker_id)


def _leader(topic: TopicInfo, group_id: str) -> int:
    return topic.partitions[partition_of(group_id, len(topic.partitions))].leader
