"""Rebalance listener of an application (Kafka's ``ConsumerRebalanceListener``)."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.clients.model import TopicPartition


class RebalanceListener:
    """Listener of assignment changes, to override. All calls come from within ``poll`` (or ``close``).

    The methods may use the consumer. The poll raises their exceptions after the rebalance has continued.
    """

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle new partitions before any record is read; called with an empty list if a rebalance adds none."""

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle partitions that other members will get; offsets can still be committed."""

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle partitions that others may own already, so that commits fail; by default like revoked ones."""
        self.on_partitions_revoked(partitions)
