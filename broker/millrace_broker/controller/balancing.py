"""The automatic rebalance of leaders to their preferred replicas. Pure.

Source: Kafka's ``KafkaController.checkAndTriggerAutoLeaderRebalance``.
"""

from __future__ import annotations

from collections import defaultdict

from millrace_broker.controller.context import ControllerContext
from millrace_broker.controller.elections import first_in_sync
from millrace_broker.decisions import TopicPartition


def partitions_to_rebalance(context: ControllerContext, imbalance_percentage: int) -> list[TopicPartition]:
    """Return the partitions whose preferred leaders should and may lead them now.

    A broker's partitions count only if other brokers lead more than ``leader.imbalance.per.broker.percentage`` of the
    partitions that prefer it. Returns no partitions during reassignments, and none of topics to be deleted.
    """
    if context.reassigning:
        return []
    preferring: dict[int, list[TopicPartition]] = defaultdict(list)
    for partition, assignment in sorted(context.assignments.items()):
        if assignment.replicas and not context.is_to_be_deleted(partition.topic):
            preferring[assignment.replicas[0]].append(partition)
    found: list[TopicPartition] = []
    for broker_id, partitions in sorted(preferring.items()):
        elsewhere = [
            each for each in partitions if each in context.leadership and context.leadership[each].leader != broker_id
        ]
        if len(elsewhere) * 100 > imbalance_percentage * len(partitions):
            found += [
                each
                for each in elsewhere
                if first_in_sync([broker_id], context.leadership[each].isr, context.online(each)) is not None
            ]
    return found
