"""Queue of a processor's punctuations by due time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from millrace_streams.processors import PunctuationType


@dataclass(slots=True)
class Punctuation:
    """A scheduled callback."""

    interval_ms: int
    kind: PunctuationType
    callback: Callable[[int], None]
    next_ms: int
    cancelled: bool = False

    def cancel(self) -> None:
        """Cancel the punctuation."""
        self.cancelled = True

    def advance(self, now_ms: int) -> None:
        """Set the next due time: the first multiple of the interval after ``now_ms``, whatever was missed."""
        self.next_ms += ((now_ms - self.next_ms) // self.interval_ms + 1) * self.interval_ms


@dataclass(slots=True)
class PunctuationQueue:
    """Kafka Streams' ``PunctuationQueue``: punctuations of one kind by due time.

    It is the binary heap of Java's ``PriorityQueue``, because its order of equal due times can be seen in results. A
    cancelled punctuation stays until its turn comes.
    """

    _heap: list[Punctuation] = field(default_factory=list)

    def add(self, punctuation: Punctuation) -> None:
        """Add a punctuation."""
        heap, place = self._heap, len(self._heap)
        heap.append(punctuation)
        while place and punctuation.next_ms < heap[(place - 1) // 2].next_ms:
            heap[place] = heap[(place - 1) // 2]
            place = (place - 1) // 2
        heap[place] = punctuation

    def punctuate(self, now_ms: int) -> None:
        """Call due punctuations until none is due, also those that the callbacks schedule."""
        while self._heap and self._heap[0].next_ms <= now_ms:
            punctuation = self._take()
            if punctuation.cancelled:
                continue
            punctuation.callback(now_ms)
            if not punctuation.cancelled:
                punctuation.advance(now_ms)
                self.add(punctuation)

    def places(self) -> dict[int, int]:
        """Return the place of each punctuation in the heap, by the punctuation's ``id``."""
        return {id(punctuation): place for place, punctuation in enumerate(self._heap)}

    def _take(self) -> Punctuation:
        """Remove the punctuation that is due first."""
        heap, place = self._heap, 0
        first, last = heap[0], heap.pop()
        if not heap:
            return first
        while (child := 2 * place + 1) < len(heap):
            if child + 1 < len(heap) and heap[child + 1].next_ms < heap[child].next_ms:
                child += 1
            if last.next_ms <= heap[child].next_ms:
                break
            heap[place] = heap[child]
            place = child
        heap[place] = last
        return first
