"""Adaptive partitioning of records without a key by queue size (KIP-794).

The partitions of a slow broker have long queues. The weight of a partition in the draw is the length of the longest
queue, plus one, minus the length of its own queue. Therefore a partition gets as much as it can send. If all queues
are equally long, nothing is adapted. Source: Kafka's ``BuiltInPartitioner`` and ``RecordAccumulator.partitionReady``.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from millrace.clients.model import TopicDescription
from millrace.config.client import ProducerConfig


@dataclass(frozen=True, slots=True)
class LoadTable:
    """Partitions with their cumulative weights (Kafka's ``PartitionLoadStats``).

    For example, the queue sizes 0, 3 and 1 give the cumulative weights 4, 5 and 8.
    """

    partitions: Sequence[int]
    cumulative: Sequence[int]

    def draw(self, number: int) -> int:
        """Return the partition for a number from 0 on."""
        return self.partitions[bisect_right(self.cumulative, number % self.cumulative[-1])]


def load_table(queue_sizes: Mapping[int, int], num_partitions: int) -> LoadTable | None:
    """Weigh partitions by their queues; ``queue_sizes`` omits the partitions that are unavailable.

    Returns None if there is no basis for a choice: a single partition, none available, or all available and equally
    long.
    """
    if not queue_sizes or num_partitions < 2:
        return None
    sizes = list(queue_sizes.values())
    if len(sizes) == num_partitions and len(set(sizes)) == 1:
        return None
    longest = max(sizes)
    return LoadTable(list(queue_sizes), list(accumulate(longest + 1 - size for size in sizes)))


@dataclass(frozen=True, slots=True)
class QueueState:
    """Queue of a partition.

    ``batches`` is the number of waiting batches. ``silent_s`` is the time since the leader last answered.
    """

    batches: int
    silent_s: float


class AdaptiveChoice:
    """Choice of partitions by the sender's queues. Thread safe if ``queues`` is."""

    def __init__(
        self,
        config: ProducerConfig,
        queues: Callable[[TopicDescription], Mapping[int, QueueState]],
        draw: Callable[[], int] = lambda: random.randrange(2**31),
    ) -> None:
        self._enabled = config.partitioner_adaptive_partitioning_enable
        self._timeout_s = config.partitioner_availability_timeout_ms / 1000
        self._queues = queues
        self._draw = draw

    def __call__(self, topic: TopicDescription) -> int | None:
        """Return the next partition of a topic; None means any partition.

        Nothing is adapted before every partition has had a batch, because a missing queue has no size.
        """
        if not self._enabled or topic.num_partitions < 2:
            return None
        queues = self._queues(topic)
        if len(queues) < topic.num_partitions:
            return None
        sizes = {}
        for info in topic.partitions:
            queue = queues[info.partition]
            is_silent = self._timeout_s > 0 and queue.batches and queue.silent_s > self._timeout_s
            if info.leader >= 0 and not is_silent:
                sizes[info.partition] = queue.batches
        table = load_table(sizes, topic.num_partitions)
        return None if table is None else table.draw(self._draw())
