"""What an application is told of rebalances."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.clients.model import TopicPartition


class RebalanceListener:
    """Told when partitions come and go; override what matters. All calls come from within ``poll`` (or ``close``).

    The consumer may be used in them. An exception is raised by the poll, after the rebalance has been gone on with.
    """

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are new (``seek`` has effect before anything is read); empty after every rebalance."""

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions go to other members next; offsets can still be committed."""

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions may belong to others already: commits fail. By default treated as revoked ones."""
        self.on_partitions_revoked(partitions)
