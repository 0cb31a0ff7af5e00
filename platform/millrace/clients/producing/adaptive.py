"""Which partition records without a key go to next: rather one that has little to send (KIP-794).

A slow broker's partitions have long queues. Each partition is drawn with a weight of how much shorter its queue is than
the longest one, so that it gets what it can send. While all queues are as long there is nothing to adapt to.

Source: Kafka's ``BuiltInPartitioner`` and ``RecordAccumulator.partitionReady``.
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
    """Partitions, and up to which number each is drawn: with sizes 0, 3, 1 these are 4, 5, 8."""

    partitions: Sequence[int]
    cumulative: Sequence[int]

    def draw(self, number: int) -> int:
        """The partition that a number stands for, which may be any from 0 on."""
        return self.partitions[bisect_right(self.cumulative, number % self.cumulative[-1])]


def load_table(queue_sizes: Mapping[int, int], num_partitions: int) -> LoadTable | None:
    """Weigh partitions by their queues; ``queue_sizes`` leaves out those that nothing is to be sent to now.

    None where there is nothing to choose by: one partition only, none available, or all available and as long.
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
    """A partition's queue: batches that wait, and for how long its leader has answered nothing that it was asked."""

    batches: int
    silent_s: float


class AdaptiveChoice:
    """Draws partitions by the sender's queues. Thread safe, as far as ``queues`` is."""

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
        """The next partition of a topic; None: any will do.

        Nothing is adapted before every partition has had a batch, for a queue that is not there has no size.
        """
        if not self._enabled or topic.num_partitions < 2:
            return None
        queues = self._queues(topic)
        if len(queues) < topic.num_partitions:
            return None
        sizes = {
            info.partition: queues[info.partition].batches
            for info in topic.partitions
            if info.leader >= 0 and self._is_available(queues[info.partition])
        }
        table = load_table(sizes, topic.num_partitions)
        return None if table is None else table.draw(self._draw())

    def _is_available(self, queue: QueueState) -> bool:
        return not (self._timeout_s > 0 and queue.batches and queue.silent_s > self._timeout_s)
